// SPDX-License-Identifier: Apache-2.0
#include "engine/dispatch.h"

#include <atomic>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>

#include "check.h"
#include "choose/decision.h"
#include "ranks.h"

namespace {

using namespace mcr;
using namespace std::chrono_literals;
using Floats = std::vector<float>;

// Does nothing to the data and writes down what it is asked to do.
class Recorder : public Communicator {
 public:
  struct Log {
    std::vector<Call> calls;                   // their spans are gone
    std::vector<std::vector<int64_t>> displs;  // of the inputs
    bool average = false;                      // supports AVG
    bool packed = false;
    bool nothing = false;  // supports no collective
  };
  explicit Recorder(Log& log) : log_(log) {}
  bool supports(const Call& call) const override { return !log_.nothing && (call.red != RedOp::AVG || log_.average); }
  void issue(const Call& call, Lane&) override {
    log_.calls.push_back(call);
    log_.displs.emplace_back(call.in_displs.begin(), call.in_displs.end());
  }
  bool packed() const override { return log_.packed; }

 private:
  Log& log_;
};

struct Recorded {
  Recorder::Log log;
  ranks::Alone alone;
  explicit Recorded(int size = 2, int rank = 0)
      : alone([this] { return std::make_unique<Recorder>(log); }, size, rank, "recorder") {}
  int run(const Call& call) { return ranks::run(alone.group(), call); }
};

Call all_reduce(Floats& data, RedOp red = RedOp::SUM) {
  Call call;
  call.op = Op::all_reduce;
  call.dtype = DType::Float;
  call.red = red;
  call.out = ranks::buffer(data);
  return call;
}

// The error of a call, blocking or started.
ranks::Failure failure_of(Group& group, const Call& call, bool starts) {
  return ranks::failure([&] {
    if (starts) {
      ranks::start(group, call);
    } else {
      ranks::run(group, call);
    }
  });
}

}  // namespace

TEST(a_call_reaches_the_backend_with_the_groups_timeout) {
  Recorded recorded;
  Floats data{2, 4};
  CHECK(recorded.run(all_reduce(data)) == -1);
  CHECK(recorded.log.calls.size() == 1 && recorded.log.calls[0].timeout == 60s);
  CHECK(recorded.log.calls[0].out.data == data.data() && data == Floats({2, 4}));
  Call call = all_reduce(data);
  call.timeout = 5s;
  recorded.run(call);
  CHECK(recorded.log.calls[1].timeout == 5s);
}

TEST(a_started_call_is_a_work) {
  Recorded recorded;
  Floats data{2, 4};
  const auto work = ranks::start(recorded.alone.group(), all_reduce(data));
  CHECK(work->completed() && work->limit() == 60s);
  CHECK(check::has(work->what(), "recorder.all_reduce (group 'default', rank 0 of 2)"));
}

TEST(no_elements_no_call) {
  Recorded recorded;
  Floats none;
  CHECK(recorded.run(all_reduce(none)) == -1);
  CHECK(ranks::start(recorded.alone.group(), all_reduce(none))->completed());
  CHECK(recorded.log.calls.empty());
  Call barrier;
  CHECK(recorded.run(barrier) == -1 && recorded.log.calls.size() == 1);
}

TEST(a_group_whose_backends_have_ended) {
  Recorded recorded;
  auto& group = recorded.alone.group();
  group.disconnect("recorder");
  Floats some(2), none;
  for (auto* data : {&some, &none}) {
    for (const bool starts : {false, true}) {
      const auto failed = failure_of(group, all_reduce(*data), starts);
      CHECK(failed.code == ErrorCode::Unavailable && check::has(failed.text, "the group has no backend"));
    }
  }
  CHECK(recorded.log.calls.empty());
}

TEST(a_tag_beyond_the_librarys_limit_is_refused_and_not_counted) {
  struct Tagged : ranks::Nothing {
    int largest_tag() const override { return 9; }
  };
  Position::set_detail(true);
  ranks::Alone alone([] { return std::make_unique<Tagged>(); }, 2);
  Position::set_detail(false);
  Floats data(2);
  for (const int tag : {9, 10}) {
    Call call = all_reduce(data);
    call.op = Op::send;
    call.root = 1;
    call.tag = tag;
    const auto failed = ranks::failure([&] { ranks::run(alone.group(), call); });
    CHECK(tag == 9 ? failed.text.empty() : check::has(failed.text, "tag: expected 0 to 9, got 10"));
    CHECK(tag == 9 || failed.code == ErrorCode::InvalidArgument);
  }
  const auto taken = alone.group().position().take_traffic();
  CHECK(taken.runs.size() == 1 && taken.runs[0].count == 1 && taken.runs[0].stream.tag == 9 && !taken.lost);
}

