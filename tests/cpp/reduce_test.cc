// SPDX-License-Identifier: Apache-2.0
// The 8-bit floating-point types: conversions, reductions and division against a model in double precision that knows
// the formats from their definition alone. What stands in for reductions that libraries lack.
#include "base/reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "base/elements.h"
#include "base/error.h"
#include "check.h"

namespace {

using namespace mcr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Format {
  DType dtype;
  int mantissa, bias;
  int infinity;  // its magnitude's bits, or -1
  int largest;   // bits of the largest number

  double value(int bits) const {
    const int magnitude = bits & 0x7F;
    const double sign = (bits & 0x80) != 0 ? -1 : 1;
    if (magnitude == infinity) return sign * kInfinity;
    return magnitude > largest ? kNaN : sign * beyond(magnitude);
  }

  // As if the exponents went on.
  double beyond(int magnitude) const {
    const int exponent = magnitude >> mantissa;
    const int fraction = magnitude & ((1 << mantissa) - 1);
    if (exponent == 0) return std::ldexp(fraction, 1 - bias - mantissa);
    return std::ldexp(fraction + (1 << mantissa), exponent - bias - mantissa);
  }

  // Bits of the nearest number, of even ones in the middle. Too large: infinity, or the largest number.
  int nearest(double x) const {
    const int sign = std::signbit(x) ? 0x80 : 0;
    if (std::isnan(x)) return sign | 0x7F;
    const double magnitude = std::abs(x);
    int low = 0;
    while (low <= largest && beyond(low + 1) <= magnitude) ++low;
    if (low > largest) return sign | (infinity < 0 ? largest : infinity);
    const double below = magnitude - beyond(low), above = beyond(low + 1) - magnitude;
    const int chosen = below > above || (below == above && low % 2 == 1) ? low + 1 : low;
    return sign | (chosen > largest ? (infinity < 0 ? largest : infinity) : chosen);
  }
};

constexpr Format kE4M3{DType::Float8_e4m3fn, 3, 7, -1, 0x7E};
constexpr Format kE5M2{DType::Float8_e5m2, 2, 15, 0x7C, 0x7B};

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

template <class S>
void check_loads(const Format& format) {
  for (int bits = 0; bits < 256; ++bits) {
    const float got = load(S{static_cast<uint8_t>(bits)});
    CHECK(same(got, format.value(bits)) && std::signbit(got) == (bits >= 128));
  }
}

template <class S>
int failures(const Format& format, float value) {
  int wrong = 0;
  for (const float x : {value, -value}) wrong += store<S>(x).bits != format.nearest(x) ? 1 : 0;
  return wrong;
}

// All numbers, what lies halfway between two of them, and the next floats on both sides.
template <class S>
void check_stores(const Format& format) {
  int wrong = 0;
  for (int bits = 0; bits <= format.largest; ++bits) {
    const double here = format.beyond(bits);
    for (const double place : {here, (here + format.beyond(bits + 1)) / 2}) {
      const auto middle = static_cast<float>(place);
      wrong += failures<S>(format, middle);
      wrong += failures<S>(format, std::nextafter(middle, 0.0F));
      wrong += failures<S>(format, std::nextafter(middle, 1e30F));
    }
  }
  for (const float value : {0.0F, 1e-45F, 1e-38F, 447.9F, 448.1F, 463.9F, 464.1F, 479.9F, 480.0F, 61439.9F, 65535.9F,
                            65536.0F, 3.4e38F, static_cast<float>(kInfinity), static_cast<float>(kNaN)}) {
    wrong += failures<S>(format, value);
  }
  std::mt19937 generator(1);
  for (int i = 0; i < 100'000; ++i)
    wrong += failures<S>(format, std::bit_cast<float>(static_cast<uint32_t>(generator())));
  CHECK(wrong == 0);
}

double computed(RedOp red, double a, double b) {
  switch (red) {
    case RedOp::SUM:
      return a + b;
    case RedOp::PRODUCT:
      return a * b;
    case RedOp::MIN:
      return std::isnan(a) || std::isnan(b) ? kNaN : std::min(a, b);
    default:
      return std::isnan(a) || std::isnan(b) ? kNaN : std::max(a, b);
  }
}

// A copy of elements that begins some elements behind an aligned address, as a view of a tensor may, between guards.
class Shifted {
 public:
  Shifted(const void* content, std::size_t bytes, std::size_t element, std::size_t elements)
      : front_(std::min<std::size_t>(element, 8) * elements), memory_(front_ + bytes + kBehind, kGuard) {
    std::memcpy(data(), content, bytes);
  }

  std::byte* data() { return memory_.data() + front_; }
  bool intact() const {
    const auto guards = [](auto begin, auto end) { return std::count(begin, end, kGuard) == end - begin; };
    return guards(memory_.begin(), memory_.begin() + static_cast<std::ptrdiff_t>(front_)) &&
           guards(memory_.end() - static_cast<std::ptrdiff_t>(kBehind), memory_.end());
  }

 private:
  static constexpr std::size_t kBehind = 64;  // a vector
  static constexpr std::byte kGuard{0x5A};
  std::size_t front_;
  std::vector<std::byte> memory_;
};

void check_combine(const Format& format, RedOp red) {
  std::vector<uint8_t> left(65536), right(65536);
  for (std::size_t i = 0; i < left.size(); ++i) {
    left[i] = static_cast<uint8_t>(i & 255);
    right[i] = static_cast<uint8_t>(i >> 8);
  }
  Shifted into(left.data(), left.size(), 1, 1), from(right.data(), right.size(), 1, 3);
  combine(into.data(), from.data(), 65536, format.dtype, red);
  int wrong = 0;
  for (int i = 0; i < 65536; ++i) {
    const double want = format.value(format.nearest(computed(red, format.value(i & 255), format.value(i >> 8))));
    wrong += same(format.value(static_cast<int>(into.data()[i])), want) ? 0 : 1;
  }
  CHECK(wrong == 0 && into.intact());
}

void check_divide(const Format& format, int64_t divisor) {
  std::vector<uint8_t> values(256);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint8_t>(i);
  divide(values.data(), 256, format.dtype, divisor);
  int wrong = 0;
  for (int i = 0; i < 256; ++i) {
    const double want = format.value(format.nearest(format.value(i) / static_cast<double>(divisor)));
    wrong += same(format.value(values[static_cast<std::size_t>(i)]), want) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST(formats_have_the_values_of_their_definition) {
  CHECK(kE4M3.value(0x7E) == 448 && kE4M3.value(0x08) == 0x1p-6 && kE4M3.value(0x01) == 0x1p-9);
  CHECK(kE5M2.value(0x7B) == 57344 && kE5M2.value(0x04) == 0x1p-14 && kE5M2.value(0x01) == 0x1p-16);
  CHECK(std::isnan(kE4M3.value(0x7F)) && kE5M2.value(0xFC) == -kInfinity && std::isnan(kE5M2.value(0x7D)));
  check_loads<E4M3>(kE4M3);
  check_loads<E5M2>(kE5M2);
}

TEST(stores_round_to_nearest_even) {
  check_stores<E4M3>(kE4M3);
  check_stores<E5M2>(kE5M2);
  // Overflow as torch has it: the one saturates, infinity too; the other becomes infinity.
  CHECK(store<E4M3>(1e9F).bits == 0x7E && store<E4M3>(static_cast<float>(-kInfinity)).bits == 0xFE);
  CHECK(store<E5M2>(61439.9F).bits == 0x7B && store<E5M2>(61440.0F).bits == 0x7C && store<E5M2>(-1e9F).bits == 0xFC);
}

TEST(division_by_a_power_of_two_rounds_like_a_division) {
  std::mt19937 random(11);
  for (const int64_t divisor : {2, 8, 1 << 20}) {
    std::vector<float> values(4096), quotients(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = std::bit_cast<float>(static_cast<uint32_t>(random()));  // subnormal numbers and NaNs, too
      quotients[i] = values[i] / static_cast<float>(divisor);
    }
    divide(values.data(), std::ssize(values), DType::Float, divisor);
    for (std::size_t i = 0; i < values.size(); ++i) CHECK(same(values[i], quotients[i]));
  }
}

TEST(products_of_complex_numbers_round_each_product) {
  std::mt19937 random(12);
  std::uniform_real_distribution<float> values(-1, 1);
  std::vector<Complex<float>> into(4096), from(into.size()), expected(into.size());
  for (std::size_t i = 0; i < into.size(); ++i) {
    into[i] = {values(random), values(random)};
    from[i] = {values(random), values(random)};
    const volatile float products[] = {into[i].re * from[i].re, into[i].im * from[i].im, into[i].re * from[i].im,
                                       into[i].im * from[i].re};
    expected[i] = {products[0] - products[1], products[2] + products[3]};
  }
  combine(into.data(), from.data(), std::ssize(into), DType::ComplexFloat, RedOp::PRODUCT);
  for (std::size_t i = 0; i < into.size(); ++i) {
    CHECK(into[i].re == expected[i].re && into[i].im == expected[i].im);
  }
}

TEST(all_pairs_of_values) {
  for (const Format& format : {kE4M3, kE5M2}) {
    for (const auto red : {RedOp::SUM, RedOp::PRODUCT, RedOp::MIN, RedOp::MAX}) check_combine(format, red);
    for (const int64_t divisor : {1, 2, 3, 4, 7, 1000}) check_divide(format, divisor);
  }
}

TEST(short_floats_are_floats_to_the_core) {
  for (const auto dtype : {DType::Float8_e4m3fn, DType::Float8_e5m2}) {
    CHECK(size_of(dtype) == 1 && class_of(dtype) == DTypeClass::Half);
    CHECK(defined(dtype, RedOp::AVG) && defined(dtype, RedOp::MAX) && !defined(dtype, RedOp::BAND));
  }
  CHECK(row(DType::Float8_e4m3fn).name == "float8_e4m3fn" && row(DType::Float8_e5m2).name == "float8_e5m2");
}

template <class Action>
bool refuses(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code() == ErrorCode::InvalidType;
  }
  return false;
}

// Every value of a 16- or 8-bit type: the integers order as the numbers do, and a NaN is on the side that wins.
template <class S, class I>
void check_order(DType dtype) {
  constexpr int kValues = 1 << (8 * sizeof(S));
  for (const bool largest : {true, false}) {
    std::vector<S> values(kValues);
    for (int i = 0; i < kValues; ++i) values[static_cast<std::size_t>(i)] = std::bit_cast<S>(static_cast<I>(i));
    const auto numbers = values;
    to_ordered(values.data(), kValues, dtype, largest);
    std::vector<std::pair<I, float>> pairs;
    for (std::size_t i = 0; i < values.size(); ++i) pairs.emplace_back(std::bit_cast<I>(values[i]), load(numbers[i]));
    std::sort(pairs.begin(), pairs.end(), [](auto a, auto b) { return a.first < b.first; });
    if (!largest) std::reverse(pairs.begin(), pairs.end());
    int wrong = 0;
    bool seen_nan = false;
    for (std::size_t i = 1; i < pairs.size(); ++i) {
      seen_nan = seen_nan || std::isnan(pairs[i].second);
      if (seen_nan) {
        wrong += std::isnan(pairs[i].second) ? 0 : 1;
      } else {
        wrong += (largest ? pairs[i - 1].second <= pairs[i].second : pairs[i - 1].second >= pairs[i].second) ? 0 : 1;
      }
    }
    CHECK(seen_nan && wrong == 0);
    from_ordered(values.data(), kValues, dtype);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float number = load(numbers[i]);
      wrong += std::isnan(number) ? !std::isnan(load(values[i])) : std::memcmp(&values[i], &numbers[i], sizeof(S)) != 0;
    }
    CHECK(wrong == 0);
  }
}

TEST(integers_in_the_order_of_numbers) {
  check_order<E4M3, int8_t>(DType::Float8_e4m3fn);
  check_order<E5M2, int8_t>(DType::Float8_e5m2);
  check_order<Half, int16_t>(DType::Half);
  check_order<Brain, int16_t>(DType::BFloat16);
  std::vector<double> values = {-kInfinity, -1e300, -1, -5e-324, -0.0, 0.0, 5e-324, 2, 1e300, kInfinity, kNaN, -kNaN};
  to_ordered(values.data(), 12, DType::Double, true);
  std::vector<int64_t> keys(values.size());
  std::memcpy(keys.data(), values.data(), sizeof(double) * keys.size());
  CHECK(std::is_sorted(keys.begin(), keys.end()) && keys[10] == keys[11] && keys[9] < keys[10]);
  CHECK(refuses([] { to_ordered(nullptr, 0, DType::Int, true); }));
}

TEST(products_with_a_factor) {
  std::vector<float> values = {1, -2, 3};
  multiply(values.data(), 3, DType::Float, 0.5, nullptr);
  CHECK(values == std::vector<float>({0.5F, -1, 1.5F}));
  const float factor = 4;
  multiply(values.data(), 3, DType::Float, 0.5, &factor);
  CHECK(values == std::vector<float>({2, -4, 6}));
  CHECK(refuses([] { multiply(nullptr, 0, DType::Bool, 1, nullptr); }));
}

namespace {

float wide(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// To the nearest bfloat16, ties to even; of finite values.
uint16_t narrow(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

}  // namespace

TEST(combine_all_rounds_small_types_once) {
  std::mt19937 random(2);
  std::uniform_real_distribution<float> values(-3.0F, 3.0F);
  int differ = 0;
  for (const std::size_t ranks : {2, 3, 5}) {
    constexpr std::size_t kCount = 1'001;
    std::vector<std::vector<uint16_t>> data(ranks, std::vector<uint16_t>(kCount));
    std::vector<Shifted> sources;
    for (auto& one : data) {
      std::ranges::generate(one, [&] { return narrow(values(random)); });
      sources.emplace_back(one.data(), sizeof(uint16_t) * kCount, sizeof(uint16_t), sources.size() + 1);
    }
    std::vector<const void*> pointers;
    for (auto& one : sources) pointers.push_back(one.data());
    std::vector<uint16_t> out(kCount);
    for (const bool average : {false, true}) {
      Shifted got(out.data(), sizeof(uint16_t) * kCount, sizeof(uint16_t), 3);
      combine_all(got.data(), pointers, kCount, DType::BFloat16, average ? RedOp::AVG : RedOp::SUM);
      CHECK(got.intact());
      std::memcpy(out.data(), got.data(), sizeof(uint16_t) * kCount);
      for (std::size_t i = 0; i < kCount; ++i) {
        float sum = 0;
        uint16_t rounded = 0;
        for (const auto& one : data) {
          sum += wide(one[i]);
          rounded = narrow(wide(rounded) + wide(one[i]));
        }
        CHECK(out[i] == narrow(average ? sum / static_cast<float>(ranks) : sum));
        if (!average && rounded != out[i]) ++differ;
      }
    }
  }
  CHECK(differ > 100);  // else the values tell nothing
}

namespace {

// Numbers of many magnitudes, whose sums and products depend on the order: one of 8 bytes, or two of 4. For other
// types, zeros and ones.
uint64_t random_word(DType dtype, std::mt19937& random) {
  const auto kind = row(dtype).kind;
  if (kind != DTypeKind::Floating && kind != DTypeKind::Complex) return random() % 2 * 0x0101010101010101u;
  const auto draw = [&] {
    return std::ldexp(std::uniform_real_distribution(-1.0, 1.0)(random), static_cast<int>(random() % 40) - 20);
  };
  if (size_of(dtype) == (kind == DTypeKind::Complex ? 16 : 8)) return std::bit_cast<uint64_t>(draw());
  return std::bit_cast<uint64_t>(std::array{static_cast<float>(draw()), static_cast<float>(draw())});
}

int64_t differing(const void* left, const void* right, int64_t count, std::size_t element) {
  const auto *a = static_cast<const std::byte*>(left), *b = static_cast<const std::byte*>(right);
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i, a += element, b += element) found += std::memcmp(a, b, element) != 0;
  return found;
}

}  // namespace

TEST(combine_all_is_combine_in_rank_order) {
  std::mt19937 random(1);
  int64_t differ = 0;
  for (std::size_t type = 0; type < kDTypes.size(); ++type) {
    const auto dtype = static_cast<DType>(type);
    const auto kind = row(dtype).kind;
    if (kind == DTypeKind::Floating && size_of(dtype) < 4) continue;  // rounded once, not after each source
    for (std::size_t i = 0; i < kReductions.size(); ++i) {
      const auto red = static_cast<RedOp>(i);
      if (!defined(dtype, red) || red == RedOp::AVG) continue;
      for (const std::size_t ranks : {1, 2, 3, 5}) {
        constexpr int64_t kCount = 2'500;
        std::vector<std::vector<uint64_t>> data(ranks, std::vector<uint64_t>(kCount * 2));
        for (auto& one : data) {
          for (auto& word : one) word = random_word(dtype, random);
        }
        auto want = data[0], turned = data[ranks - 1];
        for (std::size_t rank = 1; rank < ranks; ++rank) {
          combine(want.data(), data[rank].data(), kCount, dtype, red);
          combine(turned.data(), data[ranks - 1 - rank].data(), kCount, dtype, red);
        }
        const auto element = static_cast<std::size_t>(size_of(dtype)), bytes = kCount * element;
        if (ranks >= 3) differ += differing(want.data(), turned.data(), kCount, element);
        for (std::size_t in_place = 0; in_place < ranks; ++in_place) {
          std::vector<Shifted> sources;
          for (const auto& one : data)
            sources.emplace_back(one.data(), bytes, element, (in_place + sources.size()) % 4);
          std::vector<const void*> pointers;
          for (auto& one : sources) pointers.push_back(one.data());
          combine_all(sources[in_place].data(), pointers, kCount, dtype, red);
          CHECK(std::memcmp(sources[in_place].data(), want.data(), bytes) == 0);
          CHECK(std::ranges::all_of(sources, &Shifted::intact));
        }
      }
    }
  }
  CHECK(differ > 100);  // else the values tell nothing
}
