// WindowKV (arXiv:2503.17922): whole windows of the prompt, chosen once for a group of layers, with
// budgets that fall from group to group. What is observed and how windows are scored depends on
// what the prompt asks for.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "compression/budget.h"
#include "compression/layer_plan.h"
#include "compression/policy_descriptor.h"
#include "compression/task_classifier.h"
#include "compression/window_selection.h"

namespace ziggurat {
namespace {

enum TaskChoice : size_t { kAuto, kLocalization, kAggregation };
constexpr std::string_view kTaskChoices[] = {"auto", "localization", "aggregation"};

/// What the paper sets by model family and task.
struct FamilyDefaults {
  int group;
  int review[2];   // [PromptTask]
  int observe[2];  // [PromptTask]
};
constexpr FamilyDefaults kQwen2 = {.group = 7, .review = {32, 32}, .observe = {4, 16}};
constexpr FamilyDefaults kLlama = {.group = 8, .review = {8, 16}, .observe = {16, 32}};

const FamilyDefaults& DefaultsOf(std::string_view architecture) {
  return architecture == "Qwen2ForCausalLM" ? kQwen2 : kLlama;
}

class WindowKv final : public DescribedPolicy {
 public:
  explicit WindowKv(const PolicyArguments& arguments)
      : DescribedPolicy(arguments),
        arguments_(arguments),
        task_(static_cast<TaskChoice>(arguments.Choice("task"))),
        budget_(arguments.Integer("budget")),
        lambda_(arguments.Real("lambda")) {}

  PolicyTraits traits() const override {
    return kDropsTokens | kReadsPrompt | kBudgetsOfLayers | kGroupsOfLayers;
  }

  bool wants_prompt_text() const override { return task_ == kAuto; }

  std::shared_ptr<const DescribedPolicy> Resolve(std::string_view text) const override {
    if (task_ != kAuto) return nullptr;
    const bool aggregates = ClassifyTask(text).task == PromptTask::kAggregation;
    return std::make_shared<WindowKv>(
        arguments_.WithChoice("task", aggregates ? kAggregation : kLocalization));
  }

  void Apply(const PolicyContext& context, const SequenceLimits& limits,
             CachePlan* plan) const override {
    plan->layers =
        PlanLayers(context, limits,
                   task_ == kAggregation ? PromptTask::kAggregation : PromptTask::kLocalization);
    if (task_ != kAuto) return;
    // The task is not known yet: bounds for either.
    CachePlan other;
    other.needs = plan->needs;
    other.layers = PlanLayers(context, limits, PromptTask::kAggregation);
    for (size_t i = 0; i < plan->layers.size(); ++i) {
      size_t& kept = plan->layers[i].prompt_tokens_kept;
      kept = std::max(kept, other.layers[i].prompt_tokens_kept);
    }
    RaiseNeeds(context, limits, &other);
    plan->needs = other.needs;
  }

 private:
  int GroupSize(const PolicyContext& context) const {
    return static_cast<int>(
        arguments_.IntegerOrWord("group").value_or(DefaultsOf(context.architecture).group));
  }

  /// The edit but for its budget, which differs from group to group.
  KeepWindows EditFor(const PolicyContext& context, PromptTask task) const {
    const FamilyDefaults& defaults = DefaultsOf(context.architecture);
    const auto index = static_cast<size_t>(task);
    KeepWindows edit;
    // A default that the budget does not exceed leaves one token besides to be chosen.
    edit.observe = static_cast<int>(arguments_.IntegerOrWord("observe").value_or(
        std::min<int64_t>(defaults.observe[index], budget_ - 1)));
    edit.review =
        static_cast<int>(arguments_.IntegerOrWord("review").value_or(defaults.review[index]));
    const int best = task == PromptTask::kLocalization ? edit.review : std::max(1, edit.review / 2);
    edit.best = static_cast<int>(arguments_.IntegerOrWord("p").value_or(best));
    return edit;
  }

