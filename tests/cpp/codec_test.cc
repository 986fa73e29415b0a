// SPDX-License-Identifier: Apache-2.0
#include "codecs/codec.h"

#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>

#include "check.h"
#include "ranks.h"

namespace {

using namespace mcr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

const Codec& codec(std::string_view text) { return *Codecs::instance().coding(text).codec; }

template <class T>
constexpr DType kType = std::is_same_v<T, float> ? DType::Float : DType::Double;

// Through a buffer of just the size that the codec names, at an odd address, as parts of a message may lie.
template <class T>
std::vector<T> round_trip(const Codec& codec, const std::vector<T>& values) {
  const auto count = static_cast<int64_t>(values.size());
  const auto bytes = codec.capacity(count, kType<T>);
  std::vector<std::byte> encoded(static_cast<std::size_t>(bytes) + 1);
  CHECK(codec.encode(values.data(), count, kType<T>, encoded.data() + 1) == bytes);
  std::vector<T> result(values.size(), T{-77});
  codec.decode(encoded.data() + 1, bytes, result.data(), count, kType<T>);
  return result;
}

template <class T>
std::vector<T> random_values(std::size_t count, double largest) {
  std::mt19937 generator(static_cast<unsigned>(count));
  std::uniform_real_distribution<double> draw(-largest, largest);
  std::vector<T> values(count);
  for (auto& value : values) value = static_cast<T>(draw(generator));
  return values;
}

template <class T>
void check_int8(std::size_t count, std::size_t block, double largest) {
  const auto values = random_values<T>(count, largest);
  const auto got = round_trip(codec("int8:block=" + std::to_string(block)), values);
  bool good = true;
  for (std::size_t start = 0; start < count; start += block) {
    T most = 0;
    const auto end = std::min(count, start + block);
    for (auto i = start; i < end; ++i) most = std::max(most, std::abs(values[i]));
    for (auto i = start; i < end; ++i) good = good && std::abs(got[i] - values[i]) <= most / 127 * T{0.5001};
  }
  CHECK(good);
}

}  // namespace

TEST(int8_keeps_its_bound) {
  for (const std::size_t count : {0, 1, 7, 8, 63, 64, 65, 1000}) {
    for (const std::size_t block : {8, 64, 100}) {
      for (const double largest : {1.0, 1e-30, 1e30, static_cast<double>(FLT_MAX)})
        check_int8<float>(count, block, largest);
      for (const double largest : {1.0, 1e-300, 1e300}) check_int8<double>(count, block, largest);
    }
  }
}

TEST(int8_special_values) {
  const auto& int8 = codec("int8:block=8");
  const float tiny = std::numeric_limits<float>::denorm_min();
  // One block each: zeros, subnormals, subnormals with a number, the largest, infinity, NaN.
  const std::vector<float> values = {0,
                                     -0.0F,
                                     0,
                                     0,
                                     0,
                                     0,
                                     0,
                                     0,  //
                                     tiny,
                                     -tiny,
                                     FLT_MIN,
                                     -FLT_MIN,
                                     0,
                                     0,
                                     0,
                                     0,  //
                                     1,
                                     tiny,
                                     -tiny,
                                     0,
                                     FLT_MIN,
                                     -1,
                                     0.5F,
                                     0,  //
                                     FLT_MAX,
                                     -FLT_MAX,
                                     0,
                                     1,
                                     -1,
                                     FLT_MAX / 2,
                                     0,
                                     0,  //
                                     1,
                                     2,
                                     static_cast<float>(kInfinity),
                                     0,
                                     0,
                                     0,
                                     0,
                                     0,  //
                                     static_cast<float>(kNaN),
                                     2,
                                     3,
                                     0,
                                     0,
                                     0,
                                     0,
                                     -1};
  const auto got = round_trip(int8, values);
  for (std::size_t i = 0; i < 16; ++i) CHECK(got[i] == 0 && !std::signbit(got[i]));
  CHECK(got[16] == 1 && got[17] == 0 && got[20] == 0 && got[21] == -1 && std::abs(got[22] - 0.5F) <= 0.51F / 127);
  CHECK(std::isfinite(got[24]) && got[24] >= FLT_MAX * (1 - 1e-6F) && got[25] == -got[24] && got[26] == 0);
  for (std::size_t i = 32; i < 48; ++i) CHECK(std::isnan(got[i]));
}

