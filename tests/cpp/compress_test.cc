// SPDX-License-Identifier: Apache-2.0
#include "passes/compress/compress.h"

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/scratch.h"
#include "check.h"
#include "engine/dispatch.h"
#include "ranks.h"

namespace {

using namespace mcr;
using std::chrono::milliseconds;

// Of variable size: one byte for a part of zeros, else a marker and the elements; or a failure.
class Zeros final : public Codec {
 public:
  explicit Zeros(std::string name) : Codec(std::move(name)) {}
  bool accepts(DType dtype) const override { return dtype == DType::Float; }
  bool fixed() const override { return false; }
  int64_t capacity(int64_t count, DType) const override { return 1 + 4 * count + 60; }
  int64_t encode(const void* in, int64_t count, DType, std::byte* out) const override {
    const auto* values = static_cast<const float*>(in);
    bool zero = true;
    for (int64_t i = 0; i < count; ++i) zero = zero && values[i] == 0;
    out[0] = std::byte{zero ? uint8_t{0} : uint8_t{1}};
    if (!zero) std::memcpy(out + 1, in, static_cast<std::size_t>(4 * count));
    return zero ? 1 : 1 + 4 * count;
  }
  void decode(const std::byte* in, int64_t bytes, void* out, int64_t count, DType) const override {
    if (in[0] == std::byte{2}) throw Error(ErrorCode::Backend, "the sender could not");
    if (in[0] == std::byte{0}) {
      std::memset(out, 0, static_cast<std::size_t>(4 * count));
    } else {
      std::memcpy(out, in + 1, static_cast<std::size_t>(bytes - 1));
    }
    const auto* values = static_cast<const float*>(out);
    if (count > 0 && values[0] == -13) throw Error(ErrorCode::Backend, "an unlucky number");
  }
  int64_t encode_failure(const std::string&, int, int64_t, DType, std::byte* out) const override {
    out[0] = std::byte{2};
    return 1;
  }
};

// Of fixed size, with more bytes for fewer than four elements than for four. It uses all of them.
class Padded final : public Codec {
 public:
  Padded() : Codec("padded") {}
  bool accepts(DType dtype) const override { return dtype == DType::Float; }
  bool fixed() const override { return true; }
  int64_t capacity(int64_t count, DType) const override { return 4 * count + (count < 4 ? 64 : 0); }
  int64_t encode(const void* in, int64_t count, DType dtype, std::byte* out) const override {
    const int64_t bytes = capacity(count, dtype);
    std::memcpy(out, in, static_cast<std::size_t>(4 * count));
    std::memset(out + 4 * count, 1, static_cast<std::size_t>(bytes - 4 * count));
    return bytes;
  }
  void decode(const std::byte* in, int64_t bytes, void* out, int64_t count, DType dtype) const override {
    CHECK(bytes >= capacity(count, dtype));
    std::memcpy(out, in, static_cast<std::size_t>(4 * count));
  }
};

const Coding& coding(const char* text) {
  static const bool added = [] {
    Codecs::instance().add({"zeros", {}, [](const Options&) { return std::make_unique<Zeros>("zeros"); }});
    Codecs::instance().add({"padded", {}, [](const Options&) { return std::make_unique<Padded>(); }});
    return true;
  }();
  static_cast<void>(added);
  return Codecs::instance().coding(text);
}

Call call_of(Op op, std::vector<float>& out, const char* codec, int root = 0) {
  Call call;
  call.op = op;
  call.dtype = DType::Float;
  call.out = ranks::buffer(out);
  call.root = root;
  call.coding = &coding(codec);
  return call;
}

std::shared_ptr<Stage> stage_on(const std::shared_ptr<Group>& shadow) { return std::make_shared<Stage>(shadow); }

// Runs `body` on threads as ranks whose groups compress.
void compressed(int size, const std::function<void(Group&)>& body, const CompressDefaults& defaults = {}) {
  ranks::together(size, [&](Group& group, const std::shared_ptr<Group>& shadow) {
    const auto pass = std::make_shared<Compress>(stage_on(shadow), defaults);
    group.set_passes({pass});
    body(group);
    CHECK(pass->synchronize(std::chrono::seconds(10)));
    group.set_passes({});
  });
}

// Writes down the priority and the key of the calls that it sees.
class Notes : public Pass {
 public:
  std::string_view name() const override { return "notes"; }
  Outcome handle(Passage& passage, const Next& next) override {
    seen.emplace_back(passage.call.priority, passage.call.key);
    return next(passage);
  }
  std::vector<std::pair<int32_t, const std::string*>> seen;
};

// Writes down how many bytes later passes have sent.
class Sent : public Pass {
 public:
  std::string_view name() const override { return "sent"; }
  Outcome handle(Passage& passage, const Next& next) override {
    auto outcome = next(passage);
    bytes = passage.notes.sent_bytes;
    return outcome;
  }
  int64_t bytes = -1;
};

bool all_equal(const std::vector<float>& values, float expected) {
  for (const auto value : values) {
    if (value != expected) return false;
  }
  return true;
}

}  // namespace