  std::vector<LayerPlan> PlanLayers(const PolicyContext& context, const SequenceLimits& limits,
                                    PromptTask task) const {
    KeepWindows edit = EditFor(context, task);
    const int size = GroupSize(context);
    const std::vector<int64_t> budgets =
        GroupBudgets(context.num_layers, size, budget_ - edit.observe);
    std::vector<LayerPlan> layers;
    for (int layer = 0; layer < context.num_layers; ++layer) {
      const int leader = layer / size * size;
      const int members = std::min(size, context.num_layers - leader);
      if (layer == leader) {
        edit.budget = static_cast<int>(
            std::min<int64_t>(budgets[layer / size] / members, limits.prompt_tokens));
        layers.push_back(PlanKeepWindows(limits, edit));
      } else {
        layers.push_back(PlanKeepAsLeader(layers[leader], KeepAsLeader{leader}));
      }
    }
    return layers;
  }

  /// Tokens besides the observed ones of all layers of a group together: an arithmetic sequence
  /// whose sum is exactly mean * layers and whose last is 1/lambda of its mean.
  std::vector<int64_t> GroupBudgets(int num_layers, int size, int64_t mean) const {
    if (num_layers < 1) return {};
    const int groups = (num_layers + size - 1) / size;
    const int64_t total = mean * num_layers;
    return LargestRemainder(LinearPyramid(static_cast<double>(total) / groups, groups, lambda_),
                            total);
  }

  PolicyArguments arguments_;
  TaskChoice task_;
  int64_t budget_;
  double lambda_;
};

constexpr ParameterSpec kParameters[] = {
    BudgetParameter("mean over layers of the KV pairs kept of the prompt, per KV head, observed "
                    "tokens included"),
    {.name = "task",
     .help = "what the prompt asks for: to find something, or to use all of it; auto: classified "
             "by its text",
     .type = ParameterType::kChoice,
     .choices = kTaskChoices,
     .default_value = kAuto},
    {.name = "review",
     .help = "tokens of a window; auto: by task and model family",
     .minimum = 1,
     .maximum = 1024,
     .word = "auto"},
    {.name = "observe",
     .help = "last prompt tokens, whose attention scores windows and which are all kept; auto: by "
             "task and model family",
     .minimum = 1,
     .maximum = 1024,
     .word = "auto"},
    {.name = "group",
     .help = "consecutive layers that keep the same windows; auto: by model family",
     .minimum = 1,
     .maximum = 4096,
     .word = "auto"},
    {.name = "lambda",
     .help = "steepness: the top group keeps 1/lambda of the groups' mean besides the observed "
             "tokens",
     .type = ParameterType::kReal,
     .minimum = 1,
     .maximum = 1e6,
     .default_value = 14},
    {.name = "p",
     .help = "tokens of a window that count for its score, the best; auto: all for localization, "
             "half for aggregation",
     .minimum = 1,
     .maximum = 1024,
     .word = "auto"},
};

std::optional<ArgumentError> CheckBudgetAboveObserved(const PolicyArguments& arguments) {
  const int64_t budget = arguments.Integer("budget");
  const std::optional<int64_t> observe = arguments.IntegerOrWord("observe");
  if (!observe.has_value() || budget > *observe) return std::nullopt;
  return ArgumentError{
      "budget", fmt::format("budget={} must be greater than observe={}, which it includes", budget,
                            *observe)};
}

}  // namespace

const PolicyDescriptor& WindowkvPolicy() {
  static constexpr PolicyDescriptor kDescriptor = {
      .name = "windowkv",
      .summary =
          "keeps whole windows of the prompt, the same in every layer of a group, fewer in "
          "upper groups",
      .paper = "2503.17922",
      .parameters = kParameters,
      .check = CheckBudgetAboveObserved,
      .make = MakePolicy<WindowKv>,
  };
  return kDescriptor;
}

}  // namespace ziggurat
