// SPDX-License-Identifier: Apache-2.0
#include "engine/pass.h"

#include <optional>
#include <utility>

#include "engine/wait.h"

namespace mcr {

Candidate* named_candidate(const Passage& passage) {
  return passage.candidate != nullptr ? passage.candidate : passage.group.selector().ruled(passage.call);
}

std::string described(const Passage& passage) {
  const auto backend = passage.candidate == nullptr ? passage.group.any_backend() : passage.candidate->name;
  const auto* function = passage.extras.names->function;
  return describe(std::string(backend), function == nullptr ? row(passage.call.op).name : function,
                  passage.group.label());
}

Error refusal(const Passage& passage, const Error& error) {
  const auto text = described(passage) + ": " + error.what();
  const auto code = error.code();
  if (error.cause() != nullptr) return Error(code, text).caused_by(error.cause());
  if (code != ErrorCode::Backend && code != ErrorCode::Timeout) return {code, text};
  return {code, text, Subject{passage.group.label(), passage.notes.seq, row(passage.call.op).is(kPeer)}};
}

int wait_for(const Passage& passage, Work& work) {
  wait(work, work.limit(), passage.interrupt, nullptr, std::nullopt, &passage.group.position());
  return work.source();
}

std::shared_ptr<void> memory_of(Extras& extras) {
  if (extras.kept == nullptr && extras.keep != nullptr) {
    extras.kept = extras.keep(extras.keeper);
    extras.keep = nullptr;
  }
  extras.release = nullptr;
  if (!extras.scratch.empty()) extras.owned.push_back(std::make_shared<std::vector<Scratch>>(extras.scratch.take()));
  std::vector<std::shared_ptr<void>> all(extras.owned.begin(), extras.owned.end());
  all.push_back(extras.kept);
  return std::make_shared<std::vector<std::shared_ptr<void>>>(std::move(all));
}

Group::Inside stay_in(Group& group, const Passage& passage) {
  try {
    return Group::Inside(group);
  } catch (const Error& error) {
    throw refusal(passage, error);
  }
}

}  // namespace mcr
