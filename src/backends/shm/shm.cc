// SPDX-License-Identifier: Apache-2.0
// Shared memory between processes of one host (docs/shm.md).
#include <algorithm>
#include <utility>

#include "backends/shm/engine.h"
#include "base/process.h"

namespace mcr::shm {
namespace {

constexpr int64_t kMost = 64 << 20;  // bytes per group, if the variable does not say and they suffice

int64_t most(int ranks) { return bytes_of_variable(kBound, std::max(kMost, Layout::least(ranks)), "shm: "); }

class ShmCommunicator final : public OpMethods<ShmCommunicator> {
 public:
  explicit ShmCommunicator(std::shared_ptr<Engine> engine) : engine_(std::move(engine)) {}
  ~ShmCommunicator() override { engine_->leave(); }

  bool supports(const Call& call) const override {
    if (!has(call.op) || call.device.type != DeviceType::CPU) return false;
    return !row(call.op).is(kReduces) || defined(call.dtype, call.red);
  }
  bool forms_match() const override { return true; }
  bool takes_in_place(const Call& call) const override { return supports(call) && engine_->takes_in_place(call); }
  bool brief(const Call& call) const override { return !call.vectored && engine_->brief(call); }
  void abort() noexcept override { engine_->abort(); }
  // On shared cores, each nap of a progress thread ends with the start of a thread that takes the core of a rank.
  int patience() const override { return engine_->shares_cores() ? 4 : 1; }

  void broadcast(const Call& call, Lane& lane) { engine_->collective(call, lane); }
  void all_reduce(const Call& call, Lane& lane) { engine_->collective(call, lane); }
  void reduce(const Call& call, Lane& lane) { engine_->collective(call, lane); }
  void all_gather(const Call& call, Lane& lane) { engine_->collective(call, lane); }
  void reduce_scatter(const Call& call, Lane& lane) { engine_->collective(call, lane); }
  void barrier(const Call& call, Lane& lane) { engine_->collective(call, lane); }
  void all_to_all(const Call& call, Lane& lane) { counted(call, lane); }
  void gather(const Call& call, Lane& lane) { counted(call, lane); }
  void scatter(const Call& call, Lane& lane) { counted(call, lane); }
  void send(const Call& call, Lane& lane) { engine_->message(call, lane); }
  void recv(const Call& call, Lane& lane) { engine_->message(call, lane); }

 private:
  // In the vectored forms, not all ranks know all counts.
  void counted(const Call& call, Lane& lane) {
    return call.vectored ? engine_->exchange(call, lane) : engine_->collective(call, lane);
  }

  std::shared_ptr<Engine> engine_;
};

class ShmBackend final : public Backend {
 public:
  std::string library() const override { return "shared memory of one host"; }
  std::unique_ptr<Communicator> connect(const GroupSpec& spec) override {
    auto meeting = meet(spec, [&] { return most(spec.size()); });
    return std::make_unique<ShmCommunicator>(std::make_shared<Engine>(spec, std::move(meeting)));
  }
};

std::unique_ptr<Backend> create(const std::string&) { return std::make_unique<ShmBackend>(); }

}  // namespace

extern "C" const Plugin mcr_dl_plugin = {kPluginVersion, create};

}  // namespace mcr::shm
