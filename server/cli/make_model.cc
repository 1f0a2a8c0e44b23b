// `ziggurat make-model`: a checkpoint with random weights, for benchmarks.
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/checkpoint/random_model.h"
#include "server/cli/command.h"
#include "server/cli/failure.h"

namespace ziggurat {
namespace {

constexpr char kExamples[] = R"(Examples:
  ziggurat make-model --shape llama-1b --out /tmp/llama-1b
  ziggurat make-model --shape tiny --layers 32 --context 8192 --out /tmp/deep
  ziggurat serve --model /tmp/deep

The weights are random, so the text is noise; speed and memory are those of a real model.)";

struct MakeModelFlags {
  RandomModelOptions options;
  std::string out;
};

int MakeModel(const MakeModelFlags& flags) {
  const absl::Status status = WriteRandomModel(flags.options, flags.out);
  if (status.ok()) {
    std::printf("%s\n", flags.out.c_str());
    return kExitOk;
  }
  return SayFailure("make-model", status, ExitCodeOf(status));
}

std::string ShapeNames() {
  std::string names;
  for (std::string_view name : RandomModelShapes()) {
    if (!names.empty()) names += ", ";
    names += name;
  }
  return names;
}

}  // namespace

Command AddMakeModel(CLI::App& app) {
  CLI::App* make =
      app.add_subcommand("make-model", "Write a model with random weights, for benchmarks");
  auto flags = std::make_shared<MakeModelFlags>();
  RandomModelOptions& options = flags->options;
  make->add_option("--out", flags->out, "Folder to write, made if it is not there")
      ->required()
      ->type_name("DIR");
  make->add_option("--shape", options.shape, absl::StrCat("One of ", ShapeNames()))
      ->type_name("NAME")
      ->capture_default_str();
  make->add_option("--layers", options.layers, "Layers");
  make->add_option("--hidden-size", options.hidden_size, "Width of the residual stream");
  make->add_option("--heads", options.q_heads, "Query heads");
  make->add_option("--kv-heads", options.kv_heads, "KV heads");
  make->add_option("--head-dim", options.head_dim, "Size of a head");
  make->add_option("--intermediate-size", options.intermediate_size, "Width of the MLP");
  make->add_option("--vocab-size", options.vocab_size, "Vocabulary, at least 258");
  make->add_option("--context", options.context_tokens, "Longest context in tokens");
  make->add_option("--tie-embeddings", options.tie_word_embeddings,
                   "Whether the output head is the embedding (true or false)");
  make->add_option("--seed", options.seed, "Same seed, same bytes")->capture_default_str();
  make->add_option("--dtype", options.dtype, "bf16 or f32")->capture_default_str();
  make->add_option("--max-shard-bytes", options.max_shard_bytes,
                   "Largest file of weights, but for a tensor that is larger: it has its own")
      ->capture_default_str();
  make->add_flag("--force", options.force, "Write into a folder that is not empty");
  make->footer(kExamples);
  return {make, [flags] { return MakeModel(*flags); }};
}

}  // namespace ziggurat
