// One sequence with keys, values and queries of a random number generator in place of a model: what
// its policy keeps goes through the same stores, prompt layers and kernels as in the daemon, and
// can be compared with plain formulas over exactly the tokens that should be there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "attention/backend.h"
#include "block_manager/block_pool.h"
#include "compression/policy.h"
#include "model/cache_ops/prompt_layer.h"
#include "scheduler/block_plan.h"
#include "scheduler/sequence_store.h"

namespace ziggurat {

struct LabOptions {
  std::string policy = "full";
  PolicyResources resources;
  int num_layers = 4;
  int num_q_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 32;
  int prompt_tokens = 100;
  int new_tokens = 40;  ///< max_new_tokens of the request
  uint64_t seed = 1;
  bool cpu = true;  ///< the CPU backend; else the reference
};

/// 4 layers of 2 KV heads of size 32, in the groups "g": the lowest layer of each head's group,
/// [layer][head].
LabOptions SmallLab(const std::string& policy, std::vector<int> lowest, int prompt_tokens,
                    int new_tokens);

/// Keys and values that one head should attend to, with the positions they belong to.
struct ExpectedToken {
  int position = 0;
  std::vector<double> key, value;
  bool distant = false;  ///< attended with the query of the group's lowest layer
  bool far = false;      ///< in a segment of distant tokens, whoever's keys they have
};

class CacheLab {
 public:
  explicit CacheLab(LabOptions options);
  ~CacheLab();

  /// The prompt through all layers, and the policy's decision where it waits for the last layer.
  absl::Status Prefill();
  /// One generated token: edits, append, write, attend; compares nothing.
  absl::Status Step();
  /// Conservation, and the sum of reservations against free blocks.
  absl::Status CheckIntegrity() const;
  /// The largest difference between what the last step's attention gave and plain attention over
  /// the tokens that should be there, over the largest value. Fills `what` where a slot holds
  /// something else than it should.
  double CompareStep(std::string* what) const;

  const CachePlan& plan() const { return block_plan_.plan; }
  size_t planned_blocks() const { return block_plan_.total_blocks; }
  const BlockPool& pool() const { return *pool_; }
  const SequenceCache& cache() const { return store_->cache(); }
  const SequenceStore& store() const { return *store_; }
  size_t reserved_blocks() const { return store_->reserved_blocks(); }
  DistantCounts counts() const { return store_->distant_counts; }
  int tokens() const { return tokens_; }
  void Release();

 private:
  size_t QAt(int position, int head) const;
  size_t KvAt(int position, int head) const;
  void SimulatePrompt(int layer, const LayerMeasured& measured);
  void SimulateStep(int layer);
  void MergeRange(int lower, int first, int count);
  std::vector<ExpectedToken> Expected(int layer, int kv_head, std::string* what) const;
  /// What the slots of a head really hold.
  std::vector<ExpectedToken> Held(int layer, int kv_head) const;
  /// Whether keys and values of a slot are one token's, and the near window holds what it should.
  std::string CheckDistant(int layer, int kv_head, const std::vector<ExpectedToken>& held) const;
  /// The position whose row of `x` is nearest.
  int Nearest(const std::vector<float>& x, int kv_head, const std::vector<double>& row) const;

  LabOptions options_;
  AttentionShape shape_;
  CacheGeometry geometry_;
  std::unique_ptr<AttentionBackend> backend_;
  std::shared_ptr<const Policy> policy_;
  BlockPlan block_plan_;
  std::unique_ptr<BlockPool> pool_;
  ReservationLedger ledger_;
  std::unique_ptr<SequenceStore> store_;
  std::unique_ptr<ModelRunner> editor_;

  // [layer][position, head, dim]
  std::vector<std::vector<float>> q_, k_, v_;
  std::vector<double> importance_;
  int tokens_ = 0;

  // What should be held: per layer and KV head the positions, and which of them stand merged.
  struct Head {
    std::vector<int> positions;
    std::vector<double> scores;  ///< H2O, by position
  };
  std::vector<std::vector<Head>> held_;
  std::vector<LayerEdit> edits_;  ///< in force
  std::vector<int> tail_;         ///< MiniCache: generated tokens that wait, per lower layer
  /// [layer][head][position] restored key and value of merged tokens, empty where unmerged.
  std::vector<std::vector<std::vector<std::vector<double>>>> merged_k_, merged_v_;
  std::vector<std::vector<float>> out_;  ///< [layer] of the last step
};

}  // namespace ziggurat
