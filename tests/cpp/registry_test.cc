// SPDX-License-Identifier: Apache-2.0
#include "runtime/registry.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "ranks.h"

namespace {

using namespace mcr;

ranks::Failure load_failure(const std::string& name, const std::string& path, const std::string& library = {}) {
  return ranks::failure([&] { Registry::instance().load(name, path, library); });
}

std::atomic<bool> thread_ended{false};

struct EndOfThread {
  ~EndOfThread() { thread_ended = true; }
};

std::string status(const std::string& name) { return Registry::instance().status()[name]; }

}  // namespace

TEST(a_module_is_loaded_once) {
  auto& entry = Registry::instance().load("null", NULL_MODULE);
  CHECK(entry.name == "null" && entry.backend != nullptr && entry.reason.empty());
  CHECK(&Registry::instance().load("null", "not looked at") == &entry);
  CHECK(check::has(status("null"), "ok: does nothing"));
}

TEST(loading_from_several_threads_gives_one_backend) {
  std::vector<Registry::Entry*> got(4);
  {
    std::vector<std::jthread> threads;
    for (auto& entry : got) {
      threads.emplace_back([&entry] { entry = &Registry::instance().load("shared", NULL_MODULE); });
    }
  }
  for (const auto* entry : got) CHECK(entry == got.front() && entry->backend == got.front()->backend);
}

TEST(finding) {
  CHECK(Registry::instance().find("null") == &Registry::instance().load("null", NULL_MODULE));
  CHECK(Registry::instance().find("never named") == nullptr);
}

TEST(a_module_that_does_not_exist) {
  const auto got = load_failure("absent", "/nonexistent/absent.so");
  CHECK(Registry::instance().find("absent") == nullptr);
  CHECK(got.code == ErrorCode::Unavailable);
  CHECK(check::has(got.text, "backend 'absent' is unavailable", "/nonexistent/absent.so"));
  CHECK(check::has(status("absent"), "unavailable: ", "absent.so"));
}

TEST(a_module_can_appear_later) {
  CHECK(load_failure("late", "/nonexistent/late.so").code == ErrorCode::Unavailable);
  Registry::instance().load("late", NULL_MODULE);
  CHECK(check::has(status("late"), "ok: "));
}

TEST(a_library_that_is_no_module) {
  CHECK(check::has(load_failure("other", NOT_A_MODULE).text, "'other'", "mcr_dl_plugin"));
}

TEST(a_module_of_another_version) {
  const auto got = load_failure("old", WRONG_MODULE);
  CHECK(got.code == ErrorCode::Unavailable);
  CHECK(check::has(got.text, "expected plugin version " + std::to_string(kPluginVersion),
                   "got " + std::to_string(kPluginVersion + 1), "rebuild"));
  CHECK(check::has(status("old"), "unavailable: ", "plugin version"));
}

TEST(a_module_that_throws) {
  const std::pair<const char*, const char*> cases[] = {
      {"Error", "no library"},
      {"runtime_error", "create() threw: no library"},
      {"int", "create() threw: an exception that is no std::exception"},
  };
  for (const auto& [thrown, text] : cases) {
    const auto got = load_failure("throwing", THROWING_MODULE, thrown);
    CHECK(got.code == ErrorCode::Unavailable);
    CHECK(got.text == "backend 'throwing' is unavailable: " + std::string(text));
    CHECK(status("throwing") == "unavailable: " + std::string(text));
  }
}

TEST(a_reason_is_remembered) {
  Registry::instance().missing("nccl", "no CUDA device");
  CHECK(status("nccl") == "unavailable: no CUDA device");
}

TEST(draining_several_backends) {
  Registry::instance().load("null", NULL_MODULE);
  CHECK(Registry::instance().drain({"null", "never named"}, std::chrono::seconds(10)));
}

TEST(a_work_whose_polls_are_long_ends_with_its_group) {
  struct Long : Request {
    explicit Long(std::shared_ptr<std::atomic<int>> count) : polls(std::move(count)) {}
    bool poll() override {
      ++*polls;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return false;
    }
    std::shared_ptr<std::atomic<int>> polls;
  };
  static const std::string label = "group 'long', rank 0 of 1", backend = "long";
  auto& entry = Registry::instance().load(backend, NULL_MODULE);
  const auto polls = std::make_shared<std::atomic<int>>(0);
  auto work = std::make_shared<Work>(Work::Context{Op::recv, &label, &backend, &entry.progress, {}}, Extras{});
  Requests requests;
  requests.push_back(std::make_unique<Long>(polls));
  work->attach(std::move(requests));
  entry.progress.watch(work);
  while (*polls == 0) std::this_thread::yield();
  end_works({"another group"});
  CHECK(!work->completed());
  end_works({label});
  const auto got = ranks::failure([&] { work->rethrow(); });
  CHECK(got.code == ErrorCode::NotInitialized && check::has(got.text, "long.recv", "the group has been destroyed"));
  entry.progress.stop();
}

TEST(shutdown_reaches_every_backend) {
  struct Counting : Backend {
    explicit Counting(int& count) : ends(count) {}
    std::string library() const override { return "counts"; }
    std::unique_ptr<Communicator> connect(const GroupSpec&) override { return nullptr; }
    void shutdown() override { ++ends; }
    int& ends;
  };
  static int ends = 0;  // the registry is never destroyed
  Registry::instance().add("counting", std::make_unique<Counting>(ends));
  Registry::instance().shutdown();
  CHECK(ends == 1);
}

// That of a composite polls the library of another entry.
TEST(every_thread_ends_before_a_library_does) {
  struct Running : Request {
    explicit Running(std::atomic<bool>& flag) : polled(flag) {}
    bool poll() override {
      thread_local EndOfThread end;
      static_cast<void>(end);
      polled = true;
      return false;
    }
    std::atomic<bool>& polled;
  };
  struct Library : Backend {
    std::string library() const override { return "polled by another entry's thread"; }
    std::unique_ptr<Communicator> connect(const GroupSpec&) override { return nullptr; }
    void shutdown() override { CHECK(thread_ended); }
  };
  static const std::string label = "group 'composed', rank 0 of 1", backend = "composite";
  static std::atomic<bool> polled{false};  // the registry is never destroyed
  Registry::instance().add("a library", std::make_unique<Library>());
  auto& entry = Registry::instance().load(backend, NULL_MODULE);
  auto work = std::make_shared<Work>(Work::Context{Op::recv, &label, &backend, &entry.progress, {}}, Extras{});
  Requests requests;
  requests.push_back(std::make_unique<Running>(polled));
  work->attach(std::move(requests));
  entry.progress.watch(work);
  while (!polled) std::this_thread::yield();
  Registry::instance().shutdown();
  CHECK(thread_ended);
}

TEST(keys_without_end_take_bounded_memory) {
  auto& registry = Registry::instance();
  const auto* first = registry.keep_key("first");
  for (std::size_t i = 1; i < Registry::kMostKeys; ++i) CHECK(registry.keep_key(std::to_string(i)) != nullptr);
  CHECK(registry.keep_key("one more") == nullptr);
  CHECK(first != nullptr && *first == "first" && registry.keep_key("first") == first);
}
