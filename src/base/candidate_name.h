// SPDX-License-Identifier: Apache-2.0
// Names of candidates. No other file parses them.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mcr {

/// The parts of a candidate's name: "mpi", "mpi:p2p", "stripe(gloo,mpi)" with a computed share, "stripe(gloo,mpi,67)"
/// with 67 % for the first, "hier(shm,mpi)" and "themis(shm,mpi)" with a backend for each dimension of the topology,
/// innermost first, "themis(shm,mpi,baseline)" with one order for all chunks, each optionally with a codec: "mpi|bf16".
struct CandidateName {
  std::string backend;  // without variant and codec: "mpi", "stripe(gloo,mpi)"
  std::vector<std::string>
      parts;            // the backends that an algorithm over several uses: "gloo", "mpi", "stripe(gloo,mpi)"
  std::string variant;  // "p2p", "67"; empty for the backend's own choice
  std::string codec;    // empty for none

  /// The algorithm over the parts: "stripe", "hier" or "themis"; empty if there are none. A view of `backend`.
  std::string_view algorithm() const;
  /// Whether the parts serve the dimensions of a topology.
  bool hierarchical() const;

  /// Accepts current and earlier spellings: "gloo+mpi:67" is stripe(gloo,mpi,67). Throws InvalidArgument with the
  /// expected form. Parsing does not check that the backends, the variant and the codec exist.
  static CandidateName parse(std::string_view text);
  /// As parse(); empty where that throws.
  static std::optional<CandidateName> read(std::string_view text);
  /// The name without the codec.
  std::string name() const;
  std::string text() const { return codec.empty() ? name() : name() + "|" + codec; }
};

/// The characters of a name, at most.
inline constexpr std::size_t kLongestName = 1000;

/// The variant of themis(...) whose chunks all go through the dimensions in one order.
inline constexpr std::string_view kFixedOrder = "baseline";

/// The pieces of a list of names. A separator inside parentheses belongs to a name. Views of `text`, with its spaces.
std::vector<std::string_view> split_outside_parentheses(std::string_view text, char separator);

/// The canonical spelling of a candidate's name. Text that is not a candidate's name is returned unchanged.
std::string canonical(std::string_view name);

/// The name of a backend's variant.
std::string variant_of(std::string_view backend, std::string_view variant);

/// The name of the backend that splits messages over two others.
std::string stripe_of(std::string_view first, std::string_view second);

/// The name of the backend that uses one for each dimension, innermost first.
std::string over_dimensions(std::string_view algorithm, const std::vector<std::string>& parts);

/// Divides the backends of a group into sets whose calls may go to one communicator: a stripe has only its parts', and
/// a candidate over dimensions does calls without steps on its outermost part's. A set has one executor and one stream
/// of flushes: two would issue on a common communicator in an order of their own on each rank. By backend: its set,
/// which has the name of a backend in it. Equal on all ranks, as the names are.
std::map<std::string, std::string, std::less<>> sharing(std::span<const std::string> backends);

}  // namespace mcr
