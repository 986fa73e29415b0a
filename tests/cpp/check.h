// SPDX-License-Identifier: Apache-2.0
// A test is TEST(name) { CHECK(...); } A failed check is printed and counted; the rest of the test still runs.
#pragma once

#include <string_view>

namespace check {

struct Register {
  Register(const char* name, void (*body)());
};

void failed(const char* file, int line, std::string_view what);

/// Whether `text` has all of `parts`; prints the text where it has not.
template <class... Parts>
bool has(std::string_view text, Parts... parts) {
  const bool all = ((text.find(parts) != std::string_view::npos) && ...);
  if (!all) failed("message", 0, text);
  return all;
}

}  // namespace check

#define TEST(name)                                           \
  static void name();                                        \
  static const check::Register register_##name(#name, name); \
  static void name()
#define CHECK(...) ((__VA_ARGS__) ? void() : check::failed(__FILE__, __LINE__, #__VA_ARGS__))
