// SPDX-License-Identifier: Apache-2.0
// A corpus is a text with one input per line: printable ASCII as it is, `\\` for a backslash, `\xNN` for any other
// byte, and for spaces at the ends of a line.
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace corpus {

inline std::string encode(std::string_view input) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string line;
  for (std::size_t i = 0; i < input.size(); ++i) {
    const auto byte = static_cast<unsigned char>(input[i]);
    const bool space_at_end = byte == ' ' && (i == 0 || i + 1 == input.size());
    if (byte == '\\') {
      line += "\\\\";
    } else if (byte < ' ' || byte > '~' || space_at_end) {
      line += {'\\', 'x', digits[byte / 16], digits[byte % 16]};
    } else {
      line += input[i];
    }
  }
  return line;
}

/// Throws std::runtime_error if the line has a backslash that begins neither `\\` nor `\xNN`.
inline std::string decode(std::string_view line) {
  std::string input;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      input += line[i];
      continue;
    }
    const auto digits = line.substr(i).starts_with("\\x") ? line.substr(i + 2, 2) : std::string_view();
    if (digits.size() == 2 && digits.find_first_not_of("0123456789abcdef") == digits.npos) {
      input += static_cast<char>(std::stoi(std::string(digits), nullptr, 16));
      i += 3;
    } else if (line.substr(i).starts_with("\\\\")) {
      input += '\\';
      i += 1;
    } else {
      throw std::runtime_error("expected \\\\ or \\xNN at column " + std::to_string(i + 1) +
                               ", got: " + std::string(line));
    }
  }
  return input;
}

/// Throws std::runtime_error if the file cannot be read.
inline std::string bytes_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw std::runtime_error("cannot read " + file.string());
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// The inputs of a corpus. Throws std::runtime_error if the file cannot be read, or has no input.
inline std::vector<std::string> read(const std::filesystem::path& file) {
  const std::string text = bytes_of(file);
  std::vector<std::string> inputs;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find('\n', begin), text.size());
    inputs.push_back(decode(std::string_view(text).substr(begin, end - begin)));
    begin = end + 1;
  }
  if (inputs.empty()) throw std::runtime_error(file.string() + ": expected one input per line, got an empty file");
  return inputs;
}

}  // namespace corpus
