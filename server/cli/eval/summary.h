// What the results say: the figures behind every table and picture of the report.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/cli/eval/asking.h"
#include "server/cli/eval/policy_text.h"
#include "server/cli/eval/result.h"
#include "server/cli/eval/statistics.h"

namespace ziggurat::eval {

/// A row whose cache holds more than this share of full's compresses too little to say anything.
constexpr double kTooLittleShare = 0.9;

/// One policy over one set of questions. Means are over the requests that were answered; what
/// cannot be told is NaN.
struct Row {
  int64_t prompts = 0;  ///< asked, failed ones included
  int64_t exact = 0;    ///< failed ones are wrong
  Interval exact_interval = {};
  int64_t items = 0;
  int64_t items_right = 0;
  int64_t later_digits = 0;
  int64_t later_digits_right = 0;
  int64_t failed = 0;

  double bytes = 0;                ///< mean per request
  double share_of_full = 0;        ///< of the bytes that `full` held for the same prompts
  double compression_ratio = 0;    ///< blocks of full / blocks held, all requests together
  double first_token_seconds = 0;  ///< median
  double tokens_per_second = 0;    ///< while decoding, all requests together
  double evicted = 0;              ///< this and the next ones: mean per request, summed over layers
  double lazy_layers = 0;
  double merged = 0;
  double distant = 0;
  double quantized = 0;
  uint64_t distant_attentions = 0;  ///< all requests together
  uint64_t skipped_attentions = 0;

  int64_t lost = 0;  ///< `full` was right, the policy was not
  int64_t won = 0;   ///< the other way round
  double mcnemar_p = 1;

  double accuracy() const;
  bool too_little() const { return share_of_full > kTooLittleShare; }
};

/// A table: the questions of one task and length.
struct Group {
  std::string task = {};
  int64_t length = 0;
  int64_t single_token_answers = 0;  ///< of how many questions the answer is one token
  int64_t held_back = 0;             ///< of how many questions a part was held back
  std::vector<Row> rows = {};        ///< of each policy
};

/// Needle in a haystack: the questions of a task called `single...` over length and depth.
struct HeatMap {
  struct Cell {
    int64_t prompts = 0;
    int64_t exact = 0;
  };
  std::string task;
  std::vector<int64_t> lengths;  ///< ascending
  std::vector<double> depths;    ///< ascending
  /// [policy][depth][length]
  std::vector<std::vector<std::vector<Cell>>> cells;
};

/// Attention recall of one policy.
struct Recall {
  int64_t requests = 0;             ///< that brought one
  std::vector<double> layers = {};  ///< mean of each
};

/// Failed requests of one cause.
struct FailureCause {
  int64_t count = 0;
  std::string example = {};                  ///< a message
  std::map<size_t, int64_t> by_policy = {};  ///< index of the policy -> count
};

struct Summary {
  std::vector<EvalPolicy> policies = {};       ///< `full` is the first
  std::vector<Row> overall = {};               ///< all questions
  std::vector<Group> groups = {};              ///< by kind of task, then task, then length
  std::vector<std::vector<Row>> by_task = {};  ///< [task][policy], lengths together
  std::vector<std::string> tasks = {};         ///< in the order of the groups
  std::vector<HeatMap> heat_maps = {};
  std::vector<Recall> recall = {};                    ///< of each policy
  std::map<std::string, FailureCause> failures = {};  ///< by status code
  std::vector<std::string> versions = {};             ///< of the daemons that answered
};

/// `results` has one result for every policy and asking, in any order; one that is missing counts
/// as failed. policies[0] is `full`.
Summary Summarize(const v1::GetModelResponse& model, const std::vector<EvalPolicy>& policies,
                  const std::vector<Asking>& askings, const std::map<ResultKey, Result>& results);

/// "single3" is of the kind "single".
std::string TaskKind(const std::string& task);
/// The kind in words: "Needle in a haystack"; of others the kind itself.
std::string KindTitle(const std::string& kind);

}  // namespace ziggurat::eval
