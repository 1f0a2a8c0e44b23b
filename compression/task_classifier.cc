#include "compression/task_classifier.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <ranges>
#include <span>
#include <vector>

#include "compression/task_request_model.h"
#include "compression/task_segments.h"

namespace ziggurat {
namespace {

#include "compression/task_classifier_weights.inc"

// ---- where it stands ----

/// Counted from the end of the prompt (tail) or from its beginning (head): scraps before the first
/// sentence, sentences 1 to 3, a few more, the rest.
enum Zone { kCue, kFirst, kSecond, kThird, kNear, kRest, kZonesOfASide };
constexpr int kZones = 2 * kZonesOfASide;
constexpr int kHeadSide = kZonesOfASide;
constexpr int kNearSentences = 7;
constexpr size_t kNearTokens = 150;

/// The strongest requests of each zone.
using ZoneRequests = std::array<TaskRequest, kZones>;

template <typename Segments>
void AskZones(const Segments& segments_from_the_edge, int side, TaskRequestModel& model,
              ZoneRequests& zones) {
  int sentences = 0;
  size_t tokens = 0;
  for (const TaskSegment& segment : segments_from_the_edge) {
    if (segment.empty()) {
      continue;
    }
    sentences += IsTaskSentence(segment) ? 1 : 0;
    const bool far = sentences > kNearSentences || tokens > kNearTokens;
    tokens += segment.size();
    const TaskRequest request = model.Ask(segment);
    TaskRequest& strongest = zones[side + (far ? kRest : std::min<int>(sentences, kNear))];
    strongest.localization = std::max(strongest.localization, request.localization);
    strongest.aggregation = std::max(strongest.aggregation, request.aggregation);
  }
}

// ---- what else shows ----

constexpr size_t kMarkBytes = 600;

/// 0 to 3: how much this looks like code.
int CodeLevel(std::string_view text) {
  const auto marks = std::ranges::count_if(text, [](char c) {
    return std::string_view("{}();=[]<>").find(c) != std::string_view::npos;
  });
  return marks < 3 ? 0 : marks < 8 ? 1 : marks < 24 ? 2 : 3;
}

/// 0 for nothing but space, then: ? : . another mark, a letter or digit, beyond ASCII.
int EndKind(std::string_view tail) {
  const size_t last = tail.find_last_not_of(" \t\r\n");
  if (last == std::string_view::npos) {
    return 0;
  }
  const char c = tail[last];
  if (const size_t mark = std::string_view("?:.").find(c); mark != std::string_view::npos) {
    return static_cast<int>(mark) + 1;
  }
  if (static_cast<uint8_t>(c) >= 0x80) {
    return 6;
  }
  const bool alphanumeric =
      (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return alphanumeric ? 5 : 4;
}

bool IsRole(const TaskToken& token) {
  constexpr uint32_t kRoles[] = {TaskHash("assistant"), TaskHash("ai"),    TaskHash("bot"),
                                 TaskHash("chatbot"),   TaskHash("model"), TaskHash("gpt")};
  return token.mark == 0 && std::ranges::find(kRoles, token.hash) != std::end(kRoles);
}

/// Whether somebody has answered before the end: the request is the last one of a conversation.
bool HasAnswers(std::span<const TaskSegment> segments) {
  const auto is_role = [](const TaskSegment& s) {
    return !s.empty() && IsRole(s[0]) && (s.size() == 1 || (s.size() == 2 && s[1].mark == ':'));
  };
  return !segments.empty() && std::ranges::any_of(segments.first(segments.size() - 1), is_role);
}

/// The labels ("Sentiment:") and arrows of the text, as hashes.
std::vector<uint32_t> Labels(std::span<const TaskSegment> segments) {
  std::vector<uint32_t> labels;
  const TaskToken* before = nullptr;
  for (const TaskSegment& segment : segments) {
    for (const TaskToken& token : segment) {
      if (token.mark == '>') {
        labels.push_back(token.hash);
      } else if (token.mark == ':' && before != nullptr && !IsRole(*before)) {
        labels.push_back(before->hash);
      }
      before = &token;
    }
  }
  return labels;
}

/// Of a label or arrow at the end, how often it stood there before, at most 3. A prompt that ends
/// so goes on from examples.
int Repetitions(std::span<const TaskSegment> segments) {
  const std::vector<uint32_t> labels = Labels(segments);
  int most = 0;
  for (size_t i = segments.size(); i-- > 0;) {
    const TaskSegment& segment = segments[i];
    if (segment.empty()) {
      continue;
    }
    const char end = segment.back().mark;
    if (end == '>' || (end == ':' && segment.size() > 1)) {
      const TaskToken& label = end == '>' ? segment.back() : segment[segment.size() - 2];
      most = std::max(most, static_cast<int>(std::ranges::count(labels, label.hash)) - 1);
    }
    if (IsTaskSentence(segment)) {
      break;
    }
  }
  return std::min(most, 3);
}

// ---- the decision ----

constexpr int kCodeLevels = 4;
constexpr int kEndKinds = 7;
constexpr int kRepetitionLevels = 4;
/// Zones that count less the more is asked in zones nearer to the end of the prompt.
constexpr int kGated[] = {kSecond,
                          kThird,
                          kNear,
                          kHeadSide + kCue,
                          kHeadSide + kFirst,
                          kHeadSide + kSecond,
                          kHeadSide + kThird,
                          kHeadSide + kNear};
constexpr int kInputs = 2 * kZones + 3 * kCodeLevels + kEndKinds + 1 + kRepetitionLevels + 1 + 2 +
                        2 * static_cast<int>(std::size(kGated)) + 1;
static_assert(std::size(kDecisionWeights) == kInputs);

/// Sums inputs times their weights, in the order of training/decision.py.
class Decision {
 public:
  void Add(double input) { score_ += kDecisionWeights[next_++] * input; }
  void AddOneOf(int value, int count, double input = 1) {
    score_ += kDecisionWeights[next_ + value] * input;
    next_ += count;
  }
  double Score() const { return score_; }

 private:
  int next_ = 0;
  double score_ = 0;
};

double StrongestNearRequest(const ZoneRequests& zones) {
  double strongest = 0;
  for (int zone = 0; zone < kZones; ++zone) {
    if (zone % kZonesOfASide != kRest) {
      strongest = std::max(strongest, zones[zone].Any());
    }
  }
  return std::min(1.0, strongest);
}

TaskRequest StrongestOfHead(const ZoneRequests& zones) {
  TaskRequest strongest;
  for (int zone = kHeadSide + kCue; zone <= kHeadSide + kNear; ++zone) {
    strongest.localization = std::max(strongest.localization, zones[zone].localization);
    strongest.aggregation = std::max(strongest.aggregation, zones[zone].aggregation);
  }
  return strongest;
}

void AddGated(const ZoneRequests& zones, Decision& decision) {
  std::array<TaskRequest, std::size(kGated)> gated;
  double open = std::clamp(1 - std::max(zones[kCue].Any(), zones[kFirst].Any()), 0.0, 1.0);
  for (size_t i = 0; i < gated.size(); ++i) {
    const TaskRequest& request = zones[kGated[i]];
    gated[i] = {open * request.localization, open * request.aggregation};
    if (kGated[i] < kHeadSide) {
      open = std::max(0.0, std::min(open, 1 - request.Any()));
    }
  }
  for (const TaskRequest& request : gated) {
    decision.Add(request.localization);
  }
  for (const TaskRequest& request : gated) {
    decision.Add(request.aggregation);
  }
}

/// Above 0 for aggregation.
double Score(std::string_view prompt) {
  const std::string_view head = prompt.substr(0, kTaskHeadBytes);
  const std::string_view tail =
      prompt.substr(prompt.size() - std::min(prompt.size(), kTaskTailBytes));
  const std::vector<TaskSegment> head_segments = CutTaskSegments(head);
  const std::vector<TaskSegment> tail_segments = CutTaskSegments(tail);
  TaskRequestModel model;
  ZoneRequests zones;
  AskZones(tail_segments | std::views::reverse, 0, model, zones);
  AskZones(head_segments, kHeadSide, model, zones);

  Decision decision;
  for (const TaskRequest& zone : zones) {
    decision.Add(zone.localization);
  }
  for (const TaskRequest& zone : zones) {
    decision.Add(zone.aggregation);
  }
  const int tail_code = CodeLevel(tail.substr(tail.size() - std::min(tail.size(), kMarkBytes)));
  decision.AddOneOf(CodeLevel(head.substr(0, kMarkBytes)), kCodeLevels);
  decision.AddOneOf(tail_code, kCodeLevels);
  decision.AddOneOf(tail_code, kCodeLevels, 1 - StrongestNearRequest(zones));
  decision.AddOneOf(EndKind(tail), kEndKinds);
  decision.Add(std::ranges::any_of(tail_segments, &TaskSegment::empty) ? 1 : 0);
  const int repetitions = Repetitions(tail_segments);
  decision.AddOneOf(repetitions, kRepetitionLevels);
  decision.Add(repetitions > 0 ? 1 - zones[kFirst].localization : 0);
  const bool conversation = HasAnswers(tail_segments) || HasAnswers(head_segments);
  const TaskRequest answered = conversation ? StrongestOfHead(zones) : TaskRequest{};
  decision.Add(answered.localization);
  decision.Add(answered.aggregation);
  AddGated(zones, decision);
  decision.Add(1);
  return decision.Score();
}

}  // namespace

std::string_view PromptTaskName(PromptTask task) {
  return task == PromptTask::kLocalization ? "localization" : "aggregation";
}

TaskGuess ClassifyTask(std::string_view prompt_text) {
  const double score = Score(prompt_text);
  return {.task = score > 0 ? PromptTask::kAggregation : PromptTask::kLocalization,
          .probability = static_cast<float>(1 / (1 + std::exp(-std::abs(score))))};
}

}  // namespace ziggurat
