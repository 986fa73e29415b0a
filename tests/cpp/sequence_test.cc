// SPDX-License-Identifier: Apache-2.0
#include "engine/sequence.h"

#include <atomic>
#include <new>
#include <thread>

#include "check.h"
#include "ranks.h"

namespace {

using namespace mcr;
using namespace std::chrono_literals;

// Waits for another thread while it advances, as a codec or a user's function may do; gives up after some seconds.
class Slow final : public Issuer {
 public:
  explicit Slow(const std::atomic<bool>& open) : open_(open) {}
  bool advance(bool) noexcept override {
    const auto deadline = std::chrono::steady_clock::now() + 5s;
    entered = true;
    while (!open_ && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    left = true;
    set_issued();
    return true;
  }
  bool finished() override { return true; }

  std::atomic<bool> entered{false}, left{false};

 private:
  const std::atomic<bool>& open_;
};

}  // namespace

TEST(operations_begin_while_another_one_advances) {
  const auto sequence = std::make_shared<Sequence>(true);
  std::atomic<bool> open{false};
  const auto first = std::make_shared<Slow>(open), second = std::make_shared<Slow>(open);
  sequence->begin(first);
  std::thread driver([&] { sequence->drive(); });
  while (!first->entered) std::this_thread::yield();
  sequence->begin(second);
  sequence->hurry();  // returns too: the other thread does it
  CHECK(!first->left && !second->entered && Continuation::any());
  open = true;
  driver.join();
  CHECK(first->issued() && second->issued() && !Continuation::any());
}

TEST(operations_are_issued_in_their_order_by_whichever_thread) {
  constexpr int kOperations = 200;
  struct Counted final : Issuer {
    Counted(std::atomic<int>& all, int mine) : issued_so_far(all), number(mine) {}
    bool advance(bool) noexcept override {
      if (++attempts < 3) return false;
      CHECK(issued_so_far.fetch_add(1) == number);
      set_issued();
      return true;
    }
    bool finished() override { return true; }
    std::atomic<int>& issued_so_far;
    const int number;
    int attempts = 0;
  };
  const auto sequence = std::make_shared<Sequence>(true);
  std::atomic<int> issued{0};
  const auto drive = [&] {
    while (issued < kOperations) sequence->hurry();
  };
  std::thread one(drive), other(drive);
  for (int i = 0; i < kOperations; ++i) sequence->begin(std::make_shared<Counted>(issued, i));
  one.join();
  other.join();
  CHECK(issued == kOperations && sequence->settle(10s));
}

TEST(a_step_may_throw_anything) {
  const std::string label = "group 'g', rank 0 of 2", backend = "fake";
  const auto make = [&] {
    auto work = std::make_shared<Work>(Work::Context{Op::all_reduce, &label, &backend, nullptr, nullptr, 1s}, Plan());
    work->poll();
    return work;
  };
  for (const int kind : {0, 1, 2}) {
    const auto steps = std::make_shared<Steps>(make(), std::vector<Steps::Step>{[&](const Work&) {
                                                 if (kind == 0) throw std::bad_alloc();
                                                 if (kind == 1) throw 5;
                                                 if (kind == 2) throw Error(ErrorCode::Timeout, "too late");
                                                 return make();
                                               }});
    CHECK(steps->advance(false) && steps->issued());
    const auto got = ranks::failure([&] { steps->finished(); });
    CHECK(got.code == (kind == 2 ? ErrorCode::Timeout : ErrorCode::Backend) && !got.text.empty());
  }
}
