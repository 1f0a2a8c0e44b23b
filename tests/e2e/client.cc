#include "tests/e2e/client.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace ziggurat::e2e {

Generation Generate(v1::Ziggurat::StubInterface& stub, const v1::GenerateRequest& request,
                    const CallOptions& options) {
  const auto context = options.context ? options.context : std::make_shared<grpc::ClientContext>();
  context->set_deadline(
      absl::ToChronoTime(absl::Now() + options.deadline.value_or(absl::Minutes(10))));
  return CallGenerate(stub, request, *context, options.on_message);
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
