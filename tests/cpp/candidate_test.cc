// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/candidate_name.h"
#include "base/error.h"
#include "check.h"

using namespace mcr;

namespace {

struct Spelling {
  std::string_view given, text, backend, variant, codec;
  std::size_t parts = 0;
};

const std::vector<Spelling> kSpellings = {
    {"mpi", "mpi", "mpi", "", ""},
    {" mpi ", "mpi", "mpi", "", ""},
    {"mpi:p2p", "mpi:p2p", "mpi", "p2p", ""},
    {"mpi|bf16", "mpi|bf16", "mpi", "", "bf16"},
    {"mpi:p2p | zfp:rate=8,x=1", "mpi:p2p|zfp:rate=8,x=1", "mpi", "p2p", "zfp:rate=8,x=1"},
    {"stripe(gloo,mpi)", "stripe(gloo,mpi)", "stripe(gloo,mpi)", "", "", 2},
    {"stripe(gloo,mpi,67)", "stripe(gloo,mpi,67)", "stripe(gloo,mpi)", "67", "", 2},
    {" stripe ( gloo , mpi , 067 ) ", "stripe(gloo,mpi,67)", "stripe(gloo,mpi)", "67", "", 2},
    {"stripe(gloo,mpi,1)|bf16", "stripe(gloo,mpi,1)|bf16", "stripe(gloo,mpi)", "1", "bf16", 2},
    {"hier(shm,mpi)", "hier(shm,mpi)", "hier(shm,mpi)", "", "", 2},
    {"themis(shm,mpi, baseline)", "themis(shm,mpi,baseline)", "themis(shm,mpi)", "baseline", "", 2},
    {"themis( shm,mpi )", "themis(shm,mpi)", "themis(shm,mpi)", "", "", 2},
    {" hier ( shm , gloo , mpi )|bf16", "hier(shm,gloo,mpi)|bf16", "hier(shm,gloo,mpi)", "", "bf16", 3},
    {"hier(shm,stripe( gloo,mpi))", "hier(shm,stripe(gloo,mpi))", "hier(shm,stripe(gloo,mpi))", "", "", 2},
    {"gloo+mpi", "stripe(gloo,mpi)", "stripe(gloo,mpi)", "", "", 2},
    {"gloo+mpi:67", "stripe(gloo,mpi,67)", "stripe(gloo,mpi)", "67", "", 2},
    {"gloo+mpi:67|int8:block=64", "stripe(gloo,mpi,67)|int8:block=64", "stripe(gloo,mpi)", "67", "int8:block=64", 2},
};

std::string error_of(std::string_view text) {
  try {
    CandidateName::parse(text);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::InvalidArgument);
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST(every_spelling_has_one_canonical_form) {
  for (const auto& [given, text, backend, variant, codec, parts] : kSpellings) {
    const auto candidate = CandidateName::parse(given);
    CHECK(candidate.text() == text && candidate.backend == backend);
    CHECK(candidate.variant == variant && candidate.codec == codec && candidate.parts.size() == parts);
    CHECK(canonical(given) == text && canonical(text) == text);
    CHECK(CandidateName::parse(candidate.name()).text() == candidate.name());
  }
}

TEST(a_wrong_spelling_says_what_was_expected) {
  const std::vector<std::pair<std::string_view, std::string_view>> wrong = {
      {"", "expected the name of a backend"},
      {":p2p", "expected the name of a backend"},
      {"mpi:", "expected a variant behind ':'"},
      {"mpi|", "expected a codec behind '|'"},
      {"stripe", "no error"},  // might be a backend's name
      {"strip(gloo,mpi)",
       "expected stripe(FIRST,SECOND), hier(INNER,OUTER) or themis(INNER,OUTER), got 'strip(gloo,mpi)'"},
      {"(gloo,mpi)", "expected stripe(FIRST,SECOND)"},
      {"gloo,mpi)", "expected '(' before ')'"},
      {"gloo):67", "expected '(' before ')'"},
      {"a,b+c", "expected the name of a backend in place of 'a,b'"},
      {"stripe(gloo,mpi", "expected ')' at the end"},
      {"stripe(gloo,mpi):67", "expected ')' at the end"},
      {"stripe(gloo),mpi)", "expected two backends, as stripe(gloo,mpi)"},
      {"hier(shm,mpi),gloo)", "expected '(' before ')'"},
      {"hier(shm,mpi)hier(gloo,mpi)", "expected stripe(FIRST,SECOND), hier(INNER,OUTER) or themis(INNER,OUTER)"},
      {"hier(shm)", "expected a backend for each dimension"},
      {"themis(shm)", "expected a backend for each dimension, innermost first, as themis(shm,mpi), got"},
      {"hier(themis(shm,mpi),gloo)", "expected the name of a backend in place of 'themis(shm,mpi)'"},
      {"hier(shm,)", "expected the name of a backend"},
      {"hier(shm,mpi:p2p)", "expected the name of a backend in place of 'mpi:p2p'"},
      {"hier(hier(shm,mpi),gloo)", "expected the name of a backend in place of 'hier(shm,mpi)'"},
      {"hier(shm,stripe(gloo,mpi)", "expected ')' at the end"},
      {"stripe()", "expected two backends, as stripe(gloo,mpi)"},
      {"stripe(gloo)", "expected two backends, as stripe(gloo,mpi)"},
      {"stripe(gloo,mpi,67,1)", "expected two backends, as stripe(gloo,mpi)"},
      {"stripe(gloo,)", "expected the name of a backend in place of ''"},
      {"stripe(gloo,mpi:p2p)", "expected the name of a backend in place of 'mpi:p2p'"},
      {"stripe(gloo,gloo)", "expected two different backends"},
      {"stripe(gloo,mpi,0)", "expected a share of 1 to 99 percent, a whole number, for gloo in place of '0'"},
      {"stripe(gloo,mpi,100)", "expected a share of 1 to 99 percent, a whole number, for gloo in place of '100'"},
      {"stripe(gloo,mpi,67%)", "expected a share of 1 to 99 percent, a whole number, for gloo in place of '67%'"},
      {"gloo+", "expected the name of a backend in place of ''"},
      {"gloo+mpi+null", "expected two backends, as stripe(gloo,mpi)"},
      {"gloo+mpi:half", "expected a share of 1 to 99 percent, a whole number, for gloo in place of 'half'"},
  };
  for (const auto& [text, expected] : wrong) {
    CHECK(error_of(text).starts_with(expected));
    if (expected != "no error") CHECK(canonical(text) == text);
  }
}

TEST(backends_whose_calls_may_go_to_one_communicator) {
  struct Row {
    std::vector<std::string> backends;
    std::vector<std::size_t> set_of;  // by backend: the index of the first one in its set
  };
  const std::vector<Row> rows = {
      {{"mpi"}, {0}},
      {{"mpi", "gloo", "shm"}, {0, 1, 2}},
      {{"gloo", "mpi", "shm", "stripe(gloo,mpi)"}, {0, 0, 2, 0}},
      {{"shm", "mpi", "gloo", "hier(shm,mpi)"}, {0, 1, 2, 1}},
      {{"shm", "mpi", "gloo", "themis(gloo,mpi)", "hier(mpi,gloo)"}, {0, 1, 2, 1, 2}},
      {{"a", "b", "c", "stripe(a,b)", "stripe(b,c)"}, {0, 0, 0, 0, 0}},
      {{"a", "b", "c", "d", "stripe(a,b)", "stripe(c,d)", "stripe(b,d)"}, {0, 0, 0, 0, 0, 0, 0}},
      {{"shm", "gloo", "mpi", "stripe(gloo,mpi)", "hier(shm,stripe(gloo,mpi))"}, {0, 1, 1, 1, 1}},
      {{"strange name)", "mpi"}, {0, 1}},
  };
  for (const auto& [backends, set_of] : rows) {
    const auto sets = sharing(backends);
    CHECK(sets.size() == backends.size());
    for (std::size_t i = 0; i < backends.size(); ++i) {
      for (std::size_t j = 0; j < backends.size(); ++j) {
        CHECK((sets.at(backends[i]) == sets.at(backends[j])) == (set_of[i] == set_of[j]));
      }
      CHECK(sets.contains(sets.at(backends[i])));
    }
  }
}

TEST(a_name_has_a_limit) {
  const auto nested = [](int depth) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += "hier(";
    text += "a";
    for (int i = 0; i < depth; ++i) text += ",a)";
    return text;
  };
  CHECK(error_of(nested(100)).starts_with("expected the name of a backend in place of"));
  CHECK(error_of(nested(100'000)) == "expected the name of a candidate, of at most 1000 characters, got 800001");
  CHECK(error_of(std::string(1000, 'a')) == "no error" && error_of(std::string(1001, 'a')) != "no error");
  // Each "a+b" is spelled "stripe(a,b)".
  std::string earlier = "hier(a+b";
  while (earlier.size() < 900) earlier += ",a+b";
  CHECK(error_of(earlier + ")").starts_with("expected the name of a candidate, of at most 1000 characters, got 2"));
}

TEST(names_of_variants) {
  CHECK(variant_of("mpi", "p2p") == "mpi:p2p");
  CHECK(variant_of("stripe(gloo,mpi)", "67") == "stripe(gloo,mpi,67)");
  CHECK(stripe_of("gloo", "mpi") == "stripe(gloo,mpi)");
}
