// SPDX-License-Identifier: Apache-2.0
#include "codecs/codec.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace mcr {

namespace {

constexpr std::string_view kFeedback = "feedback";

[[noreturn]] void wrong(std::string_view text, const std::string& expected, std::string_view got) {
  throw Error(ErrorCode::InvalidArgument,
              "codec '" + std::string(text) + "': expected " + expected + ", got '" + std::string(got) + "'");
}

// "a=1,b=2"
Options options_of(std::string_view text, std::string_view whole, const std::vector<std::string>& known) {
  Options options;
  const auto expected = joined(known) + " as name=value, each once";
  while (!text.empty()) {
    const auto part = text.substr(0, text.find(','));
    const auto equals = part.find('=');
    const std::string name(part.substr(0, equals));
    if (equals == std::string_view::npos || equals + 1 == part.size()) wrong(whole, expected, part);
    if (std::find(known.begin(), known.end(), name) == known.end()) wrong(whole, expected, part);
    if (!options.emplace(name, part.substr(equals + 1)).second) wrong(whole, expected, part);
    if (part.size() + 1 == text.size()) wrong(whole, expected, "");
    text.remove_prefix(std::min(part.size() + 1, text.size()));
  }
  return options;
}

std::string canonical(const std::string& name, const Options& options) {
  std::string result = name;
  char separator = ':';
  for (const auto& [option, value] : options) {
    result += separator + option + "=" + value;
    separator = ',';
  }
  return result;
}

}  // namespace

int64_t Codec::encode_failure(const std::string& text, int, int64_t, DType, std::byte*) const {
  throw Error(ErrorCode::Backend, "codec " + name_ + ": " + text);
}

Codecs& Codecs::instance() {
  // Never destroyed: Works and logs name codecs until the process ends.
  static auto& codecs = immortal<Codecs>();
  return codecs;
}

Codecs::Codecs() {
  for (auto* family : {bf16_family, fp16_family, int8_family}) add(family());
}

void Codecs::add(CodecFamily family) {
  const std::lock_guard lock(mutex_);
  const std::string name = family.name;
  const auto plain = [](const std::string& word) { return !word.empty() && word.find_first_of(":,=| ") == word.npos; };
  if (!plain(name) || name == "none" || name == "auto") {
    throw Error(ErrorCode::InvalidArgument,
                "codec: expected a name without : , = | and spaces that is not none or auto, got '" + name + "'");
  }
  for (const auto& option : family.options) {
    if (plain(option) && option != kFeedback) continue;
    throw Error(ErrorCode::InvalidArgument, "codec '" + name + "': expected options without : , = | and spaces " +
                                                "that are not " + std::string(kFeedback) + ", got '" + option + "'");
  }
  if (!families_.emplace(name, std::move(family)).second) {
    throw Error(ErrorCode::InvalidArgument, "codec: expected a new name, but there is a codec '" + name + "' already");
  }
}

std::vector<std::string> Codecs::names() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> result;
  for (const auto& [name, family] : families_) result.push_back(name);
  return result;
}

const Coding& Codecs::coding(std::string_view text) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = codings_.find(text);
    if (found != codings_.end()) return found->second;
  }
  auto coding = parse(text);
  const std::lock_guard lock(mutex_);
  return codings_.try_emplace(std::string(text), std::move(coding)).first->second;
}

const CodecFamily& Codecs::family(std::string_view name, std::string_view text) const {
  {
    const std::lock_guard lock(mutex_);
    const auto found = families_.find(name);
    if (found != families_.end()) return found->second;  // families stay
  }
  wrong(text, "one of " + joined(names()) + ", none, auto", name);
}

// A maker may be Python, and use codecs on threads that it waits for: it runs without the lock.
const Codec& Codecs::codec(const CodecFamily& family, const Options& options, std::string_view text) {
  auto name = canonical(family.name, options);
  {
    const std::lock_guard lock(mutex_);
    const auto found = codecs_.find(name);
    if (found != codecs_.end()) return *found->second;
  }
  std::unique_ptr<Codec> made;
  try {
    made = family.make(options);
  } catch (const Error& error) {
    throw Error(error.code(), "codec '" + std::string(text) + "': " + error.what());
  }
  const std::lock_guard lock(mutex_);
  // The codec that came first stays; another one, which may be Python too, ends after the lock.
  return *codecs_.try_emplace(std::move(name), std::move(made)).first->second;
}

Coding Codecs::parse(std::string_view text) {
  if (text == "none") return {std::string(text)};
  if (text == "auto") return {.text = std::string(text), .automatic = true};
  const auto colon = std::min(text.find(':'), text.find(','));
  const auto& chosen = family(text.substr(0, colon), text);
  auto known = chosen.options;
  known.emplace_back(kFeedback);
  const auto rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (colon != std::string_view::npos && rest.empty()) wrong(text, joined(known) + " as name=value", rest);
  auto options = options_of(rest, text, known);
  Coding coding{std::string(text)};
  if (auto feedback = options.extract(std::string(kFeedback))) coding.feedback = std::move(feedback.mapped());
  coding.codec = &codec(chosen, options, text);
  return coding;
}

int64_t whole_number(const Options& options, std::string_view name, int64_t otherwise, int64_t least, int64_t most) {
  const auto found = options.find(name);
  if (found == options.end()) return otherwise;
  const auto& text = found->second;
  const auto value = whole_number(text);
  if (!value || *value < least || *value > most) {
    throw Error(ErrorCode::InvalidArgument, std::string(name) + ": expected a whole number from " +
                                                std::to_string(least) + " to " + std::to_string(most) + ", got '" +
                                                text + "'");
  }
  return *value;
}

}  // namespace mcr
