// SPDX-License-Identifier: Apache-2.0
// THE op table. One row defines the enumerator, the name, the checks, the fallback, the Python function of that name,
// its docstring and stub, and the row of the support matrix. Tests and benchmarks walk it through `_C.ops()`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace mcr {

/// How the two buffers of an op relate in a group of n ranks.
enum class Extent : uint8_t {
  None,      // no data
  Same,      // one buffer, read and written in place
  Gather,    // output = the inputs of all ranks
  Scatter,   // input = the outputs of all ranks
  Exchange,  // both hold one block per rank
};

enum Trait : uint8_t {
  kRooted = 1,    // one rank is the root
  kReduces = 2,   // combines elements
  kVectored = 4,  // has a form with counts and displacements
  kPeer = 8,      // point-to-point
  // Changes that passes may make to a call. A pass leaves an op without the trait unchanged.
  kCuttable = 16,       // any range of the block (the same range of every block) is a call of its own
  kFusible = 32,        // small calls may become one; algorithms/fuse.cc lays out their memory
  kCompressible = 64,   // has a compressed form; passes/compress/compressed.cc makes it
  kHierarchical = 128,  // has a form in steps over levels of links; algorithms/hierarchy.cc makes it
};

/// Bytes on the busiest link divided by bytes of data, on n ranks: the factor between busbw and algbw, as in nccl-tests
/// (PERFORMANCE.md).
enum class Bus : uint8_t {
  None,    // 0: no data
  Once,    // 1
  Others,  // (n - 1) / n: a rank's own block stays where it is
  Twice,   // 2 (n - 1) / n
};

inline constexpr std::array<std::string_view, 4> kBuses = {"none", "once", "others", "twice"};

/// How dispatch handles a backend that lacks the op for a type or reduction.
enum class Fallback : uint8_t {
  None,      // an Unsupported error
  Exchange,  // sends, receives and a local combination (emulate.cc)
};

// name, extents, traits, bus, fallback, Python signature (the bindings add the shared keywords), one-line summary. In a
// signature, `name:kind` gives a parameter's kind where its name alone does not (bindings/python/signature.cc).
#define MCR_OPS(X)                                                                                                \
  X(broadcast, Same, kRooted | kCuttable | kFusible | kCompressible | kHierarchical, Once, Exchange,              \
    "tensor, src=None, group=None, async_op=False, group_src=None",                                               \
    "Copies the root's tensor to every rank of the group.")                                                       \
  X(all_reduce, Same, kReduces | kCuttable | kFusible | kCompressible | kHierarchical, Twice, Exchange,           \
    "tensor, op=SUM, group=None, async_op=False",                                                                 \
    "Reduces the tensors of all ranks element by element; every rank gets the result in place.")                  \
  X(reduce, Same, kRooted | kReduces | kCuttable | kHierarchical, Once, Exchange,                                 \
    "tensor, dst=None, op=SUM, group=None, async_op=False, group_dst=None",                                       \
    "Reduces the tensors of all ranks into the root's tensor; the other ranks' tensors are unchanged.")           \
  X(all_gather, Gather, kVectored | kCuttable | kFusible | kCompressible | kHierarchical, Others, Exchange,       \
    "tensor_list:outputs, tensor:input, group=None, async_op=False",                                              \
    "Gathers every rank's tensor into a list (or one tensor) on every rank.")                                     \
  X(reduce_scatter, Scatter, kReduces | kVectored | kCuttable | kFusible | kCompressible | kHierarchical, Others, \
    Exchange, "output, input_list:inputs, op=SUM, group=None, async_op=False",                                    \
    "Reduces a list (or one tensor) of blocks over all ranks and leaves block i on rank i.")                      \
  X(all_to_all, Exchange, kVectored | kCuttable | kCompressible | kHierarchical, Others, Exchange,                \
    "output_tensor_list:outputs, input_tensor_list:inputs, group=None, async_op=False",                           \
    "Sends the i-th tensor of the input list to rank i and receives the i-th of the output list from it.")        \
  X(gather, Gather, kRooted | kVectored | kHierarchical, Others, Exchange,                                        \
    "tensor:input, gather_list:outputs=None, dst=None, group=None, async_op=False, group_dst=None",               \
    "Gathers every rank's tensor into a list (or one tensor) on the root.")                                       \
  X(scatter, Scatter, kRooted | kVectored | kHierarchical, Others, Exchange,                                      \
    "tensor:output, scatter_list:inputs=None, src=None, group=None, async_op=False, group_src=None",              \
    "Sends the i-th tensor of the root's list (or the i-th block of its tensor) to rank i.")                      \
  X(barrier, None, kHierarchical, None, Exchange, "group=None, async_op=False, device_ids=None, timeout=None",    \
    "Returns when every rank of the group has entered it.")                                                       \
  X(send, Same, kPeer | kCompressible, Once, None, "tensor, dst=None, group=None, tag=0, group_dst=None",         \
    "Sends a tensor to one rank; returns when the tensor may be changed.")                                        \
  X(recv, Same, kPeer | kCompressible, Once, None, "tensor, src=None, group=None, tag=0, group_src=None",         \
    "Receives a tensor from one rank, or from any (src=None); returns the sender's global rank.")

