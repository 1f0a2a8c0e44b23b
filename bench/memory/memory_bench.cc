// The memory that every method leaves of a KV cache of LLaMA-3-8B's shape, as a table in Markdown:
//
//   memory_bench [TOKENS]        default 8192
//
// What the paper says, what the definition (docs/policies.md) comes to, and what was measured from
// blocks held and from the memory of the process.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/memory/synthetic_prompt.h"
#include "compression/pod_groups.h"

namespace {

using ziggurat::PodGroups;
using ziggurat::SyntheticPrompt;

/// Bytes of a whole prompt, from the definition of a method alone.
struct Shape {
  double layers = 32, heads = 8, dim = 128, tokens = 8192;
  double Channels() const { return heads * dim; }
  /// Of n tokens in one layer.
  double Bf16(double n) const { return 4 * Channels() * n; }
  /// Codes of `bits`, scales and zeros of groups of 32, and the newest tokens in bf16.
  double Kivi(double n, int bits, double residual) const {
    const double coded = std::floor((n - residual) / 32) * 32;
    return coded * Channels() * (2.0 * bits / 8 + 8.0 / 32) + Bf16(n - coded);
  }
  double Full() const { return layers * Bf16(tokens); }
};

struct Row {
  std::string name, policy, paper;
  double formula_bytes = 0;
  bool lazy_layers = false;
};

std::vector<Row> Rows(const Shape& s) {
  const double n = s.tokens;
  const double norms = 16 * s.heads;  // bytes a token, of both layers of a pair
  const double kept = std::ceil(0.05 * n), merged = n - kept;
  std::vector<Row> rows = {{"full", "full", "1", s.Full()}};
  for (const auto& [budget, paper] :
       {std::pair<int, const char*>(512, "6.3 %"), {1024, "12.5 %"}, {2048, "25.0 %"}}) {
    rows.push_back({"PyramidKV " + std::to_string(budget),
                    "pyramidkv(budget=" + std::to_string(budget) + ")", paper,
                    s.layers * s.Bf16(std::min<double>(budget, n))});
  }
  const double half = s.layers / 2;
  rows.push_back({"SimLayerKV, half lazy", "simlayerkv(threshold=0.9)", "1.85 x",
                  half * s.Bf16(n) + half * s.Bf16(1024), true});
  // The lazy ring: 4 sinks open, and of 1,020 recent tokens 988 / 32 = 30 groups and 60 open.
  const double ring = s.Bf16(64) + 960 * s.Channels() * 1.25;
  rows.push_back({"SimLayerKV, half lazy, 4 bits", "simlayerkv(threshold=0.9)+kivi(bits=4)",
                  "about 5 x", half * s.Kivi(n, 4, 32) + half * ring, true});
  const double pair = merged * (4 * s.Channels() + norms) + 2 * s.Bf16(kept);
  rows.push_back({"MiniCache", "minicache", "1.29 x", half * s.Bf16(n) + half / 2 * pair});
  const double coded_pair = s.Kivi(merged, 4, 0) + merged * norms + 2 * s.Kivi(kept, 4, 0);
  rows.push_back({"MiniCache, 4 bits", "minicache+kivi(bits=4)", "5.02 x",
                  half * s.Kivi(n, 4, 32) + half / 2 * coded_pair});
  // 22 of 32 layers follow; their distant tokens are values alone.
  for (const int recent : {4080, 256}) {
    const double near = std::min(16.0 + recent, n);
    rows.push_back({"PoD, recent " + std::to_string(recent),
                    "pod(groups=tenth,sinks=16,recent=" + std::to_string(recent) + ")",
                    recent == 256 ? "35 % saved" : "(35 % saved, longer prompts)",
                    10 * s.Bf16(n) + 22 * (s.Bf16(near) + s.Bf16(n - near) / 2)});
  }
  rows.push_back({"PoD + SnapKV 1024", "pod(groups=tenth,sinks=16,recent=256)+snapkv(budget=1024)",
                  "91.9 % saved", 0});
  rows.push_back(
      {"KIVI, 4 bits", "kivi(bits=4)", "(codes alone: 4 x)", s.layers * s.Kivi(n, 4, 32)});
  rows.push_back(
      {"KIVI, 2 bits", "kivi(bits=2)", "(codes alone: 8 x)", s.layers * s.Kivi(n, 2, 32)});
  rows.push_back({"int8", "int8", "", s.layers * n * (2 * s.Channels() + 8 * s.heads)});
  rows.push_back({"fp8", "fp8", "", s.layers * n * (2 * s.Channels() + 8 * s.heads)});
  rows.push_back({"SnapKV 1024 + KIVI, 4 bits", "snapkv(budget=1024)+kivi(bits=4)", "",
                  s.layers * s.Kivi(std::min(1024.0, n), 4, 32)});
  return rows;
}

/// Ten groups of the 32 layers, the same for all heads.
std::shared_ptr<const PodGroups> TenGroups(int layers, int heads) {
  auto groups = std::make_shared<PodGroups>();
  groups->name = "tenth";
  groups->num_layers = layers;
  groups->num_kv_heads = heads;
  for (int layer = 0; layer < layers; ++layer) {
    const int group = layer * 10 / layers;
    const int lowest = (group * layers + 9) / 10;
    groups->lowest.insert(groups->lowest.end(), heads, lowest);
  }
  return groups;
}

}  // namespace

int main(int argc, char** argv) {
  SyntheticPrompt prompt;
  if (argc > 1) prompt.tokens = std::atoi(argv[1]);
  if (argc > 2 || prompt.tokens < 1100) {
    std::fprintf(stderr, "usage: memory_bench [TOKENS >= 1100]\n");
    return 2;
  }
  prompt.resources.pod_groups.push_back(TenGroups(prompt.num_layers, prompt.num_kv_heads));
  Shape shape;
  shape.tokens = prompt.tokens;
  std::printf(
      "| method | paper | by its definition | measured, of full | ratio | blocks | unfilled tails "
      "| "
      "process grew by | planned at admission |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const Row& row : Rows(shape)) {
    prompt.policy = row.policy;
    prompt.lazy_layers = row.lazy_layers;
    const auto held = ziggurat::MeasureHeldMemory(prompt);
    if (!held.ok() || held->free_blocks_after_release != held->pool_blocks) {
      std::fprintf(stderr, "%s: %s\n", row.policy.c_str(),
                   held.ok() ? "blocks were lost" : held.status().ToString().c_str());
      return 1;
    }
    const double full = shape.Full(), bytes = static_cast<double>(held->bytes());
    const std::string formula =
        row.formula_bytes == 0 ? "depends on the selection"
                               : std::to_string(100 * row.formula_bytes / full).substr(0, 5) + " %";
    std::printf(
        "| %s `%s` | %s | %s | %.2f %% | %.2f x | %zu | %.2f %% | %.1f MiB of %.1f MiB | %zu |\n",
        row.name.c_str(), row.policy.c_str(), row.paper.c_str(), formula.c_str(),
        100 * bytes / full, full / bytes, held->blocks,
        100 * (1 - static_cast<double>(held->live_bytes) / bytes),
        static_cast<double>(held->resident_bytes) / (1 << 20),
        static_cast<double>(held->high_water_blocks * held->block_bytes) / (1 << 20),
        held->planned_blocks);
    std::fflush(stdout);
  }
  return 0;
}
