// SPDX-License-Identifier: Apache-2.0
// Two libraries of the group for one message: it is cut, and the pieces travel at the same time. For machines on which
// each library has a network of its own. The backend's name says which: "gloo+mpi".
#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <optional>
#include <utility>

#include "base/scratch.h"
#include "plugin/backend.h"

namespace mcr {

namespace {

// Percent of a message that go over the first library, and the variants' names. The backend itself cuts in halves.
constexpr std::array<int64_t, 5> kShares = {50, 25, 33, 67, 75};
constexpr std::array<std::string_view, 4> kVariants = {"25", "33", "67", "75"};

constexpr int64_t kGrain = 64;            // elements: both pieces begin on a cache line
constexpr int64_t kLeastCut = 64 * 1024;  // bytes: two messages for a shorter one cost more than they save

// What there is of a call on one side: as many rows, one for each rank or a single one, as a piece has columns of.
struct Side {
  Buffer buffer;
  int64_t rows = 1;
  int64_t length() const { return buffer.count / rows; }
};

Side input_of(const Call& call, int ranks) {
  const auto extent = row(call.op).extent;
  return {call.in, extent == Extent::Scatter || extent == Extent::Exchange ? ranks : 1};
}

Side output_of(const Call& call, int ranks) {
  const auto extent = row(call.op).extent;
  return {call.out, extent == Extent::Gather || extent == Extent::Exchange ? ranks : 1};
}

// A range of a side's columns as a buffer of its own: the memory itself if there is one row, else a copy.
class Columns {
 public:
  Columns(const Side& side, DType dtype, int64_t begin, int64_t count)
      : side_(side),
        begin_(begin * size_of(dtype)),
        bytes_(count * size_of(dtype)),
        stride_(side.length() * size_of(dtype)) {
    if (side_.rows > 1) copy_ = Scratch(side_.rows * bytes_);
    buffer_ = {side_.rows > 1 ? copy_.get() : base(), side_.rows * count};
  }

  const Buffer& buffer() const { return buffer_; }
  void gather() const {
    if (side_.rows == 1) return;
    for (int64_t i = 0; i < side_.rows; ++i) std::memcpy(copy_.get() + i * bytes_, base() + i * stride_, size());
  }
  void spread() const {
    if (side_.rows == 1) return;
    for (int64_t i = 0; i < side_.rows; ++i) std::memcpy(base() + i * stride_, copy_.get() + i * bytes_, size());
  }

 private:
  std::byte* base() const { return static_cast<std::byte*>(side_.buffer.data) + begin_; }
  std::size_t size() const { return static_cast<std::size_t>(bytes_); }

  Side side_;
  int64_t begin_, bytes_, stride_;
  Scratch copy_;
  Buffer buffer_;
};

// One piece on its library.
class Piece {
 public:
  Piece(const Call& call, Communicator& communicator, int ranks, int64_t begin, int64_t count)
      : out_(output_of(call, ranks), call.dtype, begin, count) {
    Call part = call;
    part.variant = 0;
    if (call.in.data != nullptr) {
      in_.emplace(input_of(call, ranks), call.dtype, begin, count);
      in_->gather();
      part.in = in_->buffer();
    }
    part.out = out_.buffer();
    Lane lane(false);
    communicator.issue(part, lane);
    requests_ = lane.take();
  }

  /// One step of what is left; an error is kept for rethrow().
  void step() noexcept {
    while (!done()) {
      try {
        if (!requests_[next_]->poll()) return;
      } catch (...) {
        if (!error_) error_ = std::current_exception();
      }
      ++next_;
    }
  }
  bool done() const { return next_ == requests_.size(); }
  bool failed() const { return error_ != nullptr; }
  void rethrow() {
    if (auto error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  }
  void spread() const { out_.spread(); }
  void hurry() {
    for (auto& request : requests_) request->hurry();
  }

 private:
  std::optional<Columns> in_;
  Columns out_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::size_t next_ = 0;
  std::exception_ptr error_;
};

// Each step looks at both: a library that moves on only when it is polled must not stand still meanwhile.
struct Pieces {
  std::array<std::unique_ptr<Piece>, 2> both;  // the second is not there if it could not be started
  bool failed = false;