TEST(sixteen_bit_codecs_round_to_nearest_even) {
  const auto bf16 = round_trip<double>(codec("bf16"), {1 + 0x1p-8, 1 + 0x3p-8, 1 + 0x1.1p-8, -0.0, kInfinity, kNaN});
  CHECK(bf16[0] == 1 && bf16[1] == 1 + 0x1p-6 && bf16[2] == 1 + 0x1p-7 && std::signbit(bf16[3]));
  CHECK(bf16[4] == kInfinity && std::isnan(bf16[5]));
  const auto fp16 =
      round_trip<float>(codec("fp16"), {1 + 0x1p-11F, 1 + 0x3p-11F, 65504, 65520, -1e30F, 0x1p-24F, 0x1p-26F});
  CHECK(fp16[0] == 1 && fp16[1] == 1 + 0x1p-9F && fp16[2] == 65504 && std::isinf(fp16[3]) && fp16[4] == -kInfinity);
  CHECK(fp16[5] == 0x1p-24F && fp16[6] == 0);
  CHECK(!codec("bf16").accepts(DType::BFloat16) && !codec("fp16").accepts(DType::Half) &&
        codec("int8").accepts(DType::Half));
  for (const auto* name : {"bf16", "fp16", "int8"}) {  // none saves anything on one byte
    CHECK(!codec(name).accepts(DType::Float8_e4m3fn) && !codec(name).accepts(DType::Float8_e5m2));
  }
  CHECK(!codec("int8").accepts(DType::Int) && !codec("int8").accepts(DType::ComplexFloat) &&
        !codec("bf16").accepts(DType::Bool));
}

template <class Bits>
void check_widening(DType dtype) {
  CHECK(coded_type(dtype) == DType::Float && size_of(dtype) == sizeof(Bits));
  std::vector<Bits> all(std::size_t{1} << (8 * sizeof(Bits))), back(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<Bits>(i);
  std::vector<float> wide(all.size());
  widen(all.data(), static_cast<int64_t>(all.size()), dtype, wide.data());
  narrow(wide.data(), static_cast<int64_t>(all.size()), dtype, back.data());
  std::size_t same = 0, numbers = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    same += all[i] == back[i] || std::isnan(wide[i]) ? 1 : 0;
    numbers += std::isnan(wide[i]) ? 0 : 1;
  }
  CHECK(same == all.size() && numbers > all.size() / 2);
}

TEST(short_types_are_widened_exactly) {
  check_widening<uint16_t>(DType::Half);
  check_widening<uint16_t>(DType::BFloat16);
  check_widening<uint8_t>(DType::Float8_e4m3fn);
  check_widening<uint8_t>(DType::Float8_e5m2);
  float value = 1;
  const auto got = ranks::failure([&] { widen(&value, 1, DType::Float, &value); });
  CHECK(got.code == ErrorCode::InvalidType && check::has(got.text, "expected", "float32"));
}

TEST(specifications) {
  auto& codecs = Codecs::instance();
  CHECK(&codecs.coding("int8") == &codecs.coding("int8"));
  CHECK(codecs.coding("int8:block=128").codec->name() == "int8:block=128" && codec("int8").name() == "int8:block=64");
  CHECK(codecs.coding("none").codec == nullptr);
  const auto& fed = codecs.coding("int8:block=128,feedback=grad0");
  CHECK(fed.feedback == "grad0" && fed.codec == codecs.coding("int8:block=128").codec);
  CHECK(codecs.coding("bf16:feedback=a").feedback == "a" && codecs.coding("bf16,feedback=a").codec == &codec("bf16"));
  for (const auto* wrong : {"int9", "", "int8:", "int8:blok=8", "int8:block", "int8:block=", "int8:block=8,",
                            "int8:block=7", "int8:block=8x", "int8:block=8,block=8", "bf16:block=8", "auto:x=1"}) {
    const auto got = ranks::failure([&] { codecs.coding(wrong); });
    CHECK(got.code == ErrorCode::InvalidArgument &&
          check::has(got.text, std::string("codec '") + wrong + "'", "expected"));
  }
  CHECK(check::has(ranks::failure([&] { codecs.coding("int9"); }).text, "bf16", "fp16", "int8", "'int9'"));
  CHECK(check::has(ranks::failure([&] { codecs.coding("int8:blok=8"); }).text, "block", "feedback", "'blok=8'"));
}

TEST(families) {
  auto& codecs = Codecs::instance();
  for (const auto* name : {"", "none", "auto", "a:b", "a,b", "a|b", "bf16"}) {
    const auto got = ranks::failure([&] { codecs.add({name, {}, {}}); });
    CHECK(got.code == ErrorCode::InvalidArgument);
  }
  for (const auto* option : {"", "feedback", "a=b", "a,b", "a:b"}) {
    const auto got = ranks::failure([&] { codecs.add({"choosy", {"good", option}, {}}); });
    CHECK(got.code == ErrorCode::InvalidArgument && check::has(got.text, "'choosy'", std::string("'") + option + "'"));
  }
  codecs.add({"moody", {"mood"}, [](const Options&) -> std::unique_ptr<Codec> {
                throw Error(ErrorCode::Unavailable, "not in the mood");
              }});
  const auto got = ranks::failure([&] { codecs.coding("moody:mood=1"); });
  CHECK(got.code == ErrorCode::Unavailable && check::has(got.text, "codec 'moody:mood=1'", "not in the mood"));
}

TEST(a_maker_may_use_codecs_on_another_thread) {
  static int made = 0;  // families stay
  static const Codec* inner = nullptr;
  auto& codecs = Codecs::instance();
  codecs.add({"nested", {}, [](const Options&) {
                if (made++ == 0) std::thread([] { inner = &codec("nested"); }).join();
                return bf16_family().make({});
              }});
  const auto& outer = codec("nested");
  CHECK(made == 2 && &outer == inner && codecs.coding("nested").codec == inner);
}
