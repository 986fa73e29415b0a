// SPDX-License-Identifier: Apache-2.0
// Codecs: fewer bytes for the same number of floating-point elements, with a stated error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/immortal.h"
#include "base/types.h"

namespace mcr {

/// Methods may be called from any thread. The encoding of a value depends only on the values of its part, so that ranks
/// which decode identical bytes get identical bits.
class Codec {
 public:
  /// `name` is the specification of the codec: "int8:block=64".
  explicit Codec(std::string name) : name_(std::move(name)) {}
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;
  virtual ~Codec() = default;

  /// Lives as long as the process, as codecs do.
  const std::string& name() const { return name_; }
  /// Whether tensors of this type become smaller. The codec is used only on those.
  virtual bool accepts(DType dtype) const = 0;
  /// Whether the encoded size is always capacity(), for all values.
  virtual bool fixed() const = 0;
  /// The largest size, in bytes, of `count` encoded elements. `dtype` is Float or Double here and below: shorter types
  /// are widened.
  virtual int64_t capacity(int64_t count, DType dtype) const = 0;
  /// Returns the number of bytes written to `out`.
  virtual int64_t encode(const void* in, int64_t count, DType dtype, std::byte* out) const = 0;
  virtual void decode(const std::byte* in, int64_t bytes, void* out, int64_t count, DType dtype) const = 0;
  /// Writes, in at most capacity() bytes, data that fails to decode on every rank, with the text of this rank's
  /// failure. For codecs that can fail.
  virtual int64_t encode_failure(const std::string& text, int rank, int64_t count, DType dtype, std::byte* out) const;

 private:
  const std::string name_;
};

/// The type that a codec gets for tensors of `dtype`.
constexpr DType coded_type(DType dtype) {
  return row(dtype).kind == DTypeKind::Floating && size_of(dtype) <= 2 ? DType::Float : dtype;
}

/// The options of a specification, sorted by name.
using Options = std::map<std::string, std::string, std::less<>>;

/// All codecs of one name; options select one.
struct CodecFamily {
  std::string name;
  std::vector<std::string> options;  // the known options
  std::function<std::unique_ptr<Codec>(const Options&)> make;
};

/// The meaning of a specification such as "int8:block=128,feedback=grad0". Lives as long as the process.
struct Coding {
  std::string text;
  const Codec* codec = nullptr;  // null: not compressed
  std::string feedback = {};     // name of the residual of an all_reduce; empty: no residual
  bool automatic = false;        // as the group's tables choose
};

/// The codecs of this process, by name. All methods are thread-safe.
class Codecs {
 public:
  static Codecs& instance();

  /// Adds a family. Throws InvalidArgument if the name is taken.
  void add(CodecFamily family);
  /// The Coding of a specification, one object for each. Throws InvalidArgument for a wrong specification, naming what
  /// is known.
  const Coding& coding(std::string_view text);
  std::vector<std::string> names() const;

 private:
  template <class T, class... Arguments>
  friend T& immortal(Arguments&&... arguments);
  Codecs();
  Coding parse(std::string_view text);
  const CodecFamily& family(std::string_view name, std::string_view text) const;
  const Codec& codec(const CodecFamily& family, const Options& options, std::string_view text);

  mutable std::mutex mutex_;
  std::map<std::string, CodecFamily, std::less<>> families_;
  std::map<std::string, std::unique_ptr<Codec>, std::less<>> codecs_;
  std::map<std::string, Coding, std::less<>> codings_;
};

/// The value of an option that is a whole number in a range. Throws InvalidArgument.
int64_t whole_number(const Options& options, std::string_view name, int64_t otherwise, int64_t least, int64_t most);

CodecFamily bf16_family();
CodecFamily fp16_family();
CodecFamily int8_family();

/// Converts floating-point elements of 16 or 8 bits to Float, and back (rounded to nearest, ties to even).
void widen(const void* in, int64_t count, DType dtype, float* out);
void narrow(const float* in, int64_t count, DType dtype, void* out);

}  // namespace mcr
