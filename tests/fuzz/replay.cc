// SPDX-License-Identifier: Apache-2.0
// Gives a target the inputs of corpora: what a fuzzer has kept is a test for every compiler.
#include <cstdio>
#include <exception>

#include "bytes.h"
#include "corpus.h"

int main(int count, char** files) {
  std::size_t inputs = 0;
  try {
    for (int i = 1; i < count; ++i) {
      for (const auto& input : corpus::read(files[i])) {
        if (corpus::decode(corpus::encode(input)) != input) throw std::runtime_error("an input has no line of its own");
        LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
        ++inputs;
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::printf("%zu inputs\n", inputs);
  return inputs == 0 ? 1 : 0;
}
