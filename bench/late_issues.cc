// SPDX-License-Identifier: Apache-2.0
// How long after an operation's completion the executor starts the Issue that waits for it. Compiled and run by
// late_issues.py; prints one line of JSON: microseconds by the kind of wait.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "engine/executor.h"
#include "runtime/progress.h"

namespace {

using namespace mcr;
using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// An operation that another thread completes.
struct Flag final : Request {
  explicit Flag(std::shared_ptr<std::atomic<bool>> flag) : done(std::move(flag)) {}
  bool poll() override { return *done; }
  std::shared_ptr<std::atomic<bool>> done;
};

struct Bench {
  Progress progress;
  std::shared_ptr<Executor> executor = std::make_shared<Executor>(true, std::vector{&progress});
  std::string name = "bench";

  // Microseconds from the completion of the first Issue to the start of the second one.
  double round(bool waits, microseconds before) {
    const auto flag = std::make_shared<std::atomic<bool>>(false);
    std::atomic<Clock::rep> completed{0}, started{0};
    auto schedule = Schedule::make();
    schedule->issue({}, {schedule->issue({})});
    const auto run = std::make_shared<Run>(schedule, [&](const Task&, Requests&) { started = now(); });
    executor->submit(run, [&](const Task&, Requests& requests) { requests.push_back(std::make_unique<Flag>(flag)); });
    const Work::Context context{
        .op = Op::barrier, .group = &name, .backend = &name, .progress = &progress, .limit = std::chrono::seconds(10)};
    const auto work = std::make_shared<Work>(context, Extras());
    Requests requests;
    requests.push_back(request_of(executor, run));
    work->attach(std::move(requests));
    work->begin();
    progress.watch(work);
    std::jthread completer([&] {
      std::this_thread::sleep_for(before);
      completed = now();
      *flag = true;
    });
    if (waits) work->wait_for(std::chrono::seconds(10));
    while (!work->finished()) usleep(1000);
    return static_cast<double>(started - completed) / 1e3;
  }

  static Clock::rep now() { return Clock::now().time_since_epoch().count(); }
};

void print(const char* kind, std::vector<double> taken, const char* end) {
  std::ranges::sort(taken);
  const auto at = [&](double share) {
    return taken[static_cast<std::size_t>(share * static_cast<double>(taken.size() - 1))];
  };
  std::printf("\"%s\": {\"p50\": %.2f, \"p90\": %.2f, \"p99\": %.2f}%s", kind, at(0.5), at(0.9), at(0.99), end);
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 1000;
  Bench bench;
  std::minstd_rand random(1);
  std::vector<double> waiting, background;
  for (int i = 0; i < rounds; ++i) {
    // Interleaved; the completion comes at a random time, so that naps are met at any point.
    const microseconds before(200 + random() % 1000);
    waiting.push_back(bench.round(true, before));
    background.push_back(bench.round(false, before));
  }
  std::printf("{");
  print("a thread waits", waiting, ", ");
  print("no thread waits", background, "}\n");
  return 0;
}
