// SPDX-License-Identifier: Apache-2.0
// all_reduce of sparse tensors: all ranks gather the entries of each one.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/types.h"
#include "bindings/torch/backend.h"
#include "bindings/torch/error.h"

namespace mcr::python {

namespace {

using c10d::OpType;
using TensorList = TorchBackend::TensorList;

// The entries of a rank, and what must be equal on all ranks.
enum Fact : int64_t { kEntries, kSparseDims, kDenseDims, kType, kShape, kFacts };

std::array<int64_t, kFacts> facts_of(const at::Tensor& tensor) {
  uint64_t shape = 0;
  for (const int64_t size : tensor.sizes()) shape = digest(shape, static_cast<uint64_t>(size));
  return {tensor._nnz(), tensor.sparse_dim(), tensor.dense_dim(), static_cast<int64_t>(tensor.scalar_type()),
          static_cast<int64_t>(shape)};
}

// Raises on all ranks if the tensors cannot be added; `facts`: a row for each rank.
void expect_equal(const at::Tensor& facts, const std::string& what) {
  for (int64_t rank = 1; rank < facts.size(0); ++rank) {
    if (facts[rank].slice(0, kSparseDims).equal(facts[0].slice(0, kSparseDims))) continue;
    throw Error(ErrorCode::InvalidArgument,
                what +
                    "expected equal shapes, element types and numbers of sparse dimensions on all ranks, got others "
                    "on rank " +
                    std::to_string(rank) + " of the group than on rank 0");
  }
}

}  // namespace

TorchBackend::TorchWorkPtr TorchBackend::allreduce_sparse(TensorList& tensors, const c10d::AllreduceOptions& opts) {
  return for_torch([&] { return sum_of_entries(tensors, opts); });
}

TorchBackend::TorchWorkPtr TorchBackend::sum_of_entries(TensorList& tensors, const c10d::AllreduceOptions& opts) {
  auto& tensor = tensors.front();
  const auto what = TorchCall(*group_, Op::all_reduce, opts.timeout).what() + ": a sparse tensor: ";
  if (opts.reduceOp != c10d::ReduceOp::SUM) {
    const auto got = static_cast<RedOp>(static_cast<uint8_t>(opts.reduceOp.op_));  // the orders are equal: types.h
    throw Error(ErrorCode::Unsupported, what + "expected the reduction SUM, got " + std::string(name(got)));
  }
  const auto mine = tensor.coalesce();
  const auto own = facts_of(mine);
  const auto fact = at::tensor(at::ArrayRef<int64_t>(own), at::kLong).to(tensor.device());
  const auto facts = at::empty({getSize(), kFacts}, fact.options());
  TorchCall(*group_, Op::all_gather, opts.timeout).in(fact).out(facts).run();
  const auto known = facts.cpu();
  expect_equal(known, what);
  const auto counts = known.select(1, kEntries).contiguous();

  const auto gather = [&](const at::Tensor& rows) {
    auto shape = rows.sizes().vec();
    shape[0] = counts.sum().item<int64_t>();
    const auto row = c10::multiply_integers(shape.begin() + 1, shape.end());
    const auto elements = counts * row;
    const int64_t* first = elements.const_data_ptr<int64_t>();
    auto gathered = at::empty(shape, rows.options());
    TorchCall(*group_, Op::all_gather, opts.timeout)
        .in(rows)
        .out(gathered)
        .out_counts(std::vector<int64_t>(first, first + getSize()))
        .run();
    return gathered;
  };
  const auto indices = gather(mine.indices().t().contiguous()).t();
  const auto values = gather(mine.values().contiguous());
  const uint64_t sequence = ++sequence_;
  auto done = hook(OpType::_ALLREDUCE_SPARSE, sequence);
  const auto sum = at::sparse_coo_tensor(indices, values, mine.sizes()).coalesce();
  {
    const at::AutoDispatchBelowADInplaceOrView guard;  // the tensor may be a leaf that requires a gradient
    tensor.copy_(sum);
  }
  if (done != nullptr) run_hook(std::move(done), "all_reduce of a sparse tensor");
  if (!opts.asyncOp) return CompleteWork::of_blocking_call(getRank(), OpType::_ALLREDUCE_SPARSE, sequence);
  return c10::make_intrusive<CompleteWork>(getRank(), OpType::_ALLREDUCE_SPARSE, sequence, TensorList{tensor});
}

}  // namespace mcr::python