  void step() {
    for (auto& piece : both) {
      if (piece != nullptr) piece->step();
    }
    for (auto& piece : both) {
      if (piece == nullptr || failed || !piece->failed()) continue;
      failed = true;
      piece->rethrow();
    }
  }
};

// A call has one for each piece, so that an error is seen at once and what still runs is looked after: by the second,
// which is at its end when both pieces are.
class PieceRequest : public Request {
 public:
  PieceRequest(std::shared_ptr<Pieces> pieces, std::size_t mine) : pieces_(std::move(pieces)), mine_(mine) {}

  bool poll() override {
    pieces_->step();
    const auto& [first, second] = pieces_->both;
    if (!first->done() || (mine_ == 1 && !second->done())) return false;
    if (!pieces_->failed) pieces_->both[mine_]->spread();
    return true;
  }
  void hurry() override {
    for (auto& piece : pieces_->both) {
      if (piece != nullptr) piece->hurry();
    }
  }

 private:
  std::shared_ptr<Pieces> pieces_;
  std::size_t mine_;
};

class StripedCommunicator : public Communicator {
 public:
  using Library = std::shared_ptr<Communicator>;
  StripedCommunicator(Library first, Library second, int ranks)
      : first_(std::move(first)), second_(std::move(second)), ranks_(ranks) {}

  bool supports(const Call& call) const override {
    return first_->supports(call) && (!cuttable(call) || second_->supports(call));
  }

  // What is not cut goes over the first library as a whole.
  void issue(const Call& call, Lane& lane) override {
    const int64_t cut = cuttable(call) ? columns_of_first(call) : 0;
    if (cut == 0) {
      Call whole = call;
      whole.variant = 0;
      return first_->issue(whole, lane);
    }
    const int64_t length = output_of(call, ranks_).length();
    auto pieces = std::make_shared<Pieces>();
    pieces->both[0] = std::make_unique<Piece>(call, *first_, ranks_, 0, cut);
    lane.track(std::make_unique<PieceRequest>(pieces, 0));
    pieces->both[1] = std::make_unique<Piece>(call, *second_, ranks_, cut, length - cut);
    lane.track(std::make_unique<PieceRequest>(pieces, 1));
  }

  std::span<const std::string_view> variants() const override { return kVariants; }
  bool varies(const Call& call) const override { return cuttable(call); }
  bool always_starts() const override { return true; }
  bool inline_messages() const override { return first_->inline_messages(); }
  bool packed() const override { return first_->packed(); }
  void begin_batch() override { first_->begin_batch(); }
  void end_batch() override { first_->end_batch(); }
  void check() override {
    first_->check();
    second_->check();
  }
  void abort() noexcept override {
    first_->give_up();
    second_->give_up();
  }

 private:
  static bool cuttable(const Call& call) { return row(call.op).is(kCuttable) && !call.vectored; }

  // By the message's size and the variant alone, which are equal on all ranks. 0: it is not worth cutting.
  int64_t columns_of_first(const Call& call) const {
    if (message_bytes(call, ranks_) < kLeastCut) return 0;
    const int64_t length = output_of(call, ranks_).length();
    const int64_t cut = length / 100 * kShares[call.variant] / kGrain * kGrain;
    return cut < length ? cut : 0;
  }

  Library first_, second_;
  int ranks_;
};

class StripedBackend : public Backend {
 public:
  explicit StripedBackend(const std::string& names)
      : first_(names.substr(0, names.find('+'))), second_(names.substr(names.find('+') + 1)) {}

  std::string library() const override { return "messages cut over " + first_ + " and " + second_; }

  std::unique_ptr<Communicator> connect(const GroupSpec& spec) override {
    auto first = part(spec, first_);
    return std::make_unique<StripedCommunicator>(std::move(first), part(spec, second_), spec.size());
  }

 private:
  static std::shared_ptr<Communicator> part(const GroupSpec& spec, const std::string& name) {
    auto found = spec.beside ? spec.beside(name) : nullptr;
    if (found == nullptr) {
      throw Error(ErrorCode::InvalidArgument, "expected " + name + " among the backends of group '" + spec.name + "'");
    }
    if (found->streams()) {
      throw Error(ErrorCode::InvalidArgument, "expected a library of the host, got " + name);
    }
    return found;
  }

  std::string first_, second_;
};

std::unique_ptr<Backend> create(const std::string& names) { return std::make_unique<StripedBackend>(names); }

}  // namespace

extern "C" const Plugin mcr_dl_plugin = {kPluginVersion, create};

}  // namespace mcr
