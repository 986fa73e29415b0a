// SPDX-License-Identifier: Apache-2.0
// Unix sockets with abstract names: they need no file system, and only processes of one network namespace see them.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>

#include "backends/shm/segment.h"

namespace mcr::shm {

/// How long to wait.
struct Patience {
  std::chrono::steady_clock::time_point deadline;
  const std::function<void()>* check = nullptr;  // called often; what it throws ends the wait. Null: nothing does
};

/// All functions throw Error with the system's reason.
File listen_at(const std::string& name, int most);
/// How many connections the system lets wait at a listener, if that asks for as many.
int largest_backlog();
/// Waits while as many connections wait at the listener as may.
File connect_to(const std::string& name, const Patience& patience);
File accept_from(const File& listener, const Patience& patience);

void send_text(const File& socket, const std::string& text);
/// Receives a text of exactly `bytes` bytes.
std::string receive_text(const File& socket, std::size_t bytes, const Patience& patience);
/// Sends a file descriptor, or a note that there is none.
void send_file(const File& socket, const File& file);
/// Receives a file descriptor; none if the sender has none.
File receive_file(const File& socket, const Patience& patience);
/// The process at the other end, or -1 if it is in another PID namespace.
pid_t number_of(const File& socket);
/// A descriptor of the process at the other end; none if the system does not support it.
File process_of(const File& socket);

}  // namespace mcr::shm
