// SPDX-License-Identifier: Apache-2.0
// Names of candidates, as calls, variables, tables and command lines have them.
#include "base/candidate_name.h"
#include "base/error.h"
#include "bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  using namespace mcr;
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const auto found = CandidateName::parse(text);
    PROMISE(!found.backend.empty());
    PROMISE(found.parts.empty() || (found.hierarchical() ? found.parts.size() >= 2 : found.parts.size() == 2));
    // Its spelling says the same, and is the only one.
    const auto again = CandidateName::parse(found.text());
    PROMISE(again.text() == found.text() && again.name() == found.name() && again.backend == found.backend);
    PROMISE(again.parts == found.parts && again.variant == found.variant && again.codec == found.codec);
    PROMISE(canonical(text) == found.text());
  } catch (const Error& error) {
    PROMISE(error.code() == ErrorCode::InvalidArgument && canonical(text) == text);
  }
  return 0;
}