TEST(an_all_reduce_in_two_phases) {
  for (const auto* codec : {"bf16", "int8", "zeros", "fp16", "padded"}) {
    for (const int size : {1, 2, 3}) {
      compressed(size, [&](Group& group) {
        for (const std::size_t count : {1, 2, 7, 1000}) {
          std::vector<float> values(count, static_cast<float>(group.rank() + 1));
          ranks::run(group, call_of(Op::all_reduce, values, codec));
          CHECK(all_equal(values, static_cast<float>(size * (size + 1) / 2)));
        }
      });
    }
  }
}

TEST(later_passes_see_the_priority_and_the_key) {
  const std::string key = "weight";
  for (const auto* codec : {"bf16", "zeros"}) {
    for (const auto op : {Op::all_reduce, Op::broadcast}) {
      ranks::together(2, [&](Group& group, const std::shared_ptr<Group>& shadow) {
        const auto notes = std::make_shared<Notes>();
        const auto pass = std::make_shared<Compress>(stage_on(shadow), CompressDefaults{});
        group.set_passes({pass, notes});
        std::vector<float> values(8, 1);
        auto call = call_of(op, values, codec);
        call.priority = 3;
        call.key = &key;
        ranks::run(group, call);
        CHECK(pass->synchronize(std::chrono::seconds(10)));
        CHECK(notes->seen == decltype(notes->seen){{3, &key}});
        group.set_passes({});
      });
    }
  }
}

TEST(the_bytes_that_an_all_reduce_sends) {
  struct Case {
    const char* codec;
    float value;
    int64_t bytes;
  };
  // Two parts of four elements, then, where its size is known, their sum.
  for (const auto& each : {Case{"bf16", 1, 24}, Case{"zeros", 0, 2}, Case{"zeros", 1, 34}}) {
    ranks::together(2, [&](Group& group, const std::shared_ptr<Group>& shadow) {
      const auto sent = std::make_shared<Sent>();
      const auto pass = std::make_shared<Compress>(stage_on(shadow), CompressDefaults{});
      group.set_passes({sent, pass});
      std::vector<float> values(8, each.value);
      ranks::run(group, call_of(Op::all_reduce, values, each.codec));
      CHECK(pass->synchronize(std::chrono::seconds(10)));
      CHECK(sent->bytes == each.bytes);
      group.set_passes({});
    });
  }
}

