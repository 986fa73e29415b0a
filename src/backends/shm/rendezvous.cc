// SPDX-License-Identifier: Apache-2.0
#include "backends/shm/rendezvous.h"

#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <utility>

#include "backends/shm/copies.h"
#include "backends/shm/sockets.h"
#include "backends/shm/waiting.h"
#include "base/process.h"
#include "base/shared_heap.h"
#include "base/text.h"

namespace mcr::shm {

namespace {

constexpr std::size_t kTokenBytes = 32;
constexpr std::size_t kRankBytes = 8;
constexpr std::string_view kFine = "fine";  // no error
constexpr char kEnd = '\x1e';               // of a rank's text

std::string random_text() {
  std::random_device device;
  std::array<char, kTokenBytes + 1> text{};
  for (std::size_t i = 0; i < kTokenBytes; i += 8) std::snprintf(text.data() + i, 9, "%08x", device());
  return text.data();
}

std::string padded(int rank) {
  auto text = std::to_string(rank);
  return std::string(kRankBytes - text.size(), '0') + text;
}

// Null if the system refuses a heap: then empty_shared() raises the error, and groups do without.
const SharedHeap* own_heap() {
  try {
    return &SharedHeap::instance();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::InvalidArgument) throw;
    return nullptr;
  }
}

// One character for each core: 1 if the process may run on it. Empty if the system does not tell.
std::string own_cores() {
  constexpr std::size_t kMostSets = 64;
  std::vector<cpu_set_t> sets(1);  // zeros
  const auto bytes = [&] { return sets.size() * sizeof(cpu_set_t); };
  while (sched_getaffinity(0, bytes(), sets.data()) != 0) {
    if (errno != EINVAL || sets.size() == kMostSets) return {};
    sets.resize(2 * sets.size());  // Linux refuses sets that are smaller than its own
  }
  std::string cores;
  for (std::size_t i = 0; i < 8 * bytes(); ++i) cores += CPU_ISSET_S(i, bytes(), sets.data()) ? '1' : '0';
  cores.resize(cores.find_last_of('1') + 1);
  return cores;
}

/// The address of a rank, which it publishes in the store. Abstract socket names are visible in one network namespace.
struct Card {
  std::string host;  // its name, for error texts
  Place place;
  std::string name;     // the name of its socket
  std::string token;    // which a connecting rank must send
  std::string cores;    // as own_cores()
  std::string address;  // of the token, in the process's memory; empty: other ranks are not to read there
  int64_t most = 0;
  bool remote_fences = false;
  bool streams = false;
  std::uintptr_t heap = 0;  // the address of the process's heap; 0: it has none
  int64_t heap_bytes = 0;
  int backlog = 1;  // connections that may wait at its socket

  static Card mine(int64_t most);
  std::string text() const {
    std::ostringstream out;
    for (const auto* field : {&host, &place.machine, &place.network, &name, &token, &cores, &address})
      out << *field << '\n';
    out << most << ' ' << remote_fences << ' ' << streams << ' ' << heap << ' ' << heap_bytes << ' ' << backlog;
    return out.str();
  }
  static Card parse(const std::string& text) {
    std::istringstream in(text);
    Card card;
    for (auto* field :
         {&card.host, &card.place.machine, &card.place.network, &card.name, &card.token, &card.cores, &card.address}) {
      std::getline(in, *field);
    }
    in >> card.most >> card.remote_fences >> card.streams >> card.heap >> card.heap_bytes >> card.backlog;
    return card;
  }
};

Card Card::mine(int64_t most) {
  Card card;
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  card.host = host.data();
  card.place = own_place();
  card.name = "mcr_dl-" + random_text();
  card.token = random_text();
  card.cores = own_cores();
  card.most = most;
  card.backlog = largest_backlog();
  card.streams = memory_beats_caches();
  card.remote_fences = Waiting::register_for_fences();
  if (const auto* const heap = own_heap()) {
    card.heap = reinterpret_cast<std::uintptr_t>(heap->begin());
    card.heap_bytes = heap->bytes();
  }
  return card;
}

// Whether this rank lets others read its tensors.
bool reads_directly() { return flag_of_variable("MCR_DL_SHM_DIRECT", true, "shm: "); }

std::string listed(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + joined(ranks, [](int rank) { return std::to_string(rank); });
}

class Rendezvous {
 public:
  Rendezvous(const GroupSpec& spec, const std::function<int64_t()>& most)
      : spec_(spec), most_(most), patience_{std::chrono::steady_clock::now() + spec.timeout, spec.check} {}

