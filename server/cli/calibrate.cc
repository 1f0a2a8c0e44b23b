// `ziggurat calibrate pod`: which layers of a model may share the keys of distant tokens.
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "compression/pod_calibration.h"
#include "model/calibration/attention_similarity.h"
#include "model/calibration/sample_text.h"
#include "model/checkpoint/model_config.h"
#include "model/tokenizer/tokenizer.h"
#include "server/byte_size.h"
#include "server/cli/calibration_picture.h"
#include "server/cli/command.h"
#include "server/cli/device.h"
#include "server/cli/failure.h"
#include "server/cli/folder_name.h"
#include "server/cli/progress.h"
#include "server/cli/shell_quote.h"
#include "server/cli/terminal.h"
#include "server/cli/validators.h"
#include "server/cli/write_file.h"
#include "server/config.h"
#include "server/log.h"

namespace ziggurat {
namespace {

constexpr char kExamples[] = R"(Example:
  ziggurat calibrate pod --model models/needle-llama --text book.txt prompts.jsonl --out groups.json
  ziggurat serve --model models/needle-llama --pod-groups mine=groups.json
  ziggurat generate --compression 'pod(groups=mine,sinks=16,recent=256)' < prompt.txt

The policy pod keeps the keys of distant tokens once for a group of layers whose attention is alike.
This command runs text through the model, measures for every KV head how alike the attention of the
last tokens is in every two layers, prints that, and groups layers from the bottom up: a layer joins
the group below it if it is at least --delta similar to every layer of it. A lower --delta groups
more layers, saves more and changes the answers more.

Give text of the kind that the model will serve. A file called *.jsonl has the field "prompt" on
every line, and each prompt is a sample, or its last --length tokens; any other file is plain text,
cut into samples of exactly --length tokens.)";

constexpr int kDefaultLength = 2048;
constexpr size_t kMaxAttentionBytes = size_t{4} << 30;

struct PodFlags {
  std::string model;
  std::vector<std::string> texts;
  std::string out;
  int samples = 16;
  std::optional<int> length;
  int last = 64;
  double delta = 0.5;
  bool per_layer = false;
  std::string dtype = "bf16";
  std::string device = "auto";
  int threads = 0;
};

/// Tokens of a sample: what the flags say, within the context.
absl::StatusOr<int> SampleLength(const PodFlags& flags, const ModelConfig& config) {
  const int context = config.MaxContextTokens();
  if (flags.length && *flags.length <= flags.last) {
    return absl::InvalidArgumentError(absl::StrCat("--length must be more than --last, which is ",
                                                   flags.last, ", not ", *flags.length));
  }
  if (flags.length && *flags.length > context) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--length ", *flags.length, ": the context of this model is ", context, " tokens"));
  }
  const int length = flags.length.value_or(std::min(kDefaultLength, context));
  if (length <= flags.last) {
    return absl::InvalidArgumentError(absl::StrCat("--last must be less than the ", length,
                                                   " tokens of a sample, not ", flags.last));
  }
  return length;
}

absl::StatusOr<SampledText> ReadSamples(const PodFlags& flags, int length) {
  std::vector<TextFile> files;
  for (const std::string& path : flags.texts) {
    absl::StatusOr<TextFile> file = ReadTextFile(path);
    if (!file.ok()) return Prefixed("--text", file.status());
    files.push_back(*std::move(file));
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(flags.model);
  if (!tokenizer.ok()) return tokenizer.status();
  absl::StatusOr<SampledText> sampled = SampleText(
      **tokenizer, files, {.count = flags.samples, .length = length, .least = flags.last + 1});
  if (!sampled.ok()) return Prefixed("--text", sampled.status());
  return sampled;
}

absl::StatusOr<DeviceRunner> LoadRunner(const PodFlags& flags, ElementType element, int device,
                                        int length) {
  DecoderOptions options;
  options.threads = ThreadCount(flags.threads);
  options.element = element;
  options.max_prefill_tokens = length;
  options.warm_up = false;
  return LoadOnDevice(flags.model, options, device, /*max_sequences=*/1);
}

absl::Status CheckMemory(const ModelConfig& config, int last, int length) {
  const ModelShape shape{.num_layers = config.num_layers, .num_q_heads = config.num_q_heads};
  const size_t bytes = SimilarityMeter::AttentionBytes(shape, last, length);
  if (bytes <= kMaxAttentionBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "the attention of %d tokens to %d in %d layers and %d query heads takes %s, more than %s; "
      "a smaller --last or --length takes less",
      last, length, shape.num_layers, shape.num_q_heads, FormatByteSize(bytes),
      FormatByteSize(kMaxAttentionBytes)));
}

