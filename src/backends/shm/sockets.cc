// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/sockets.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace mcr::shm {

namespace {

constexpr int64_t kLongestWait = 100;  // milliseconds between two checks
constexpr std::chrono::milliseconds kRetry{1};
constexpr int kUsualBacklog = 128;

[[noreturn]] void failed(const char* what) {
  const int number = errno;
  throw Error(ErrorCode::Backend,
              std::string("shm: ") + what + ": " + std::system_category().message(number) + advice_on_files(number));
}

// `got`: the bytes that `what` has received.
void require_some(const char* what, ssize_t got) {
  if (got < 0) failed(what);
  if (got > 0) return;
  throw Error(ErrorCode::Backend,
              "shm: expected data of another rank while the ranks of the group connect, got the end of the connection: "
              "that rank has ended, or has given up; its error says why");
}

File make_socket(int flags = 0) {
  File made(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  if (!made) failed("socket");
  return made;
}

std::pair<sockaddr_un, socklen_t> address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const auto length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);  // the zero before it makes it abstract
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length)};
}

std::chrono::milliseconds left_of(const Patience& patience) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(patience.deadline - std::chrono::steady_clock::now());
}

void require_time(const Patience& patience, std::chrono::milliseconds left) {
  if (patience.check != nullptr) (*patience.check)();
  if (left.count() > 0) return;
  throw Error(ErrorCode::Timeout,
              "shm: timed out while the ranks of the group connect: expected the connection of another rank of this "
              "host within the group's timeout, got none");
}

void wait_readable(const File& file, const Patience& patience) {
  for (;;) {
    const auto left = left_of(patience);
    pollfd one{file.get(), POLLIN, 0};
    const int found = poll(&one, 1, static_cast<int>(std::clamp<int64_t>(left.count(), 0, kLongestWait)));
    if (found > 0) return;
    if (found < 0 && errno != EINTR) failed("poll");
    require_time(patience, left);
  }
}

}  // namespace

File listen_at(const std::string& name, int most) {
  auto made = make_socket();
  const auto [address, length] = address_of(name);
  if (bind(made.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) failed("bind");
  if (listen(made.get(), most) != 0) failed("listen");
  return made;
}

int largest_backlog() {
  int most = 0;
  if (!(std::ifstream("/proc/sys/net/core/somaxconn") >> most)) return kUsualBacklog;
  return std::max(most, 1);  // one connection may always wait
}

File connect_to(const std::string& name, const Patience& patience) {
  auto made = make_socket(SOCK_NONBLOCK);
  const auto [address, length] = address_of(name);
  while (connect(made.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno != EAGAIN && errno != EINTR) failed("connect");
    require_time(patience, left_of(patience));  // as many as may wait are there already
    std::this_thread::sleep_for(kRetry);
  }
  if (fcntl(made.get(), F_SETFL, 0) != 0) failed("fcntl");  // later calls may wait
  return made;
}

File accept_from(const File& listener, const Patience& patience) {
  wait_readable(listener, patience);
  File made(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!made) failed("accept");
  return made;
}

void send_text(const File& socket, const std::string& text) {
  // The text fits into the buffer of a new socket.
  if (std::cmp_not_equal(send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL), text.size())) failed("send");
}

std::string receive_text(const File& socket, std::size_t bytes, const Patience& patience) {
  std::string text;
  while (text.size() < bytes) {
    wait_readable(socket, patience);
    std::array<char, 256> piece{};
    const auto got = recv(socket.get(), piece.data(), std::min(piece.size(), bytes - text.size()), 0);
    require_some("recv", got);
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
  return text;
}

void send_file(const File& socket, const File& file) {
  char byte = file ? 1 : 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (file) {
    message.msg_control = room.data();
    message.msg_controllen = room.size();
    auto* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int number = file.get();
    std::memcpy(CMSG_DATA(header), &number, sizeof(int));
  }
  if (sendmsg(socket.get(), &message, MSG_NOSIGNAL) != 1) failed("sendmsg");
}

File receive_file(const File& socket, const Patience& patience) {
  wait_readable(socket, patience);
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> room{};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = room.data();
  message.msg_controllen = room.size();
  require_some("recvmsg", recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC));
  const auto* const header = CMSG_FIRSTHDR(&message);
  if ((message.msg_flags & MSG_CTRUNC) != 0) {  // the system had no number for it in this process
    errno = EMFILE;
    failed("recvmsg");
  }
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return {};
  int number = -1;
  std::memcpy(&number, CMSG_DATA(header), sizeof(int));
  return File(number);
}

pid_t number_of(const File& socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  const bool known = getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && peer.pid > 0;
  return known ? peer.pid : -1;
}

File process_of(const File& socket) {
  const auto number = number_of(socket);
  if (number < 0) return {};
  // close-on-exec by definition
  File process(static_cast<int>(syscall(SYS_pidfd_open, number, 0)));
  if (!process && (errno == EMFILE || errno == ENFILE)) failed("pidfd_open");
  return process;
}

}  // namespace mcr::shm