TEST(empty_messages_and_vectored_calls_are_issued) {
  Recorded recorded;
  const std::vector<int64_t> counts{0, 0};
  Call call;
  call.op = Op::all_to_all;
  call.vectored = true;
  call.in_counts = call.out_counts = counts;
  recorded.run(call);
  call = {};
  call.op = Op::send;
  call.root = 1;
  recorded.run(call);
  CHECK(recorded.log.calls.size() == 2);
}

TEST(a_wrong_call_names_backend_op_and_group_and_sends_nothing) {
  Recorded recorded;
  Floats data{1};
  Call call = all_reduce(data);
  call.op = Op::broadcast;
  call.root = 7;
  for (const bool async : {false, true}) {
    const auto got =
        ranks::failure([&] { async ? void(ranks::start(recorded.alone.group(), call)) : void(recorded.run(call)); });
    CHECK(got.code == ErrorCode::InvalidArgument);
    CHECK(check::has(got.text, "broadcast", "group 'default', rank 0 of 2", "root", "got 7"));
  }
  const auto named =
      ranks::failure([&] { ranks::run(recorded.alone.group(), call, recorded.alone.group().find("recorder")); });
  CHECK(check::has(named.text, "recorder.broadcast"));
  CHECK(recorded.log.calls.empty());
  recorded.run(all_reduce(data));  // still usable
}

TEST(a_closed_group) {
  Recorded recorded;
  recorded.alone.group().close();
  Floats data{1};
  for (const bool async : {false, true}) {
    const auto got = ranks::failure([&] {
      async ? void(ranks::start(recorded.alone.group(), all_reduce(data))) : void(recorded.run(all_reduce(data)));
    });
    CHECK(got.code == ErrorCode::NotInitialized && check::has(got.text, "all_reduce", "destroyed"));
  }
  CHECK(recorded.alone.group().find("recorder") == nullptr);
}

TEST(average_becomes_sum_and_division) {
  Recorded recorded(4);
  Floats data{2, 4};
  recorded.run(all_reduce(data, RedOp::AVG));
  CHECK(recorded.log.calls[0].red == RedOp::SUM && data == Floats({0.5, 1}));
  ranks::start(recorded.alone.group(), all_reduce(data, RedOp::AVG));
  CHECK(data == Floats({0.125, 0.25}));
  Recorded native(4);
  native.log.average = true;
  native.run(all_reduce(data, RedOp::AVG));
  CHECK(native.log.calls.back().red == RedOp::AVG && data == Floats({0.125, 0.25}));
}

TEST(average_of_reduce_is_divided_on_the_root) {
  for (const int rank : {0, 1}) {
    Recorded recorded(2, rank);
    Floats data{2};
    Call call = all_reduce(data, RedOp::AVG);
    call.op = Op::reduce;
    call.root = 1;
    recorded.run(call);
    CHECK(data == Floats({rank == 1 ? 1.0F : 2.0F}));
  }
}

TEST(a_call_that_the_library_refuses_leaves_the_numbers) {
  struct Refusing : ranks::Nothing {
    bool supports(const Call& call) const override { return call.dtype == DType::Int; }
    void issue(const Call&, Lane&) override { throw Error(ErrorCode::Backend, "refused"); }
  };
  ranks::Alone alone([] { return std::make_unique<Refusing>(); }, 2);
  for (const auto red : {RedOp::MIN, RedOp::MAX}) {
    for (const bool starts : {false, true}) {
      Floats data{2, -4, 0};
      const auto call = all_reduce(data, red);
      const auto got = failure_of(alone.group(), call, starts);
      CHECK(check::has(got.text, "refused") && data == Floats({2, -4, 0}));
    }
  }
}

TEST(an_exception_of_a_backend_is_an_error_of_the_call) {
  struct Throwing : ranks::Nothing {
    bool supports(const Call&) const override { return true; }
    void issue(const Call& call, Lane&) override {
      if (call.red == RedOp::MIN) throw 1;
      throw std::runtime_error("no route");
    }
  };
  ranks::Alone alone([] { return std::make_unique<Throwing>(); }, 2);
  Floats data(3);
  for (const bool starts : {false, true}) {
    for (const auto& [red, text] :
         {std::pair(RedOp::MAX, ": no route"), std::pair(RedOp::MIN, ": an exception that")}) {
      const auto call = all_reduce(data, red);
      const auto got = failure_of(alone.group(), call, starts);
      CHECK(got.code == ErrorCode::Backend && check::has(got.text, "all_reduce (group ", text));
    }
  }
}