TEST(a_codec_by_what_was_measured) {
  const auto* bf16 = coding("bf16").codec;
  CompressDefaults defaults;
  defaults.automatic = true;
  defaults.ops = {Op::all_reduce};
  defaults.smallest = 50;
  defaults.measured[{Op::all_reduce, "a"}] = {{0, bf16}, {100, nullptr}, {200, bf16}};
  defaults.measured[{Op::all_gather, "a"}] = {{0, bf16}};
  const Compress pass(nullptr, defaults);
  const auto standing = [&](int64_t bytes, const char* candidate = "a", DType dtype = DType::Float) {
    return pass.standing(Op::all_reduce, dtype, candidate, bytes);
  };
  CHECK(standing(49) == nullptr);
  CHECK(standing(50) == bf16);
  CHECK(standing(99) == bf16);
  CHECK(standing(100) == nullptr);
  CHECK(standing(199) == nullptr);
  CHECK(standing(200) == bf16);
  CHECK(standing(int64_t{1} << 40) == bf16);
  CHECK(standing(-1) == nullptr);
  CHECK(standing(200, "b") == nullptr);
  CHECK(standing(200, "a", DType::Int) == nullptr);
  CHECK(pass.standing(Op::all_gather, DType::Float, "a", 200) == nullptr);
}

TEST(calls_of_unknown_size_may_be_small) {
  struct Case {
    int64_t smallest, bytes;
    bool used;
  };
  const auto* bf16 = coding("bf16").codec;
  for (const auto& each : {Case{50, 49, false}, Case{50, 50, true}, Case{50, -1, false}, Case{1, 0, false},
                           Case{1, -1, false}, Case{0, 0, true}, Case{0, -1, true}}) {
    const Compress pass(nullptr, {bf16, {Op::all_to_all}, each.smallest});
    CHECK((pass.standing(Op::all_to_all, DType::Float, "a", each.bytes) == bf16) == each.used);
  }
}

TEST(sums_with_a_factor_go_on_unchanged) {
  const auto* bf16 = coding("bf16").codec;
  CompressDefaults always{bf16, {Op::all_reduce, Op::reduce_scatter}};
  CompressDefaults automatic{nullptr, always.ops, 0, true};
  for (const auto op : always.ops) automatic.measured[{op, "memory"}] = {{0, bf16}};
  for (const auto& defaults : {always, automatic}) {
    for (const int size : {1, 2, 3}) {
      const auto body = [&](Group& group) {
        std::vector<float> values(6, static_cast<float>(group.rank() + 1)), part(values.size() / size);
        auto call = call_of(Op::reduce_scatter, part, "none");
        call.coding = nullptr;
        call.in = ranks::buffer(values);
        call.red = RedOp::PREMUL_SUM;
        call.factor = 3;
        ranks::run(group, call);
        CHECK(all_equal(part, 3 * static_cast<float>(size * (size + 1) / 2)));
        call = step_of(call, Op::all_reduce, {}, ranks::buffer(values));
        call.factor = 3;
        if (defaults.automatic) call.coding = &coding("auto");
        ranks::run(group, call);
        CHECK(all_equal(values, 3 * static_cast<float>(size * (size + 1) / 2)));
      };
      compressed(size, body, defaults);
    }
  }
}

TEST(works_waited_for_in_any_order) {
  compressed(3, [](Group& group) {
    constexpr int kCalls = 30;
    std::vector<std::vector<float>> values;
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 0; i < kCalls; ++i) values.emplace_back(100 + i, static_cast<float>(i));
    for (int i = 0; i < kCalls; ++i) {
      const char* codec = i % 3 == 0 ? "zeros" : i % 3 == 1 ? "bf16" : "int8";
      works.push_back(ranks::start(group, call_of(Op::all_reduce, values[static_cast<std::size_t>(i)], codec)));
    }
    for (int i = 0; i < kCalls; ++i) {
      const auto place = static_cast<std::size_t>(group.rank() % 2 == 0 ? kCalls - 1 - i : i);
      wait(*works[place], milliseconds(30000), nullptr);
      CHECK(all_equal(values[place], 3 * static_cast<float>(place)));
    }
  });
}

