// SPDX-License-Identifier: Apache-2.0
// Corpora and the folders that libFuzzer reads and writes:
//   corpus_tool unpack CORPUS FOLDER   writes each input to a file of the folder
//   corpus_tool pack FILE...           prints the files' lines, to be added to a corpus
#include <cstdio>
#include <exception>
#include <set>
#include <string_view>

#include "corpus.h"

namespace {

void unpack(const std::filesystem::path& file, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  int number = 0;
  for (const auto& input : corpus::read(file)) {
    std::ofstream stream(folder / std::to_string(number++), std::ios::binary);
    stream << input;
    if (!stream.flush()) throw std::runtime_error("cannot write into " + folder.string());
  }
}

void pack(const std::vector<std::string>& files) {
  std::set<std::string> lines;
  for (const auto& file : files) lines.insert(corpus::encode(corpus::bytes_of(file)));
  for (const auto& line : lines) std::puts(line.c_str());
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> given(arguments + 1, arguments + count);
  try {
    if (given.size() == 3 && given[0] == "unpack") {
      unpack(given[1], given[2]);
    } else if (given.size() >= 2 && given[0] == "pack") {
      pack({given.begin() + 1, given.end()});
    } else {
      throw std::runtime_error("expected unpack CORPUS FOLDER, or pack FILE...");
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "corpus_tool: error: %s\n", error.what());
    return 2;
  }
  return 0;
}