TEST(bool_reductions_are_logical) {
  Recorded recorded;
  std::vector<char> flags{1, 0};
  Call call;
  call.op = Op::all_reduce;
  call.dtype = DType::Bool;
  call.out = ranks::buffer(flags);
  recorded.run(call);
  call.red = RedOp::PRODUCT;
  recorded.run(call);
  CHECK(recorded.log.calls[0].red == RedOp::MAX && recorded.log.calls[1].red == RedOp::MIN);
}

TEST(what_a_backend_lacks_and_nothing_replaces) {
  Recorded recorded;
  recorded.log.nothing = true;
  Floats data{1};
  Call call = all_reduce(data);
  call.op = Op::send;
  call.root = 1;
  auto got = ranks::failure([&] { recorded.run(call); });
  CHECK(got.code == ErrorCode::Unsupported && check::has(got.text, "recorder.send", "float32", "cpu"));
  call.op = Op::all_reduce;
  call.device.type = DeviceType::CUDA;
  got = ranks::failure([&] { recorded.run(call); });
  CHECK(got.code == ErrorCode::Unsupported && check::has(got.text, "recorder.all_reduce", "cuda"));
}

TEST(blocks_with_gaps_for_a_library_that_packs) {
  Recorded recorded;
  recorded.log.packed = true;
  Floats in{1, 2, 3, 4}, out(4, -1);
  const std::vector<int64_t> counts{1, 1}, displs{3, 0};
  Call call;
  call.op = Op::all_to_all;
  call.dtype = DType::Float;
  call.vectored = true;
  call.in = ranks::buffer(in);
  call.out = ranks::buffer(out);
  call.in_counts = call.out_counts = counts;
  call.in_displs = call.out_displs = displs;
  recorded.run(call);
  CHECK(recorded.log.calls[0].in.count == 2 && recorded.log.displs[0] == std::vector<int64_t>({0, 1}));
  CHECK(out[1] == -1 && out[2] == -1);
}

TEST(a_backend_sees_no_in_place_form) {
  Recorded recorded;
  Floats data{1, 2};
  Call call;
  call.op = Op::all_gather;
  call.dtype = DType::Float;
  call.in = {data.data(), 1};
  call.out = ranks::buffer(data);
  recorded.run(call);
  CHECK(recorded.log.calls[0].in.data != data.data() && recorded.log.calls[0].out.data == data.data());
}

TEST(the_first_backend_that_has_it_is_chosen) {
  Recorder::Log first, second;
  ranks::Alone alone([&] { return std::make_unique<Recorder>(first); }, 2, 0, "first");
  ranks::Alone other([&] { return std::make_unique<Recorder>(second); }, 2, 0, "second");
  alone.group().connect(other.backend(), 0);
  Floats data{1};
  ranks::run(alone.group(), all_reduce(data));
  CHECK(first.calls.size() == 1 && second.calls.empty());
  first.nothing = true;
  alone.group().tune({});  // what a backend has is asked once
  ranks::run(alone.group(), all_reduce(data));
  CHECK(second.calls.size() == 1);
  second.nothing = true;
  ranks::run(alone.group(), {}, alone.group().find("second"));  // an emulated barrier
  CHECK(alone.group().find("third") == nullptr);
}

TEST(how_a_call_would_be_done) {
  Recorder::Log log;
  const Recorder communicator(log);
  Call call;
  call.op = Op::all_reduce;
  CHECK(Decision::of(communicator, call).text() == "native");
  call.red = RedOp::AVG;  // as SUM
  CHECK(Decision::of(communicator, call).text() == "native");
  call.red = RedOp::PREMUL_SUM;
  CHECK(Decision::of(communicator, call).text() == "-");
  call.red = RedOp::SUM;
  call.vectored = true;
  CHECK(Decision::of(communicator, call).text() == "-");
  call.vectored = false;
  log.nothing = true;
  CHECK(Decision::of(communicator, call).text() == "emulated");
  call.op = Op::send;
  CHECK(Decision::of(communicator, call).text() == "-");
}

