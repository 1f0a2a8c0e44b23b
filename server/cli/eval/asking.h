// How a question is put to the daemon.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "grpcpp/support/status.h"
#include "server/cli/eval/policy_text.h"
#include "server/cli/eval/result.h"
#include "server/cli/eval/task_file.h"
#include "ziggurat/v1/ziggurat.grpc.pb.h"

namespace ziggurat::eval {

struct AskingOptions {
  std::vector<std::string> stop = {"."};
  /// Absent: as many as the right answer has, with those held back.
  std::optional<int> max_tokens = {};
  /// Tokens at the end of the prompt that are not sent, so that the model must write them first.
  /// The first token that is generated comes out of the prefill, which no policy compresses, so
  /// nothing would be measured where it is the whole answer. Absent: 1 there, else 0. More where
  /// they would end within a character.
  std::optional<int> hold_back = {};
  bool attention_recall = false;
};

/// A question, made ready with the tokenizer of the daemon. Refers to its file.
struct Asking {
  const TaskFile* file = nullptr;
  size_t index = 0;  ///< in file->questions
  int answer_tokens = 0;
  int max_tokens = 0;
  std::vector<std::string> stop = {};          ///< those that do not occur in the answer
  std::vector<int32_t> prompt_token_ids = {};  ///< what is sent if something is held back
  int held_back = 0;                           ///< tokens
  std::string held_back_text = {};

  const Question& question() const { return file->questions[index]; }
};

/// Fills everything but file and index, which are given; asks the daemon for tokens.
grpc::Status PrepareAsking(v1::Ziggurat::StubInterface& stub, const AskingOptions& options,
                           Asking& asking);

/// Greedy.
v1::GenerateRequest MakeRequest(const Asking& asking, const EvalPolicy& policy,
                                bool attention_recall);

ResultKey MakeKey(const v1::GetModelResponse& model, const Asking& asking,
                  const EvalPolicy& policy);

/// Whether `result` spares asking again: a failure never does.
bool IsSettled(const Result& result, bool attention_recall);

}  // namespace ziggurat::eval
