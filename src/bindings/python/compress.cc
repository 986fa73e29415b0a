// SPDX-License-Identifier: Apache-2.0
#include "passes/compress/compress.h"

#include <ATen/ops/empty.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/candidate_name.h"
#include "bindings/python/arguments.h"
#include "bindings/python/errors.h"
#include "bindings/python/gil.h"
#include "bindings/python/names.h"
#include "bindings/python/objects.h"
#include "bindings/python/parts.h"
#include "bindings/python/tensors.h"
#include "bindings/python/unlocked.h"
#include "observe/activity.h"
#include "passes/compress/encoded_parts.h"

namespace py = pybind11;

namespace mcr::python {

namespace {

enum class Status : uint8_t { Encoded, NotFinite, NotEncoded, NotDecoded };

constexpr int64_t kHeader = 8;   // a Status, and the number of elements; with NotDecoded: the rank
constexpr int64_t kReason = 64;  // room for the text of a failure
constexpr auto kCannotEncode = "the sender could not encode: ";
constexpr auto kCannotDecode = "cannot decode: ";

void write_header(std::byte* out, Status status, int64_t number) {
  const uint64_t word = static_cast<uint64_t>(number) << 8 | static_cast<uint64_t>(status);
  std::memcpy(out, &word, sizeof word);
}

// Removes a beginning; false: the text has another one.
bool skip(std::string_view& text, std::string_view beginning) {
  if (!text.starts_with(beginning)) return false;
  text.remove_prefix(beginning.size());
  return true;
}

struct Header {
  Status status;
  int64_t number;
};

Header read_header(const std::byte* in) {
  uint64_t word = 0;
  std::memcpy(&word, in, sizeof word);
  return {static_cast<Status>(word & 0xff), static_cast<int64_t>(word >> 8)};
}

// Turns the Python error in flight into an Error.
Error error_of(py::error_already_set& error) {
  const auto code = error.matches(PyExc_ImportError) ? ErrorCode::Unavailable : ErrorCode::InvalidArgument;
  const Owner text(PyObject_Str(error.value().ptr()));
  return {code, utf8_of(text.get(), "an exception without a text")};
}

// The error for a codec that failed on some rank.
Error failed(const std::string& text) {
  return Error(ErrorCode::Backend, text).caused_by(std::make_shared<const Cause>());
}

template <class T>
bool finite(const void* data, int64_t count) {
  const T* values = static_cast<const T*>(data);
  T sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += values[i] * 0;  // NaN if any value is not finite
  return sum == 0;
}

bool finite(const void* data, int64_t count, DType dtype) {
  return dtype == DType::Float ? finite<float>(data, count) : finite<double>(data, count);
}

void fill_with_nan(void* out, int64_t count, DType dtype) {
  if (dtype == DType::Float) {
    std::fill_n(static_cast<float*>(out), count, std::numeric_limits<float>::quiet_NaN());
  } else {
    std::fill_n(static_cast<double*>(out), count, std::numeric_limits<double>::quiet_NaN());
  }
}

// A codec that is a Python object (mcr_dl/codecs/codecs.py). It never gets values that are not finite. If it fails to
// encode, all ranks that decode get the error.
class PythonCodec final : public Codec {
 public:
  PythonCodec(std::string name, py::object object)
      : Codec(std::move(name)), object_(std::move(object)), fixed_(object_.attr("fixed").cast<bool>()) {
    for (const auto& dtype : object_.attr("dtypes").cast<std::vector<std::string>>()) {
      dtypes_.push_back(named<DType>(kDTypes, dtype));
    }
  }
  // Codecs live as long as the process, and Python may end before.
  ~PythonCodec() override { object_.release(); }

  bool accepts(DType dtype) const override { return std::find(dtypes_.begin(), dtypes_.end(), dtype) != dtypes_.end(); }
  bool fixed() const override { return fixed_; }

  int64_t capacity(int64_t count, DType dtype) const override {
    return kHeader + std::max(kReason, own_capacity(count, dtype));
  }