  Meeting meet() {
    File listener;
    agree("met", [&] {
      own_ = Card::mine(most_());
      if (reads_directly()) own_.address = std::to_string(reinterpret_cast<std::uintptr_t>(own_.token.data()));
      if (spec_.size() > 1) listener = listen_at(own_.name, spec_.size());
    });
    exchange_cards();
    require_one_host();
    std::vector<Peers::Peer> peers(static_cast<std::size_t>(spec_.size()));
    connect_all(listener, peers);
    Meeting meeting;
    // From here on, ranks wait for files of others: none of these may have failed before.
    agree("mapped", [&] { meeting.segment = share_memory(peers); });
    agree("heaps", [&] {
      meeting.heaps = share_heaps(peers);
      for (auto& peer : peers) {
        if (peer.socket) peer.process = process_of(peer.socket);
      }
    });
    meeting.processes = processes_of(peers);
    agree_on_reach(meeting);
    forget_steps();
    meeting.peers = Peers(std::move(peers));
    meeting.streams = cards_.front().streams;
    meeting.cores = cores();
    meeting.remote_fences =
        std::all_of(cards_.begin(), cards_.end(), [](const Card& card) { return card.remote_fences; });
    return meeting;
  }

 private:
  Store& store() const {
    if (spec_.store != nullptr) return *spec_.store;
    throw Error(ErrorCode::InvalidArgument, "shm: expected a store where the ranks of the group meet, got none");
  }

  /// The texts of all ranks. The first rank collects them and publishes them as one value, so the store is asked twice
  /// per rank.
  std::vector<std::string> gather(const std::string& step, const std::string& own) {
    if (spec_.size() == 1) return {own};
    steps_.push_back(step);
    std::string all = own;
    if (spec_.rank == 0) {
      for (int rank = 1; rank < spec_.size(); ++rank) all += kEnd + store().get(step + "/" + std::to_string(rank));
      store().set(step, all);
    } else {
      store().set(step + "/" + std::to_string(spec_.rank), own);
      all = store().get(step);
    }
    std::vector<std::string> texts;
    std::istringstream in(all);
    for (std::string text; std::getline(in, text, kEnd);) texts.push_back(text);
    return texts;
  }

  /// Deletes the keys that all ranks have read: those of this rank, and on the first one all but its last, which other
  /// ranks may still read. After the last step.
  void forget_steps() {
    if (steps_.empty()) return;
    if (spec_.rank == 0) steps_.pop_back();
    for (const auto& step : steps_) {
      store().erase(spec_.rank == 0 ? step : step + "/" + std::to_string(spec_.rank));
    }
  }

  /// Runs a step on all ranks. If it fails on some, all ranks throw the error of the first of them.
  void agree(const std::string& step, const std::function<void()>& body) {
    std::string answer(kFine);
    try {
      body();
    } catch (const Error& error) {
      answer = std::to_string(static_cast<int>(error.code())) + ' ' + error.what();
    } catch (const std::exception& error) {  // such as a lack of memory
      answer = std::to_string(static_cast<int>(ErrorCode::Backend)) + " shm: " + error.what();
    }
    const auto answers = gather(step, answer);
    const auto failed = std::ranges::find_if(answers, [](const auto& one) { return one != kFine; });
    if (failed == answers.end()) return;
    forget_steps();
    const auto space = failed->find(' ');
    throw Error(static_cast<ErrorCode>(std::stoi(failed->substr(0, space))),
                failed->substr(space + 1) + " (rank " + std::to_string(failed - answers.begin()) + " of the group)");
  }

  void exchange_cards() {
    for (const auto& text : gather("card", own_.text())) cards_.push_back(Card::parse(text));
  }

  // All ranks read the same cards, so all of them throw or none does.
  void require_one_host() {
    std::map<std::pair<std::string, std::string>, std::vector<int>> places;
    for (std::size_t rank = 0; rank < cards_.size(); ++rank) {
      places[{cards_[rank].place.machine, cards_[rank].place.network}].push_back(static_cast<int>(rank));
    }
    if (places.size() == 1) return;
    forget_steps();
    std::string text;
    for (const auto& [place, ranks] : places) {
      text += (text.empty() ? "" : "; ") + listed(ranks) + " on " + cards_[static_cast<std::size_t>(ranks[0])].host +
              " (network namespace " + place.second + ")";
    }
    throw Error(ErrorCode::Unavailable, "shm: expected all ranks of group '" + spec_.name +
                                            "' on one host, in one network namespace, got " + text +
                                            ": use shm in groups of one host, and mpi or gloo for this group");
  }