TEST(messages_of_unknown_size) {
  compressed(2, [](Group& group) {
    std::vector<float> first(300, 5), second(200, 0), third(100, 7);
    const auto op = group.rank() == 0 ? Op::send : Op::recv;
    if (group.rank() == 1) first.assign(300, -1), second.assign(200, -1), third.assign(100, -1);
    std::vector<std::shared_ptr<Work>> works;
    for (auto* values : {&first, &second, &third}) {
      works.push_back(ranks::start(group, call_of(op, *values, "zeros", 1 - group.rank())));
    }
    for (auto work = works.rbegin(); work != works.rend(); ++work) wait(**work, milliseconds(30000), nullptr);
    CHECK(all_equal(first, 5) && all_equal(second, 0) && all_equal(third, 7));
  });
}

TEST(messages_under_way_while_the_pass_changes) {
  ranks::together(2, [](Group& group, const std::shared_ptr<Group>& shadow) {
    const auto stage = stage_on(shadow);
    const auto renew = [&] { group.set_passes({std::make_shared<Compress>(stage, CompressDefaults{})}); };
    const auto message = [&](std::vector<float>& values, int tag) {
      auto call = call_of(group.rank() == 0 ? Op::send : Op::recv, values, "zeros", 1 - group.rank());
      call.tag = tag;
      return call;
    };
    std::vector<float> first(16, 5), second(16, 7);
    if (group.rank() == 0) {
      renew();
      const auto early = ranks::start(group, message(first, 1));
      renew();
      const auto late = ranks::start(group, message(second, 2));
      for (const auto& work : {early, late}) wait(*work, milliseconds(30000), nullptr);
    } else {
      renew();
      for (auto* values : {&first, &second}) values->assign(16, -1);
      ranks::run(group, message(second, 2));
      ranks::run(group, message(first, 1));
      CHECK(all_equal(first, 5) && all_equal(second, 7));
    }
    group.set_passes({});
  });
}

TEST(a_step_that_fails_fails_its_own_call_alone) {
  compressed(2, [](Group& group) {
    std::vector<float> bad(10, -13), good(10, 1);
    const auto failing = ranks::start(group, call_of(Op::all_reduce, bad, "zeros"));
    const auto working = ranks::start(group, call_of(Op::all_reduce, good, "zeros"));
    wait(*working, milliseconds(30000), nullptr);
    CHECK(all_equal(good, 2));
    const auto got = ranks::failure([&] { wait(*failing, milliseconds(30000), nullptr); });
    CHECK(got.code == ErrorCode::Backend && check::has(got.text, "memory.all_reduce", "could not"));
  });
}

// As bf16, but slow where it meets a value above 70: until its gate is open, or for some seconds.
struct Gates {
  struct Gate {
    std::atomic<bool> entered{false}, open{false}, left{false};
  };
  std::array<Gate, 2> of_rank;
};
Gates gates;

class Gated final : public Codec {
 public:
  Gated() : Codec("gated") {}
  bool accepts(DType dtype) const override { return dtype == DType::Float; }
  bool fixed() const override { return true; }
  int64_t capacity(int64_t count, DType) const override { return 4 * count; }
  int64_t encode(const void* in, int64_t count, DType, std::byte* out) const override {
    float first = 0;
    std::memcpy(&first, in, sizeof first);
    if (first >= 70) wait(gates.of_rank.at(static_cast<std::size_t>(first - 70)));
    std::memcpy(out, in, static_cast<std::size_t>(4 * count));
    return 4 * count;
  }
  void decode(const std::byte* in, int64_t, void* out, int64_t count, DType) const override {
    std::memcpy(out, in, static_cast<std::size_t>(4 * count));
  }

 private:
  static void wait(Gates::Gate& gate) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    gate.entered = true;
    while (!gate.open && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    gate.left = true;
  }
};

