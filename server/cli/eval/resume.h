// What an evaluation need not ask again, since an earlier run did.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "server/cli/eval/asking.h"
#include "server/cli/eval/runner.h"

namespace ziggurat::eval {

struct Resumption {
  /// Results of this evaluation that are there already.
  std::map<ResultKey, Result> settled = {};
  /// Of them, those that another build of the daemon gave.
  size_t of_other_version = 0;
  /// What is left to ask: question by question, all policies of each, so that what a break leaves
  /// can be compared. Points into `policies` and `askings`.
  std::vector<Job> jobs = {};

  /// Results that are of no use here, by what they are of.
  size_t failed = 0;                               ///< asked again
  size_t without_recall = 0;                       ///< asked again
  std::map<std::string, size_t> other_model = {};  ///< "name (dtype)"
  std::map<std::string, size_t> other_file = {};   ///< name of a task file with another content
  size_t other_request = 0;                        ///< another policy, prompt or setting
};

Resumption Resume(const std::vector<Result>& earlier, const v1::GetModelResponse& model,
                  const std::vector<EvalPolicy>& policies, const std::vector<Asking>& askings,
                  bool attention_recall);

/// Lines for the user; empty where nothing was there.
std::string DescribeResumption(const Resumption& resumption, const std::string& path);

}  // namespace ziggurat::eval