  int64_t encode(const void* in, int64_t count, DType dtype, std::byte* out) const override {
    const bool all_finite = finite(in, count, dtype);
    write_header(out, all_finite ? Status::Encoded : Status::NotFinite, count);
    if (!all_finite) {
      const auto unused = capacity(count, dtype) - kHeader;
      if (fixed_) std::memset(out + kHeader, 0, static_cast<std::size_t>(unused));
      return fixed_ ? kHeader + unused : kHeader;
    }
    const int64_t room = own_capacity(count, dtype);
    const Activity::Pause pause;
    const Locked locked;
    try {
      const auto used = object_
                            .attr("encode")(view(in, count * size_of(dtype)), row(dtype).name,
                                            py::memoryview::from_memory(out + kHeader, room))
                            .cast<int64_t>();
      if (used < 0 || used > room) {
        const auto text = "encode() returned " + std::to_string(used) + ", expected 0 to " + std::to_string(room);
        return write_failure(Status::NotEncoded, text, 0, count, dtype, out);
      }
      if (!fixed_) return kHeader + used;
      const auto bytes = capacity(count, dtype);
      std::memset(out + kHeader + used, 0, static_cast<std::size_t>(bytes - kHeader - used));
      return bytes;
    } catch (py::error_already_set& error) {
      const auto text = exception_text(error.value().ptr());
      const auto bytes = write_failure(Status::NotEncoded, text, 0, count, dtype, out);
      keep_interrupt(error.type().ptr());  // last: the codec still had to tell its capacity
      return bytes;
    } catch (const py::cast_error&) {
      const auto text = "encode() returned a number beyond 64 bits, expected 0 to " + std::to_string(room);
      return write_failure(Status::NotEncoded, text, 0, count, dtype, out);
    }
  }

  void decode(const std::byte* in, int64_t bytes, void* out, int64_t count, DType dtype) const override {
    if (bytes < kHeader) {
      throw failed("codec " + name() + ": expected at least " + std::to_string(kHeader) + " encoded bytes, got " +
                   std::to_string(bytes));
    }
    require_encoded(in, bytes);
    const auto header = read_header(in);
    // The data of fewer elements may end before what the codec reads.
    if (header.number != count) {
      throw failed("codec " + name() + ": expected " + std::to_string(count) + " encoded elements, got " +
                   std::to_string(header.number));
    }
    if (header.status == Status::NotFinite) return fill_with_nan(out, count, dtype);
    // A part of a fixed size has room for a reason, and for the largest part of the call.
    const auto used = fixed_ ? std::min(bytes - kHeader, own_capacity(count, dtype)) : bytes - kHeader;
    const Activity::Pause pause;
    const Locked locked;
    try {
      object_.attr("decode")(view(in + kHeader, used), py::memoryview::from_memory(out, count * size_of(dtype)),
                             row(dtype).name);
    } catch (py::error_already_set& error) {
      const auto text = exception_text(error.value().ptr());
      keep_interrupt(error.type().ptr());
      throw failed(prefix() + kCannotDecode + text);
    }
  }

  // Throws the error with which encoding has failed, or decoding in an earlier phase.
  void require_encoded(const std::byte* in, int64_t bytes) const {
    if (bytes < kHeader) return;
    const auto header = read_header(in);
    if (header.status == Status::NotEncoded) throw failed(prefix() + kCannotEncode + reason(in, bytes));
    if (header.status != Status::NotDecoded) return;
    throw failed(prefix() + "rank " + std::to_string(header.number) + " could not decode: " + reason(in, bytes));
  }

  // Omits the prefixes that the phase has already added, as there is little room.
  int64_t encode_failure(const std::string& failure, int rank, int64_t count, DType dtype,
                         std::byte* out) const override {
    std::string_view text = failure;
    skip(text, prefix());
    skip(text, kCannotEncode);
    const auto status = skip(text, kCannotDecode) ? Status::NotDecoded : Status::NotEncoded;
    return write_failure(status, text, rank, count, dtype, out);
  }

