#include "block_manager/sequence_cache.h"

#include "absl/strings/str_cat.h"

namespace ziggurat {

SequenceCache::SequenceCache(BlockPool* pool, const CacheGeometry* geometry) {
  layers_.reserve(geometry->num_layers);
  for (int i = 0; i < geometry->num_layers; ++i) {
    layers_.emplace_back(pool, geometry);
  }
}

size_t SequenceCache::blocks() const {
  size_t blocks = 0;
  for (const LayerBlockTable& layer : layers_) {
    blocks += layer.blocks();
  }
  return blocks;
}

void SequenceCache::AppendReferences(std::vector<BlockId>* out) const {
  for (const LayerBlockTable& layer : layers_) {
    layer.AppendReferences(out);
  }
}

absl::Status SequenceCache::CheckIntegrity() const {
  for (int i = 0; i < num_layers(); ++i) {
    if (absl::Status status = layers_[i].CheckIntegrity(); !status.ok()) {
      return absl::InternalError(absl::StrCat("layer ", i, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckIntegrity(const BlockPool& pool,
                            absl::Span<const SequenceCache* const> sequences) {
  std::vector<BlockId> owners;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (absl::Status status = sequences[i]->CheckIntegrity(); !status.ok()) {
      return absl::InternalError(absl::StrCat("sequence ", i, ": ", status.message()));
    }
    sequences[i]->AppendReferences(&owners);
  }
  return pool.CheckIntegrity(owners);
}

}  // namespace ziggurat