  /// All ranks connect before any of them accepts, so that they know of one that cannot. More connections than may wait
  /// at a socket would never be made then: ranks connect to so many others at a time.
  void connect_all(const File& listener, std::vector<Peers::Peer>& peers) {
    const int most = std::ranges::min_element(cards_, {}, &Card::backlog)->backlog;
    for (int near = 0; near < spec_.size() - 1; near += std::min(most, spec_.size())) {
      const int far = std::min(near + most, spec_.size() - 1);  // ranks whose numbers differ by up to this
      const auto turn = near == 0 ? "" : "-" + std::to_string(near);
      agree("connected" + turn, [&] { connect_to_lower(peers, near, far); });
      agree("accepted" + turn, [&] { accept_higher(listener, peers, near, far); });
    }
  }

  void connect_to_lower(std::vector<Peers::Peer>& peers, int near, int far) const {
    for (int rank = std::max(spec_.rank - far, 0); rank < spec_.rank - near; ++rank) {
      const auto& card = cards_[static_cast<std::size_t>(rank)];
      auto& socket = peers[static_cast<std::size_t>(rank)].socket;
      socket = connect_to(card.name, patience_);
      send_text(socket, card.token + padded(spec_.rank));
    }
  }

  // Other processes may connect too, but only ranks know the token. Theirs is there: all have sent it before.
  void accept_higher(const File& listener, std::vector<Peers::Peer>& peers, int near, int far) const {
    const int higher = spec_.size() - 1 - spec_.rank;
    for (int missing = std::min(higher, far) - std::min(higher, near); missing > 0;) {
      auto socket = accept_from(listener, patience_);
      std::string hello;
      try {
        hello = receive_text(socket, kTokenBytes + kRankBytes, {.deadline = {}, .check = patience_.check});
      } catch (const Error&) {
        continue;
      }
      if (hello.substr(0, kTokenBytes) != own_.token) continue;
      const int rank = std::stoi(hello.substr(kTokenBytes));
      peers.at(static_cast<std::size_t>(rank)).socket = std::move(socket);
      --missing;
    }
  }

  /// Sends a file to a rank, which waits for it: if that fails, a note that there is none. Returns the error.
  static std::optional<Error> give(const File& socket, const File& file) {
    std::optional<Error> problem;
    const File none;
    for (const auto* each : {&file, &none}) {
      try {
        send_file(socket, *each);
        break;
      } catch (const Error& error) {
        if (!problem) problem = error;
      }
    }
    return problem;
  }

  std::unique_ptr<Segment> share_memory(std::vector<Peers::Peer>& peers) const {
    const auto& first = cards_.front();
    const Layout layout({spec_.size(), first.most, first.streams, cores() < spec_.size()});
    File file;
    if (spec_.rank == 0) {
      std::optional<Error> problem;
      try {
        Memory::require_free(layout.bytes(), kBound);  // for all ranks, each of which populates a part
        file = Memory::make(layout.bytes(), kBound);
      } catch (const Error& error) {
        problem = error;
      }
      for (const auto& peer : peers) {
        if (!peer.socket) continue;
        const auto refused = give(peer.socket, file);
        if (!problem) problem = refused;
      }
      if (problem) throw Error(*problem);
    } else {
      file = receive_file(peers.front().socket, patience_);
      if (!file) {
        throw Error(ErrorCode::Backend, "shm: expected shared memory from the first rank of group '" + spec_.name +
                                            "', got none: the error of that rank says why");
      }
    }
    auto memory = Memory::map(file, layout.bytes(), kBound);
    if (spec_.rank == 0) memory->populate(0, layout.rank_at(0));
    memory->populate(layout.rank_at(spec_.rank), layout.per_rank());
    return std::make_unique<Segment>(layout, std::move(memory));
  }

