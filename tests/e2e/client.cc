#include "tests/e2e/client.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ziggurat::e2e {

std::string Generation::Describe() const {
  return absl::StrCat("code ", static_cast<int>(status.error_code()), " '", status.error_message(),
                      "', ", ids.size(), " tokens, ", result.has_value() ? "a" : "no", " result");
}

Generation Generate(v1::Ziggurat::StubInterface& stub, const v1::GenerateRequest& request,
                    const CallOptions& options) {
  Generation generation;
  const auto context = options.context ? options.context : std::make_shared<grpc::ClientContext>();
  context->set_deadline(
      absl::ToChronoTime(absl::Now() + options.deadline.value_or(absl::Minutes(10))));
  const auto stream = stub.Generate(context.get(), request);
  v1::GenerateResponse message;
  while (stream->Read(&message)) {
    if (generation.result.has_value()) ++generation.messages_after_result;
    if (message.has_chunk()) {
      const v1::GenerateChunk& chunk = message.chunk();
      generation.text += chunk.text();
      generation.ids.insert(generation.ids.end(), chunk.token_ids().begin(),
                            chunk.token_ids().end());
      generation.logprobs.insert(generation.logprobs.end(), chunk.logprobs().begin(),
                                 chunk.logprobs().end());
      generation.prompt_ids.insert(generation.prompt_ids.end(), chunk.prompt_token_ids().begin(),
                                   chunk.prompt_token_ids().end());
    } else if (message.has_result()) {
      generation.result = message.result();
    }
    if (options.on_message && !options.on_message(generation)) context->TryCancel();
  }
  generation.status = stream->Finish();
  return generation;
}

v1::GenerateRequest TextRequest(const std::string& text, int max_tokens) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(true);
  return request;
}

v1::GenerateRequest IdsRequest(const std::vector<int32_t>& ids, int max_tokens) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(true);
  return request;
}

std::string PlainEnglish(uint32_t seed, int sentences) {
  static constexpr const char* kNouns[] = {"house",  "door",  "garden", "river",  "boat",
                                           "train",  "road",  "bridge", "tower",  "table",
                                           "window", "stone", "field",  "forest", "market"};
  static constexpr const char* kAdjectives[] = {"old",  "new",  "small", "large", "quiet",
                                                "cold", "warm", "slow",  "hard",  "empty"};
  static constexpr const char* kVerbs[] = {"stood",  "moved",  "opened", "closed",
                                           "waited", "turned", "rested", "shone"};
  std::mt19937 random(seed);
  const auto pick = [&](const auto& words) { return words[random() % std::size(words)]; };
  std::string text;
  for (int i = 0; i < sentences; ++i) {
    absl::StrAppend(&text, " The ", pick(kAdjectives), " ", pick(kNouns), " ", pick(kVerbs));
    absl::StrAppend(&text, " near the ", pick(kNouns), ".");
  }
  return text;
}

PromptSource::PromptSource(Daemon& daemon, uint32_t seed)
    : ids_(daemon.Tokenize(PlainEnglish(seed, 1000))) {
  if (ids_.size() < 5000) {
    std::fprintf(stderr, "the daemon made only %zu tokens of 1000 sentences\n", ids_.size());
    std::abort();
  }
}

std::vector<int32_t> PromptSource::Make(int tokens, std::mt19937& random) const {
  constexpr int32_t kBos = 0;
  const size_t start = random() % (ids_.size() - static_cast<size_t>(tokens));
  std::vector<int32_t> prompt = {kBos};
  prompt.insert(prompt.end(), ids_.begin() + static_cast<ptrdiff_t>(start),
                ids_.begin() + static_cast<ptrdiff_t>(start) + tokens - 1);
  return prompt;
}

}  // namespace ziggurat::e2e