absl::StatusOr<LayerSimilarity> Measure(ModelRunner& runner, const SampledText& text, int last) {
  SimilarityMeter meter(&runner, last);
  RunProgress progress;
  progress.total = text.samples.size();
  for (const std::vector<int32_t>& sample : text.samples) progress.total_weight += sample.size();
  ProgressLine line(stderr, isatty(STDERR_FILENO) == 1, TerminalColumns(STDERR_FILENO));
  for (const std::vector<int32_t>& sample : text.samples) {
    line.Update(progress);
    if (absl::Status status = meter.Add(sample); !status.ok()) return status;
    ++progress.done;
    progress.done_weight += sample.size();
  }
  line.Finish(progress);
  return meter.Mean();
}

void PrintSamples(const SampledText& text) {
  const auto [shortest, longest] =
      std::minmax_element(text.samples.begin(), text.samples.end(),
                          [](const auto& a, const auto& b) { return a.size() < b.size(); });
  std::fprintf(stderr, "%zu of %zu samples, of %zu to %zu tokens\n", text.samples.size(),
               text.available, shortest->size(), longest->size());
  if (text.too_short > 0) {
    std::fprintf(stderr, "%zu prompts are too short for a sample\n", text.too_short);
  }
}

/// Of two layers one above the other, the most alike.
std::string MostAlike(const LayerSimilarity& similarity, bool per_layer) {
  int best_head = 0, best_layer = 1;
  for (int head = 0; head < similarity.num_kv_heads; ++head) {
    for (int layer = 1; layer < similarity.num_layers; ++layer) {
      if (similarity.At(head, layer, layer - 1) >
          similarity.At(best_head, best_layer, best_layer - 1)) {
        best_head = head;
        best_layer = layer;
      }
    }
  }
  return absl::StrFormat("layers %d and %d of %s, at %.2f", best_layer - 1, best_layer,
                         per_layer ? std::string("all heads") : absl::StrCat("KV head ", best_head),
                         similarity.At(best_head, best_layer, best_layer - 1));
}

void PrintGroups(const PodFlags& flags, const LayerSimilarity& similarity,
                 const PodGroups& groups) {
  std::printf(
      "Similarity of every two layers in tenths (■: the layer itself), and the group of each\n\n");
  std::fputs(
      DrawSimilarity(similarity, groups, flags.per_layer, TerminalColumns(STDOUT_FILENO)).c_str(),
      stdout);
  std::printf("Groups at --delta %g: %s\n", flags.delta, DescribeGroups(groups).c_str());
  const double saved = SavedShare(groups);
  if (saved > 0) {
    std::printf("With these groups, distant tokens save up to %.1f %% of the cache.\n",
                100 * saved);
  } else if (similarity.num_layers > 1) {
    std::printf(
        "No layers are alike enough, so pod will save nothing. The nearest to it are %s;\na lower "
        "--delta groups more.\n",
        MostAlike(similarity, flags.per_layer).c_str());
  }
}

void PrintUse(const PodFlags& flags, int context_tokens) {
  // The paper's window, an eighth of its context: one as long as ours would leave nothing distant.
  const int recent = std::max(1, context_tokens / 8);
  std::printf("\n%s is written. To serve with it:\n", flags.out.c_str());
  std::printf(
      "  ziggurat serve --model %s --pod-groups NAME=%s --compression "
      "'pod(groups=NAME,recent=%d)'\n"
      "Tokens are distant behind the last `recent` ones. What answers lose by it, `ziggurat eval` "
      "says.\n",
      ShellQuoted(flags.model).c_str(), ShellQuoted(flags.out).c_str(), recent);
}

