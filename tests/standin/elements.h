// SPDX-License-Identifier: Apache-2.0
// NCCL's element types and reductions on host memory. Plain and slow: what the tests compare with must be easy to read.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace standin {

enum Type { Int8, Uint8, Int32, Uint32, Int64, Uint64, Float16, Float32, Float64, Bfloat16, Float8e4m3, Float8e5m2 };
enum Op { Sum, Prod, Max, Min, Avg, Created };

inline constexpr int kTypes = 12;
inline constexpr std::array<const char*, kTypes> kTypeNames = {
    "ncclInt8",    "ncclUint8",   "ncclInt32",   "ncclUint32",   "ncclInt64",      "ncclUint64",
    "ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};
inline constexpr std::array<const char*, 6> kOpNames = {"ncclSum", "ncclProd", "ncclMax",
                                                        "ncclMin", "ncclAvg",  "a created op"};

std::size_t size_of(int type);

/// out[i] = the reduction of parts[0][i], parts[1][i], ..., in this order. A created op is a sum.
void combine(int type, int op, const std::vector<const std::byte*>& parts, std::byte* out, std::size_t count);

/// data[i] *= *factor, both of the type.
void scale(int type, const std::byte* factor, std::byte* data, std::size_t count);

}  // namespace standin
