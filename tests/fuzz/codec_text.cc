// SPDX-License-Identifier: Apache-2.0
// Specifications of codecs, as calls, variables and command lines have them.
#include "base/error.h"
#include "bytes.h"
#include "codecs/codec.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace mcr;
  auto& codecs = Codecs::instance();
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const auto& coding = codecs.coding(text);
    PROMISE(coding.text == text);
    PROMISE(&codecs.coding(text) == &coding);
    if (coding.codec == nullptr) {
      PROMISE(text == "none" || text == "auto");
      return 0;
    }
    // The full name is a specification of the same codec.
    PROMISE(codecs.coding(coding.codec->name()).codec == coding.codec || coding.codec->name() != text);
    PROMISE(coding.codec->capacity(1000, DType::Float) > 0);
  } catch (const Error& error) {
    PROMISE(error.code() == ErrorCode::InvalidArgument);
  }
  return 0;
}