absl::Status Calibrate(const PodFlags& flags) {
  const absl::StatusOr<ElementType> dtype = ParseElementType(flags.dtype);
  if (!dtype.ok()) return Prefixed("--dtype", dtype.status());
  const absl::StatusOr<int> device = ChooseDevice(flags.device);
  if (!device.ok()) return device.status();
  absl::StatusOr<ModelConfig> config = LoadModelConfig(flags.model);
  if (!config.ok()) return config.status();
  // Before the work rather than after it.
  if (absl::Status status = CheckReplaceable(flags.out); !status.ok()) {
    return Prefixed("--out", status);
  }
  absl::StatusOr<int> length = SampleLength(flags, *config);
  if (!length.ok()) return length.status();
  if (absl::Status status = CheckMemory(*config, flags.last, *length); !status.ok()) return status;
  absl::StatusOr<SampledText> text = ReadSamples(flags, *length);
  if (!text.ok()) return text.status();
  PrintSamples(*text);
  absl::StatusOr<DeviceRunner> loaded = LoadRunner(flags, *dtype, *device, *length);
  if (!loaded.ok()) return loaded.status();
  std::fprintf(stderr, "on %s\n", loaded->backend.c_str());
  absl::StatusOr<LayerSimilarity> similarity = Measure(*loaded->runner, *text, flags.last);
  if (!similarity.ok()) return similarity.status();
  if (flags.per_layer) similarity = MeanOverHeads(*similarity);

  PodGroups groups = GroupLayers(*similarity, flags.delta);
  groups.origin = {.model = FolderName(flags.model),
                   .delta = flags.delta,
                   .q = flags.last,
                   .samples = static_cast<int>(text->samples.size())};
  // The table first: what was measured is not lost with a disk that is full.
  PrintGroups(flags, *similarity, groups);
  if (absl::Status status = ReplaceFile(flags.out, FormatPodGroups(groups)); !status.ok()) {
    return Prefixed("--out", status);
  }
  PrintUse(flags, config->MaxContextTokens());
  return absl::OkStatus();
}

int CalibratePod(const PodFlags& flags) {
  SetUpLogging(spdlog::level::warn);
  const absl::Status status = Calibrate(flags);
  if (status.ok()) return kExitOk;
  return SayFailure("calibrate pod", status, ExitCodeOf(status));
}

}  // namespace

Command AddCalibrate(CLI::App& app) {
  CLI::App* calibrate =
      app.add_subcommand("calibrate", "Measure a model for policies that need it (pod)");
  calibrate->require_subcommand(1);
  CLI::App* pod = calibrate->add_subcommand(
      "pod", "Find the layers that may share keys, and write a file for serve --pod-groups");
  auto flags = std::make_shared<PodFlags>();
  pod->add_option("--model", flags->model, "Folder of the model, in Hugging Face's format")
      ->required()
      ->type_name("DIR");
  pod->add_option("--text", flags->texts, "Files of text to measure on")
      ->required()
      ->type_name("FILE");
  pod->add_option("--out", flags->out, "The groups file to write")->required()->type_name("FILE");
  pod->add_option("--samples", flags->samples, "Samples, taken evenly from all of the text")
      ->check(IntegerBetween(1, INT_MAX))
      ->capture_default_str();
  pod->add_option("--length", flags->length,
                  "Tokens of a sample (default: 2048, or what the context holds)")
      ->check(IntegerBetween(1, INT_MAX))
      ->type_name("N");
  pod->add_option("--last", flags->last,
                  "Last tokens of each sample, whose attention is compared (q)")
      ->check(IntegerBetween(1, INT_MAX))
      ->type_name("N")
      ->capture_default_str();
  pod->add_option("--delta", flags->delta, "Least similarity of any two layers of a group, 0 to 1")
      ->check(NumberBetween(0, 1))
      ->capture_default_str();
  pod->add_flag("--per-layer", flags->per_layer,
                "One grouping for all heads, by the mean of their similarities");
  pod->add_option("--dtype", flags->dtype, "Weights, activations and cache in bf16 or f32")
      ->type_name("TYPE")
      ->capture_default_str();
  pod->add_option("--device", flags->device,
                  "auto: the first GPU, or the CPU where there is none; cpu; cuda:N")
      ->type_name("DEVICE")
      ->capture_default_str();
  pod->add_option("--threads", flags->threads,
                  "Threads of computation; 0: one for each CPU it may use")
      ->check(IntegerBetween(0, 1024))
      ->capture_default_str();
  pod->footer(kExamples);
  return {calibrate, [flags] { return CalibratePod(*flags); }, /*computes=*/true};
}

}  // namespace ziggurat