 private:
  int64_t write_failure(Status status, std::string_view text, int rank, int64_t count, DType dtype,
                        std::byte* out) const {
    const int64_t room = fixed_ ? capacity(count, dtype) - kHeader : kReason;
    write_header(out, status, rank);
    std::memset(out + kHeader, 0, static_cast<std::size_t>(room));
    std::memcpy(out + kHeader, text.data(), std::min(text.size(), static_cast<std::size_t>(room)));
    return kHeader + room;
  }
  int64_t told_capacity(int64_t count, DType dtype) const {
    return object_.attr("capacity")(count, row(dtype).name).cast<int64_t>();
  }
  // An error of this rank alone would leave the others waiting: Ctrl-C is kept until the codec has told it.
  int64_t own_capacity(int64_t count, DType dtype) const {
    const Activity::Pause pause;
    const Locked locked;
    try {
      try {
        return told_capacity(count, dtype);
      } catch (py::error_already_set& error) {
        if (!error.matches(PyExc_KeyboardInterrupt)) throw;
      }
      const auto bytes = told_capacity(count, dtype);
      PyErr_SetInterrupt();
      return bytes;
    } catch (py::error_already_set& error) {
      throw error_of(error);
    }
  }
  std::string prefix() const { return "codec " + name() + ": "; }
  static py::memoryview view(const void* data, int64_t bytes) { return py::memoryview::from_memory(data, bytes); }
  static std::string reason(const std::byte* in, int64_t bytes) {
    const auto* text = reinterpret_cast<const char*>(in + kHeader);
    return {text, strnlen(text, static_cast<std::size_t>(bytes - kHeader))};
  }