enum class Op : uint8_t {
#define X(name, ...) name,
  MCR_OPS(X)
#undef X
};

struct OpRow {
  std::string_view name;
  Extent extent;
  uint8_t traits;
  Bus bus;
  Fallback fallback;
  std::string_view signature;
  std::string_view summary;
  constexpr bool is(Trait trait) const { return (traits & trait) != 0; }
};

inline constexpr std::array kOps = {
#define X(name, extent, traits, bus, fallback, signature, summary) \
  OpRow{#name, Extent::extent, traits, Bus::bus, Fallback::fallback, signature, summary},
    MCR_OPS(X)
#undef X
};

constexpr const OpRow& row(Op op) { return kOps[static_cast<std::size_t>(op)]; }

/// Other public names of the ops: torch's single-buffer forms, the vectored forms, the terms of MPI and of the paper.
struct Spelling {
  std::string_view name;
  Op op;
  std::string_view signature;
  std::string_view summary;
  bool starts = false;  // always asynchronous
};

inline constexpr std::array kSpellings = {
    Spelling{"bcast", Op::broadcast, "tensor, root=None, group=None, async_op=False", "MPI's name for broadcast."},
    Spelling{"all_gather_into_tensor", Op::all_gather,
             "output_tensor:output, input_tensor:input, group=None, async_op=False",
             "Gathers every rank's tensor, concatenated in rank order, into one tensor on every rank."},
    Spelling{"all_gather_single", Op::all_gather,
             "output_tensor:output, input_tensor:input, group=None, async_op=False",
             "torch 2.13's name for all_gather_into_tensor."},
    Spelling{"reduce_scatter_tensor", Op::reduce_scatter, "output, input, op=SUM, group=None, async_op=False",
             "Reduces one tensor of equal blocks over all ranks and leaves block i on rank i."},
    Spelling{"reduce_scatter_single", Op::reduce_scatter, "output, input, op=SUM, group=None, async_op=False",
             "torch 2.13's name for reduce_scatter_tensor."},
    Spelling{
        "all_to_all_single", Op::all_to_all,
        "output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False",
        "Sends block i of the input to rank i; blocks are rows of the first dimension, equal or as the splits say."},
    Spelling{"gatherv", Op::gather,
             "output, input, root, rcounts, displs:out_displs=None, group=None, async_op=False, *, size_hint=None",
             "Gathers rcounts[i] elements from rank i to output[displs[i]:] on the root."},
    Spelling{"scatterv", Op::scatter,
             "output, input, root, scounts, displs:in_displs=None, group=None, async_op=False, *, size_hint=None",
             "Sends scounts[i] elements at input[displs[i]:] of the root to rank i."},
    Spelling{"all_gatherv", Op::all_gather,
             "output, input, rcounts, displs:out_displs=None, group=None, async_op=False, *, size_hint=None",
             "Gathers rcounts[i] elements from rank i to output[displs[i]:] on every rank."},
    Spelling{
        "all_to_allv", Op::all_to_all,
        "output, input, scounts, rcounts, sdispls=None, rdispls=None, group=None, async_op=False, *, size_hint=None",
        "Sends scounts[i] elements at input[sdispls[i]:] to rank i and receives rcounts[i] at output[rdispls[i]:]."},
    Spelling{"reduce_scatterv", Op::reduce_scatter,
             "output, input, rcounts:in_counts, op=SUM, group=None, async_op=False, *, size_hint=None",
             "Reduces over all ranks and leaves the i-th block, of rcounts[i] elements, on rank i."},
    Spelling{"isend", Op::send, "tensor, dst=None, group=None, tag=0, group_dst=None",
             "Starts sending a tensor to one rank and returns a Work.", true},
    Spelling{"irecv", Op::recv, "tensor, src=None, group=None, tag=0, group_src=None",
             "Starts receiving a tensor from one rank, or from any (src=None), and returns a Work.", true},
};

}  // namespace mcr