// The sums of both parts, 70 and 71, are encoded by whichever thread sees that all contributions are there.
TEST(calls_begin_while_a_codec_works_for_another_thread) {
  Codecs::instance().add({"gated", {}, [](const Options&) { return std::make_unique<Gated>(); }});
  compressed(2, [](Group& group) {
    auto& gate = gates.of_rank.at(static_cast<std::size_t>(group.rank()));
    std::vector<float> slow{35, 35.5}, quick{1, 2};
    const auto first = ranks::start(group, call_of(Op::all_reduce, slow, "gated"));
    std::thread waiter([&] { CHECK(first->wait_for(std::chrono::seconds(30))); });
    while (!gate.entered) std::this_thread::yield();
    const auto second = ranks::start(group, call_of(Op::all_reduce, quick, "gated"));
    CHECK(!gate.left);
    gate.open = true;
    waiter.join();
    CHECK(second->wait_for(std::chrono::seconds(30)) && slow[0] == 70 && slow[1] == 71 && quick[0] == 2);
  });
}

TEST(later_phases_keep_a_candidate_that_the_group_gives_up) {
  ranks::together(2, [](Group& group, const std::shared_ptr<Group>& shadow) {
    const auto pass = std::make_shared<Compress>(stage_on(shadow), CompressDefaults{});
    group.set_passes({pass});
    std::vector<float> values(10, 1);
    const auto work = ranks::start(group, call_of(Op::all_reduce, values, "zeros"));
    shadow->disconnect("memory");
    CHECK(work->wait_for(std::chrono::seconds(30)) && !work->failed() && all_equal(values, 2));
  });
}

TEST(calls_that_cannot_be_compressed) {
  compressed(1, [](Group& group) {
    std::vector<float> values(4, 1);
    auto call = call_of(Op::reduce, values, "bf16");
    CHECK(check::has(ranks::failure([&] { ranks::run(group, call); }).text, "memory.reduce", "no compressed form"));
    call = call_of(Op::all_reduce, values, "zeros");
    call.dtype = DType::Int;
    const auto got = ranks::failure([&] { ranks::run(group, call); });
    CHECK(got.code == ErrorCode::InvalidType && check::has(got.text, "expected a tensor of float32", "int32"));
    call = call_of(Op::all_reduce, values, "bf16");
    call.red = RedOp::PREMUL_SUM;
    call.factor = 2;
    const auto factor = ranks::failure([&] { ranks::run(group, call); });
    CHECK(factor.code == ErrorCode::InvalidArgument && check::has(factor.text, "PREMUL_SUM has no compressed form"));
    call = call_of(Op::all_reduce, values, "none");
    call.dtype = DType::Int;
    ranks::run(group, call);
    ranks::run(group, call_of(Op::all_reduce, values, "bf16"));
    CHECK(all_equal(values, 1));
  });
}

TEST(large_scratch_is_used_again) {
  constexpr int64_t kBytes = 1 << 20;
  const std::byte* first = nullptr;
  {
    const Scratch scratch(kBytes);
    first = scratch.get();
  }
  Scratch same(kBytes - 100);
  const Scratch other(kBytes);
  CHECK(same.get() == first && other.get() != first);
  same = Scratch(10);
  const Scratch smaller(kBytes / 2);  // much less than what is there: not that
  CHECK(smaller.get() != first && Scratch(kBytes).get() == first);
}

TEST(scratch_of_unused_sizes_makes_room) {
  constexpr int64_t kFull = 1 << 28, kPiece = 1 << 20, kBack = 300;
  const auto kept = [](int64_t bytes) {
    const auto* first = Scratch(bytes).get();
    const std::vector<std::byte> taken(static_cast<std::size_t>(bytes));  // freed memory would be used here
    return Scratch(bytes).get() == first;
  };
  static_cast<void>(Scratch(kFull - kPiece));
  for (int64_t i = 0; i < kBack; ++i) static_cast<void>(Scratch(kPiece / 2));
  CHECK(kept(kPiece / 2) && kept(2 * kPiece));  // the large piece has gone
}