  py::object object_;
  bool fixed_;
  std::vector<DType> dtypes_;
};

void register_codec(const std::string& name, std::vector<std::string> options, const py::function& make) {
  // Kept forever: families are never destroyed.
  auto maker = [made = make.inc_ref().ptr()](const Options& given) -> std::unique_ptr<Codec> {
    const Locked locked;
    try {
      py::dict arguments;
      for (const auto& [option, value] : given) arguments[py::str(option)] = value;
      const py::object object = py::reinterpret_borrow<py::function>(made)(**arguments);
      return std::make_unique<PythonCodec>(object.attr("name").cast<std::string>(), object);
    } catch (py::error_already_set& error) {
      const auto failure = error_of(error);
      keep_interrupt(error.type().ptr());  // last: the text may be made by Python code
      throw failure;
    }
  };
  unlocked([&] { Codecs::instance().add({name, std::move(options), std::move(maker)}); });
}

// Takes any object, so that a wrong type gives an error of the core, not of pybind11.
const Coding& coding_of(const py::handle& text) { return coding(text.ptr()); }

DType dtype_of(const at::Tensor& tensor) { return *python::dtype_of(tensor.scalar_type()); }  // codec_of() has checked

void expect_host(const at::Tensor& tensor) {
  if (tensor.device().is_cpu() && tensor.layout() == at::kStrided) return;
  throw Error(ErrorCode::InvalidType, "codec: expected a dense tensor on the CPU, got one on " + tensor.device().str() +
                                          (tensor.layout() == at::kStrided ? "" : " with another layout"));
}

const Codec& codec_of(const py::handle& given, const at::Tensor& tensor) {
  const auto& coding = coding_of(given);
  const auto* codec = coding.codec;
  const auto& text = coding.text;
  unlocked([&] {
    if (codec == nullptr) throw Error(ErrorCode::InvalidArgument, "codec: expected a codec, got '" + text + "'");
    expect_host(tensor);
    const auto dtype = python::dtype_of(tensor.scalar_type());
    if (dtype && codec->accepts(*dtype)) return;
    throw Error(ErrorCode::InvalidType, "codec '" + text + "': got a tensor of " + c10::toString(tensor.scalar_type()) +
                                            ", for which it is not lossless or saves nothing");
  });
  return *codec;
}

// Measurements: operation, candidate, and the ranges of sizes with their codecs.
using Measured = std::vector<std::tuple<std::string, std::string, std::vector<std::pair<int64_t, std::string>>>>;

std::shared_ptr<Compress> make_compress(const Group& group, const py::object& codec,
                                        const std::vector<std::string>& ops, int64_t smallest,
                                        const Measured& measured) {
  const auto& coding = coding_of(codec);
  CompressDefaults defaults{coding.codec, {}, smallest, coding.automatic};
  for (const auto& op : ops) defaults.ops.push_back(named<Op>(kOps, op));
  for (const auto& [op, candidate, ranges] : measured) {
    auto& found = defaults.measured[{named<Op>(kOps, op), canonical(candidate)}];
    for (const auto& [from, name] : ranges) found.push_back({from, coding_of(py::str(name)).codec});
  }
  return std::make_shared<Compress>(group.stage(), std::move(defaults));
}

std::string standing(const Compress& pass, const std::string& op, const std::string& dtype,
                     const std::string& candidate, int64_t bytes) {
  const auto* codec = pass.standing(named<Op>(kOps, op), named<DType>(kDTypes, dtype), canonical(candidate), bytes);
  return codec == nullptr ? "none" : codec->name();
}

at::Tensor encode(const at::Tensor& tensor, const py::object& text) {
  const auto& codec = codec_of(text, tensor);
  const at::Tensor values = tensor.contiguous();
  return unlocked([&] {
    const auto dtype = dtype_of(values);
    EncodedParts part(codec, dtype, {values.numel()});
    part.encode(0, values.data_ptr(), dtype);
    const auto* own = dynamic_cast<const PythonCodec*>(&codec);
    if (own != nullptr) own->require_encoded(part.data(), part.sizes().front());
    auto result = at::empty({part.sizes().front()}, at::kByte);
    if (result.numel() != 0) std::memcpy(result.data_ptr(), part.data(), static_cast<std::size_t>(result.numel()));
    return result;
  });
}

at::Tensor decode(const at::Tensor& encoded, const at::Tensor& like, const py::object& text) {
  const auto& codec = codec_of(text, like);
  return unlocked([&] {
    expect_host(encoded);
    if (encoded.scalar_type() != at::kByte) {
      throw Error(ErrorCode::InvalidType,
                  std::string("encoded: expected a tensor of uint8, got ") + c10::toString(encoded.scalar_type()));
    }
    const auto dtype = dtype_of(like);
    EncodedParts part(codec, dtype, {like.numel()});
    const int64_t bytes = encoded.numel();
    part.expect({&bytes, 1});
    if (bytes != 0) std::memcpy(part.data(), encoded.contiguous().data_ptr(), static_cast<std::size_t>(bytes));
    auto result = at::empty(like.sizes(), like.scalar_type());
    part.decode(0, result.data_ptr(), dtype);
    return result;
  });
}

py::dict explain(const py::object& text) {
  const auto& coding = coding_of(text);
  py::dict result;
  py::list dtypes;
  for (std::size_t i = 0; i < kDTypes.size(); ++i) {
    if (coding.codec != nullptr && coding.codec->accepts(static_cast<DType>(i))) dtypes.append(kDTypes[i].name);
  }
  result["name"] = coding.automatic ? "auto" : coding.codec == nullptr ? "none" : coding.codec->name();
  result["feedback"] = coding.feedback;
  result["fixed"] = coding.codec == nullptr || coding.codec->fixed();
  result["dtypes"] = dtypes;
  return result;
}

}  // namespace

void add_compress(py::module_& module) {
  py::class_<Compress, Pass, std::shared_ptr<Compress>>(module, "CompressPass")
      .def(py::init(&make_compress), py::arg("group"), py::arg("codec"), py::arg("ops"), py::arg("smallest"),
           py::arg("measured"))
      .def_property_readonly("automatic", &Compress::automatic)
      .def("_standing", standing, py::arg("op"), py::arg("dtype"), py::arg("candidate"), py::arg("nbytes"))
      .def("_reset_feedback", [](Compress& pass) { unlocked([&] { pass.reset_feedback(); }); });
  module.def("register_codec", register_codec);
  module.def("codecs", [] { return unlocked([] { return Codecs::instance().names(); }); });
  module.def("codec", explain, py::arg("text"));
  module.def("encode", encode, py::arg("tensor"), py::arg("codec"));
  module.def("decode", decode, py::arg("encoded"), py::arg("like"), py::arg("codec"));
}

}  // namespace mcr::python
