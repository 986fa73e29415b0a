// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/devices.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <utility>

#include "base/error.h"

namespace mcr::python {

namespace {

// Turns c10::Error, which the core does not know, into Error.
template <class Action>
auto guarded(Action action) {
  try {
    return action();
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::Backend, error.what_without_backtrace());
  }
}

// libc10_cuda depends on the CUDA runtime that this torch uses, so its symbols are found through it. Null: not found.
template <class Function>
Function* of_cuda(const char* name) {
  void* library = dlopen("libc10_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
}

// torch looks up and sets the device around each use of an event, which takes longer than the use. Callers have made
// the device current, so the CUDA runtime is called instead, once torch has made the event, unless torch traces events
// (torch.cuda._sanitizer) or the runtime is not found. If the runtime fails, torch is called too, and reports it.
class TorchEvent final : public Event {
 public:
  explicit TorchEvent(bool timing)
      : event_(c10::DeviceType::CUDA, timing ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT) {}

  void record(const Stream& stream) override {
    static auto* const direct = of_cuda<int(void*, void*)>("cudaEventRecord");
    if (direct_for(direct) && direct(event_.eventId(), stream.handle) == 0) return;
    guarded([&] { event_.record(torch_stream(stream)); });
  }
  void join(const Stream& stream) override {
    static auto* const direct = of_cuda<int(void*, void*, unsigned)>("cudaStreamWaitEvent");
    if (direct_for(direct) && direct(stream.handle, event_.eventId(), 0) == 0) return;
    guarded([&] { event_.block(torch_stream(stream)); });
  }
  bool ready() override {
    return guarded([&] { return event_.query(); });
  }
  double since(Event& earlier) override {
    return guarded([&] { return static_cast<TorchEvent&>(earlier).event_.elapsedTime(event_); });
  }

 private:
  template <class Function>
  bool direct_for(Function* function) const {
    return function != nullptr && event_.eventId() != nullptr && c10::impl::GPUTrace::get_trace() == nullptr;
  }

  c10::Event event_;
};

// Memory that is owned by a torch tensor, on the host or a device.
std::shared_ptr<void> memory_of(at::Tensor tensor) {
  void* data = tensor.data_ptr();
  return {data, [kept = std::move(tensor)](void*) {}};
}

class TorchRuntime final : public DeviceRuntime {
 public:
  Stream current(Device device) override { return from_torch(guard_.getStream(torch_device(device))); }

  Stream exchange(const Stream& stream) override { return from_torch(guard_.exchangeStream(torch_stream(stream))); }

  Device exchange(Device device) override {
    return guarded([&] { return Device{DeviceType::CUDA, guard_.exchangeDevice(torch_device(device)).index()}; });
  }

  void restore(Device device) noexcept override { guard_.uncheckedSetDevice(torch_device(device)); }

  Stream make_stream(Device device, bool high_priority) override {
    return guarded([&] { return from_torch(guard_.getStreamFromGlobalPool(torch_device(device), high_priority)); });
  }

  std::unique_ptr<Event> make_event(bool timing) override { return std::make_unique<TorchEvent>(timing); }

  std::shared_ptr<void> allocate(Device device, int64_t bytes) override {
    return guarded([&] { return memory_of(at::empty({bytes}, bytes_on(torch_device(device)))); });
  }

  std::shared_ptr<void> allocate_pinned(Device, int64_t bytes) override {
    return guarded([&] { return memory_of(at::empty({bytes}, bytes_on(at::kCPU).pinned_memory(true))); });
  }

  void copy(void* to, const void* from, int64_t bytes, CopyKind kind, const Stream& stream) override {
    guarded([&] {
      const c10::StreamGuard current(torch_stream(stream));
      const auto device = torch_device(stream.device);
      const auto view = [&](void* data, bool host) {
        const c10::Device where = host ? c10::Device(at::kCPU) : device;
        return at::for_blob(data, bytes).options(bytes_on(where)).target_device(where).make_tensor();
      };
      const auto source = view(const_cast<void*>(from), kind == CopyKind::ToDevice);
      view(to, kind == CopyKind::ToHost).copy_(source, /*non_blocking=*/true);
    });
  }

  bool capturing(const Stream& stream) override { return is_capturing(torch_stream(stream)); }

  void enter_background() override {
    // A query for other streams must not become part of a graph that another thread captures.
    if (exchange_capture_mode_ == nullptr) return;
    int mode = kCaptureModeThreadLocal;
    exchange_capture_mode_(&mode);
  }

 private:
  static constexpr int kCaptureModeThreadLocal = 1;  // cudaStreamCaptureModeThreadLocal

  static at::TensorOptions bytes_on(c10::Device device) { return at::TensorOptions(at::kByte).device(device); }

  Stream from_torch(const c10::Stream& stream) const {
    return {{DeviceType::CUDA, stream.device_index()}, stream.id(), handle_of(guard_, stream)};
  }

  // Older torch has this guard only in its CUDA library.
  template <class Guard>
  void* handle_of(const Guard& guard, const c10::Stream& stream) const {
    if constexpr (requires { guard.getStreamNativeHandle(stream); }) {
      return guard.getStreamNativeHandle(stream);
    } else {
      if (native_handle_ == nullptr) throw Error(ErrorCode::Unavailable, "this torch does not tell its CUDA streams");
      return native_handle_(&stream);
    }
  }

  // Older torch has no such query: then its CUDA library is asked.
  template <class S>
  bool is_capturing(const S& stream) const {
    if constexpr (requires { stream.is_capturing(); }) {
      return stream.is_capturing();
    } else {
      int status = 0;
      if (capture_status_ == nullptr) return false;
      return capture_status_(handle_of(guard_, stream), &status) == 0 && status != 0;
    }
  }

  c10::impl::VirtualGuardImpl guard_{c10::DeviceType::CUDA};
  int (*exchange_capture_mode_)(int*) = of_cuda<int(int*)>("cudaThreadExchangeStreamCaptureMode");
  void* (*native_handle_)(const c10::Stream*) =
      of_cuda<void*(const c10::Stream*)>("_ZNK3c104cuda10CUDAStream6streamEv");
  int (*capture_status_)(void*, int*) = of_cuda<int(void*, int*)>("cudaStreamIsCapturing");
};

}  // namespace

c10::Device torch_device(Device device) {
  return device.type == DeviceType::CPU
             ? c10::Device(c10::DeviceType::CPU)
             : c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device.index));
}

c10::Stream torch_stream(const Stream& stream) {
  return c10::Stream(c10::Stream::UNSAFE, torch_device(stream.device), static_cast<c10::StreamId>(stream.id));
}

void add_devices() {
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return;
  DeviceRuntime::add(DeviceType::CUDA, std::make_unique<TorchRuntime>());
}

// torch uses the address of an external stream as its id.
Stream external_stream(Device device, uintptr_t handle) {
  return {device, static_cast<int64_t>(handle), reinterpret_cast<void*>(handle)};  // NOLINT
}

}  // namespace mcr::python
