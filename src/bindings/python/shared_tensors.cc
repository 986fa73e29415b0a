// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/from_blob.h>
#include <torch/csrc/utils/pybind.h>

#include "base/free_memory.h"
#include "base/shared_heap.h"
#include "bindings/python/parts.h"
#include "bindings/python/unlocked.h"

namespace py = pybind11;

namespace mcr::python {

namespace {

at::Tensor shared_bytes(int64_t bytes) {
  auto* const memory = unlocked([&] { return SharedHeap::instance().allocate(bytes); });
  const auto free = [](void* data) { SharedHeap::instance().free(static_cast<std::byte*>(data)); };
  return at::from_blob(memory, {bytes}, free, at::kByte);
}

}  // namespace

void add_shared_tensors(py::module_& module) {
  module.def("_shared_bytes", shared_bytes, py::arg("bytes"),
             "Memory that the processes of the host can map, as a tensor of bytes (mcr_dl.empty_shared).");
  module.def(
      "_free_memory", [](bool swaps) { return free_memory(swaps); }, py::arg("swaps"),
      "The bytes of memory that this process can still take; the largest 64-bit number if the system does not say. "
      "`swaps`: memory that the system can swap out counts as free.");
}

}  // namespace mcr::python