TEST(how_a_call_on_a_device_would_be_done) {
  struct Form {
    bool direct, copies, streams;  // what the library takes; and whether it works on streams
    Op op;
    RedOp red;
    std::string_view text;
    bool native, native_on_copies;
  };
  // Has SUM and MAX, and no PREMUL_SUM.
  class Library : public Communicator {
   public:
    explicit Library(const Form& form) : form_(form) {}
    bool supports(const Call& call) const override {
      const bool takes = call.device.type == DeviceType::CPU ? form_.copies : form_.direct;
      return takes && (call.red == RedOp::SUM || call.red == RedOp::MAX);
    }
    std::optional<DeviceType> streams() const override {
      return form_.streams ? std::optional(DeviceType::CUDA) : std::nullopt;
    }
    void issue(const Call&, Lane&) override {}

   private:
    const Form& form_;
  };
  const std::vector<Form> forms = {
      {true, true, false, Op::all_reduce, RedOp::SUM, "native", true, false},
      {false, true, false, Op::all_reduce, RedOp::SUM, "staged", false, true},
      {false, true, false, Op::all_reduce, RedOp::AVG, "staged", false, true},
      {true, true, false, Op::all_reduce, RedOp::PREMUL_SUM, "staged", false, true},
      {false, false, false, Op::all_reduce, RedOp::SUM, "staged", false, false},  // on the copies it is emulated
      {false, false, false, Op::send, RedOp::SUM, "-", false, false},
      {true, false, true, Op::all_reduce, RedOp::SUM, "native", true, false},
      {true, false, true, Op::all_reduce, RedOp::AVG, "-", false, false},  // no step of the host follows on a stream
      {false, false, true, Op::all_reduce, RedOp::SUM, "-", false, false},
  };
  for (const auto& form : forms) {
    const Library library(form);
    Call call;
    call.op = form.op, call.red = form.red, call.dtype = DType::Float, call.device = {DeviceType::CUDA, 0};
    const auto got = Decision::of(library, call);
    CHECK(got.text() == form.text && got.native() == form.native && got.native_on_copies() == form.native_on_copies);
    if (form.streams) continue;
    call.device_idle = true;
    const auto idle = Decision::of(library, call);
    CHECK((idle.form == mcr::Form::Native) == form.native && (!form.native || idle.reduction.itself()));
  }
}

TEST(a_backend_can_be_disconnected) {
  Recorded recorded;
  recorded.alone.group().disconnect("recorder");
  CHECK(recorded.alone.group().find("recorder") == nullptr && recorded.alone.group().candidates().empty());
}

TEST(places_in_a_group) {
  GroupSpec spec = ranks::spec(3, 1);
  CHECK(Group(spec).group_rank(2) == 2 && Group(spec).group_rank(3) == -1 && Group(spec).group_rank(-1) == -1);
  spec.ranks = {4, 1, 7};
  CHECK(Group(spec).group_rank(4) == 0 && Group(spec).group_rank(7) == 2 && Group(spec).group_rank(0) == -1);
}

TEST(several_threads_on_several_groups) {
  constexpr int kThreads = 4, kCalls = 3000;
  std::vector<std::unique_ptr<ranks::Alone>> groups;
  for (int i = 0; i < kThreads; ++i) {
    groups.push_back(std::make_unique<ranks::Alone>([] { return std::make_unique<ranks::Nothing>(); }, 2));
  }
  std::vector<std::jthread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Floats data{1, 2, 3};
      for (int i = 0; i < kCalls; ++i) {
        // Every group is used by all threads.
        auto& group = groups[static_cast<std::size_t>((t + i) % kThreads)]->group();
        if (i % 2 == 0) {
          ranks::run(group, all_reduce(data));
        } else {
          CHECK(ranks::start(group, all_reduce(data), group.find("fake"))->wait_for(10s));
        }
      }
    });
  }
}

namespace {

// Starts something and fails then, with what is no Error.
class HalfStarted : public Communicator {
 public:
  struct Library {
    std::atomic<bool> over{false}, freed_early{false};
  };
  explicit HalfStarted(Library& library) : library_(library) {}
  bool supports(const Call&) const override { return true; }
  void issue(const Call&, Lane& lane) override {
    struct Running : Request {
      explicit Running(Library& of) : library(of) {}
      ~Running() override { library.freed_early = library.freed_early || !library.over; }
      bool poll() override { return library.over; }
      Library& library;
    };
    lane.track(std::make_unique<Running>(library_));
    throw std::bad_alloc();
  }

 private:
  Library& library_;
};

std::atomic<int> destroyed{0};

}  // namespace

TEST(what_was_started_lives_on_after_any_exception) {
  HalfStarted::Library library;
  ranks::Alone alone([&] { return std::make_unique<HalfStarted>(library); });
  Floats data(3);
  bool thrown = false;
  try {
    ranks::start(alone.group(), all_reduce(data));
  } catch (const std::bad_alloc&) {
    thrown = true;
  }
  CHECK(thrown && !library.freed_early);
  library.over = true;
  CHECK(alone.backend().progress.drain(10s) && !library.freed_early);
}

TEST(communicators_are_destroyed_as_the_bindings_want) {
  Group::destroy_with([](std::unique_ptr<Communicator> last) {
    CHECK(last != nullptr);
    ++destroyed;
  });
  {
    Recorded recorded;
    Floats data(3);
    const auto work = ranks::start(recorded.alone.group(), all_reduce(data));
    recorded.alone.group().close();
    CHECK(destroyed == 1);  // a complete Work does not keep it
  }
  Group::destroy_with(nullptr);
  CHECK(destroyed == 1);
}
