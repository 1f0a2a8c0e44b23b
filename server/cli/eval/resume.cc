#include "server/cli/eval/resume.h"

#include <set>

#include "absl/strings/str_cat.h"

namespace ziggurat::eval {

Resumption Resume(const std::vector<Result>& earlier, const v1::GetModelResponse& model,
                  const std::vector<EvalPolicy>& policies, const std::vector<Asking>& askings,
                  bool attention_recall) {
  std::set<std::string> hashes;
  std::vector<std::pair<ResultKey, Job>> wanted;
  std::set<ResultKey> wanted_keys;
  for (const Asking& asking : askings) {
    hashes.insert(asking.file->hash);
    for (const EvalPolicy& policy : policies) {
      wanted.emplace_back(MakeKey(model, asking, policy), Job{&asking, &policy});
      wanted_keys.insert(wanted.back().first);
    }
  }
  Resumption resumption;
  for (const Result& result : earlier) {
    const ResultKey& key = result.key;
    if (key.model != model.name() || key.dtype != model.dtype()) {
      ++resumption.other_model[absl::StrCat(key.model, " (", key.dtype, ")")];
    } else if (!hashes.contains(key.tasks)) {
      ++resumption.other_file[result.file];
    } else if (!wanted_keys.contains(key)) {
      ++resumption.other_request;
    } else if (IsSettled(result, attention_recall)) {
      resumption.settled.insert_or_assign(key, result);
    } else {
      ++(result.failed() ? resumption.failed : resumption.without_recall);
    }
  }
  for (const auto& [key, result] : resumption.settled) {
    resumption.of_other_version += result.version != model.version() ? 1 : 0;
  }
  for (const auto& [key, job] : wanted) {
    if (!resumption.settled.contains(key)) resumption.jobs.push_back(job);
  }
  return resumption;
}

std::string DescribeResumption(const Resumption& resumption, const std::string& path) {
  std::string text;
  const auto add = [&](size_t count, const std::string& what) {
    if (count > 0) absl::StrAppend(&text, "  ", count, " ", what, "\n");
  };
  add(resumption.settled.size(), "are done and are not asked again");
  add(resumption.of_other_version,
      "of these came from another version of the daemon; give another --out to measure this one");
  add(resumption.failed, "had failed: asked again where no later one succeeded");
  add(resumption.without_recall, "have no attention recall: asked again where no later one has");
  for (const auto& [model, count] : resumption.other_model) {
    add(count, absl::StrCat("are of another model, ", model, ": left aside"));
  }
  for (const auto& [file, count] : resumption.other_file) {
    add(count, absl::StrCat("are of a task file ", file,
                            " that is not among these, or whose content was another: left aside"));
  }
  add(resumption.other_request,
      "are of policies, prompts or settings that are not asked for now: left aside");
  return text.empty() ? "" : absl::StrCat("Of the results in ", path, ":\n", text);
}

}  // namespace ziggurat::eval
