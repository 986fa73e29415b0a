// SPDX-License-Identifier: Apache-2.0
#include "base/candidate_name.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace mcr {

namespace {

constexpr std::string_view kStripe = "stripe";
constexpr std::string_view kHierarchy = "hier";
constexpr std::string_view kThemis = "themis";

[[noreturn]] void wrong(const std::string& expected, std::string_view text) {
  throw Error(ErrorCode::InvalidArgument, "expected " + expected + ", got '" + std::string(text) + "'");
}

void check_length(std::size_t length) {
  if (length <= kLongestName) return;
  throw Error(ErrorCode::InvalidArgument, "expected the name of a candidate, of at most " +
                                              std::to_string(kLongestName) + " characters, got " +
                                              std::to_string(length));
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  const auto begin = std::min(text.find_first_not_of(kSpace), text.size());
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

std::vector<std::string_view> trimmed_pieces(std::string_view text, char separator) {
  auto pieces = split_outside_parentheses(text, separator);
  for (auto& piece : pieces) piece = trimmed(piece);
  return pieces;
}

// Returns "67" for "67" and for "067".
std::string percent(std::string_view share, std::string_view first, std::string_view text) {
  const auto value = whole_number(share);
  if (!value || *value < 1 || *value > 99) {
    wrong("a share of 1 to 99 percent, a whole number, for " + std::string(first) + " in place of '" +
              std::string(share) + "'",
          text);
  }
  return std::to_string(*value);
}

// From two names, and a share if there is a third piece.
CandidateName striped(const std::vector<std::string_view>& pieces, std::string_view text) {
  if (pieces.size() != 2 && pieces.size() != 3) {
    wrong("two backends, as stripe(gloo,mpi), and at most a share of the first, as stripe(gloo,mpi,67)", text);
  }
  CandidateName result;
  for (const auto part : {pieces[0], pieces[1]}) {
    if (part.empty() || part.find_first_of(":+|,() \t") != std::string_view::npos) {
      wrong("the name of a backend in place of '" + std::string(part) + "'", text);
    }
    result.parts.emplace_back(part);
  }
  if (pieces[0] == pieces[1]) wrong("two different backends", text);
  result.backend = stripe_of(pieces[0], pieces[1]);
  if (pieces.size() == 3) result.variant = percent(pieces[2], pieces[0], text);
  return result;
}

CandidateName without_codec(std::string_view name, std::string_view text);

// From a name for each dimension.
CandidateName hierarchical_of(std::string_view algorithm, const std::vector<std::string_view>& pieces,
                              std::string_view text) {
  if (pieces.size() < 2) {
    wrong("a backend for each dimension, innermost first, as " + std::string(algorithm) + "(shm,mpi)", text);
  }
  CandidateName result;
  for (const auto& piece : pieces) {
    if (algorithm == kThemis && piece == kFixedOrder && &piece == &pieces.back() && pieces.size() > 2) {
      result.variant = piece;
      break;
    }
    const auto part = without_codec(piece, text);
    if (!part.variant.empty() || part.hierarchical()) {
      wrong("the name of a backend in place of '" + std::string(piece) + "'", text);
    }
    result.parts.push_back(part.backend);
  }
  result.backend = over_dimensions(algorithm, result.parts);
  return result;
}

CandidateName call_of(std::string_view name, std::string_view text) {
  const auto open = name.find('(');
  const auto algorithm = trimmed(name.substr(0, open));
  if (algorithm != kStripe && algorithm != kHierarchy && algorithm != kThemis) {
    wrong("stripe(FIRST,SECOND), hier(INNER,OUTER) or themis(INNER,OUTER)", text);
  }
  if (!name.ends_with(')')) wrong("')' at the end", text);
  const auto pieces = trimmed_pieces(name.substr(open + 1, name.size() - open - 2), ',');
  return algorithm == kStripe ? striped(pieces, text) : hierarchical_of(algorithm, pieces, text);
}

CandidateName without_codec(std::string_view name, std::string_view text) {
  if (name.find('(') != std::string_view::npos) return call_of(name, text);
  const auto colon = std::min(name.find(':'), name.size());
  auto pieces = trimmed_pieces(name.substr(0, colon), '+');
  const auto variant = trimmed(name.substr(std::min(colon + 1, name.size())));
  if (colon < name.size() && variant.empty()) wrong("a variant behind ':'", text);
  if (pieces.size() > 2) wrong("two backends, as stripe(gloo,mpi)", text);
  if (pieces.size() == 2) {
    if (!variant.empty()) pieces.push_back(variant);
    return striped(pieces, text);
  }
  if (pieces[0].empty()) wrong("the name of a backend", text);
  if (name.find(')') != std::string_view::npos) wrong("'(' before ')', as in stripe(gloo,mpi)", text);
  return {std::string(pieces[0]), {}, std::string(variant), {}};
}

}  // namespace

CandidateName CandidateName::parse(std::string_view text) {
  // The parts of a name are parsed recursively; a table or a variable may have any text.
  check_length(text.size());
  const auto bar = std::min(text.find('|'), text.size());
  auto result = without_codec(trimmed(text.substr(0, bar)), text);
  result.codec = trimmed(text.substr(std::min(bar + 1, text.size())));
  if (bar < text.size() && result.codec.empty()) wrong("a codec behind '|'", text);
  check_length(result.text().size());  // an earlier spelling is shorter: "gloo+mpi" for "stripe(gloo,mpi)"
  return result;
}

std::string CandidateName::name() const { return variant.empty() ? backend : variant_of(backend, variant); }

std::optional<CandidateName> CandidateName::read(std::string_view text) {
  try {
    return parse(text);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::string canonical(std::string_view name) {
  const auto candidate = CandidateName::read(name);
  return candidate ? candidate->text() : std::string(name);
}

std::string variant_of(std::string_view backend, std::string_view variant) {
  std::string name(backend);
  if (!name.ends_with(')')) return name + ":" + std::string(variant);
  name.pop_back();
  return name + "," + std::string(variant) + ")";
}

std::vector<std::string_view> split_outside_parentheses(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '(') ++depth;
    if (text[i] == ')') --depth;
    if (text[i] != separator || depth != 0) continue;
    pieces.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  }
  pieces.push_back(text.substr(begin));
  return pieces;
}

std::string_view CandidateName::algorithm() const {
  return parts.empty() ? std::string_view() : std::string_view(backend).substr(0, backend.find('('));
}

bool CandidateName::hierarchical() const { return algorithm() == kHierarchy || algorithm() == kThemis; }

std::string over_dimensions(std::string_view algorithm, const std::vector<std::string>& parts) {
  return std::string(algorithm) + "(" + joined(parts, {}, ",") + ")";
}

namespace {

// The backends whose communicators in the group the calls of a backend may go to.
std::vector<std::string> parts_in_group(const std::string& backend) {
  const auto candidate = CandidateName::read(backend);
  if (!candidate || candidate->parts.empty()) return {backend};
  return candidate->hierarchical() ? parts_in_group(candidate->parts.back()) : candidate->parts;
}

}  // namespace

std::map<std::string, std::string, std::less<>> sharing(std::span<const std::string> backends) {
  std::map<std::string, std::string, std::less<>> sets;
  std::map<std::string, std::string> users;  // by part: the first backend that uses it
  for (const auto& backend : backends) {
    sets[backend] = backend;
    for (const auto& part : parts_in_group(backend)) {
      const auto& user = users.emplace(part, backend).first->second;
      const auto joined = sets[backend], with = sets[user];
      for (auto& [name, set] : sets) {
        if (set == joined) set = with;
      }
    }
  }
  return sets;
}

std::string stripe_of(std::string_view first, std::string_view second) {
  return std::string(kStripe) + "(" + std::string(first) + "," + std::string(second) + ")";
}

}  // namespace mcr