  /// Maps the heaps of all ranks; nothing if a rank has none, or the system refuses. In each step a rank gives its file
  /// to another one and waits until that one has it, as Linux limits the files of a user that are under way.
  std::vector<Heap> share_heaps(const std::vector<Peers::Peer>& peers) const {
    const auto has_heap = [](const Card& card) { return card.heap != 0; };
    if (!std::ranges::all_of(cards_, has_heap)) return {};
    const auto& own = SharedHeap::instance().file();
    const auto rank = static_cast<std::size_t>(spec_.rank);
    std::vector<Heap> heaps(peers.size());
    bool mapped = true;
    const auto map = [&](std::size_t from, const File& file) {
      try {
        const auto& card = cards_[from];
        auto memory = Memory::map(file, card.heap_bytes, SharedHeap::kVariable);
        memory->leave_out_of_dumps();
        heaps[from] = {reinterpret_cast<const std::byte*>(card.heap), std::move(memory)};
      } catch (const std::exception&) {  // also a lack of memory: the other ranks wait for this one in the next steps
        mapped = false;
      }
    };
    std::optional<Error> problem;
    const auto attempt = [&](const auto& part) {
      try {
        part();
      } catch (const Error& error) {
        if (error.code() != ErrorCode::Backend) throw;
        if (!problem) problem = error;
      }
    };
    map(rank, own);
    for (std::size_t step = 1; step < peers.size(); ++step) {
      const auto to = (rank + step) % peers.size(), from = (rank + peers.size() - step) % peers.size();
      mapped = !give(peers[to].socket, own) && mapped;
      attempt([&] { map(from, receive_file(peers[from].socket, patience_)); });
      attempt([&] { send_file(peers[from].socket, File()); });
      attempt([&] { receive_file(peers[to].socket, patience_); });
    }
    if (problem) throw Error(*problem);
    return mapped ? heaps : std::vector<Heap>{};
  }

  std::vector<pid_t> processes_of(const std::vector<Peers::Peer>& peers) const {
    std::vector<pid_t> processes;
    for (std::size_t rank = 0; rank < peers.size(); ++rank) {
      processes.push_back(static_cast<int>(rank) == spec_.rank ? getpid() : number_of(peers[rank].socket));
    }
    return processes;
  }

  /// Keeps the processes if each rank can read the memory of all others, which the system may forbid, and the heaps if
  /// each has mapped those of all others. The token of each rank stays at its address until all have answered.
  void agree_on_reach(Meeting& meeting) {
    bool readable = true, mapped = !meeting.heaps.empty();
    for (std::size_t rank = 0; rank < cards_.size(); ++rank) {
      const bool own = static_cast<int>(rank) == spec_.rank;
      readable = readable && (own || can_read(meeting.processes[rank], cards_[rank]));
    }
    const auto word = [](bool yes) { return yes ? "yes" : "no"; };
    for (const auto& text : gather("reach", std::string(word(readable)) + ' ' + word(mapped))) {
      readable = readable && text.starts_with("yes");
      mapped = mapped && text.ends_with("yes");
    }
    if (!readable) meeting.processes.clear();
    if (!mapped) meeting.heaps.clear();
  }

  static bool can_read(pid_t process, const Card& card) {
    if (process < 0 || card.address.empty()) return false;
    std::array<std::byte, kTokenBytes> found{};
    const auto* const address = reinterpret_cast<const std::byte*>(std::stoull(card.address));
    try {
      return read_memory(process, address, found.data(), kTokenBytes) &&
             std::memcmp(found.data(), card.token.data(), kTokenBytes) == 0;
    } catch (const Error&) {
      return false;
    }
  }

  int cores() const {
    std::string all;
    for (const auto& card : cards_) {
      if (card.cores.size() > all.size()) all.resize(card.cores.size(), '0');
      for (std::size_t i = 0; i < card.cores.size(); ++i) {
        if (card.cores[i] == '1') all[i] = '1';
      }
    }
    return static_cast<int>(std::count(all.begin(), all.end(), '1'));
  }

  const GroupSpec& spec_;
  const std::function<int64_t()>& most_;
  const Patience patience_;
  Card own_;
  std::vector<Card> cards_;
  std::vector<std::string> steps_;  // whose keys are in the store
};

}  // namespace

std::vector<int> Peers::gone() const {
  std::vector<pollfd> files;  // two for each rank; poll() ignores those that there are not
  for (const auto& peer : peers_) {
    files.push_back({peer.socket.get(), POLLRDHUP, 0});
    files.push_back({peer.process.get(), POLLIN, 0});
  }
  std::vector<int> found;
  if (poll(files.data(), files.size(), 0) <= 0) return found;
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    if ((files[2 * rank].revents | files[2 * rank + 1].revents) != 0) found.push_back(static_cast<int>(rank));
  }
  return found;
}

void Peers::shut_down() const noexcept {
  for (const auto& peer : peers_) {
    if (peer.socket) shutdown(peer.socket.get(), SHUT_RDWR);
  }
}

Meeting meet(const GroupSpec& spec, const std::function<int64_t()>& most) { return Rendezvous(spec, most).meet(); }

}  // namespace mcr::shm
