// EngineLoop: what others see of it, and the proof that no block is lost.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "block_manager/sequence_cache.h"
#include "scheduler/cache_report.h"
#include "scheduler/engine_loop.h"
#include "spdlog/spdlog.h"

namespace ziggurat {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

void EngineLoop::Publish() {
  if (unpublished_.finished > 0) snapshot_pace_.NoteChange();
  // Whoever has got the last answer may count on an empty cache, so an idle engine says so first;
  // it has no sequence to look at. Otherwise no token waits for a snapshot.
  const bool is_idle = IsIdle();
  const bool was_idle = std::exchange(shows_idle_, is_idle);
  if (is_idle) PublishSnapshot();
  const int running = static_cast<int>(running_.size());
  Places free;
  if (waiting_.size() == 0) {
    free = {options_.max_running - running, FreeBlocks()};
  }
  gate_->Publish(std::exchange(unpublished_.finished, 0), std::exchange(unpublished_.reached, {}),
                 running, free);
  outbox_->SendAll(unpublished_.outputs);
  // The first step after a rest is shown at once: answers may be shorter than the time between
  // two snapshots.
  if (!is_idle && !holds_ahead_ && (was_idle || IsSnapshotDue())) PublishSnapshot();
}

bool EngineLoop::IsSnapshotDue() const {
  return snapshot_pace_.IsDue(Clock::now(), /*device_waits=*/model_->is_asynchronous());
}

void EngineLoop::PublishSnapshot() {
  const SteadyTime begun = Clock::now();
  auto made = std::make_shared<const EngineSnapshot>(MakeSnapshot());
  metrics_->SetOccupancy(made);
  snapshot_pace_.NoteMade(begun, Clock::now());
  snapshot_->Set(std::move(made));
}

EngineSnapshot EngineLoop::MakeSnapshot() {
  EngineSnapshot snapshot;
  snapshot.made_at = absl::Now();
  snapshot.block_bytes = geometry_.block_bytes;
  snapshot.block_tokens =
      geometry_.SlotsPerBlock(KeyValueFormat(model_->shape().element), geometry_.num_kv_heads);
  snapshot.total_blocks = pool_->num_blocks();
  snapshot.used_blocks = pool_->used_blocks();
  snapshot.reserved_blocks = ledger_.total();
  snapshot.high_water_blocks = pool_->high_water_blocks();
  snapshot.workspace_capacity_bytes = model_->workspace_capacity_bytes();
  snapshot.workspace_high_water_bytes = model_->workspace_high_water_bytes();
  snapshot.layers.resize(geometry_.num_layers);
  snapshot.requests.reserve(running_.size() + waiting_.size());
  for (const auto& [id, sequence] : running_) {
    sequence->store->CatchUp();
    const RequestSnapshot& request = snapshot.requests.emplace_back(MakeRequestSnapshot(*sequence));
    AddToLayers(request, sequence->store->cache(), absl::MakeSpan(snapshot.layers));
  }
  for (int l = 0; l < geometry_.num_layers; ++l) {
    LayerSnapshot& layer = snapshot.layers[l];
    layer.reserved_blocks = ledger_.layer_total(l);
    layer.tail_waste_bytes = layer.used_blocks * geometry_.block_bytes - layer.live_bytes;
  }
  for (const auto& sequence : waiting_.sequences()) {
    snapshot.requests.push_back(MakeRequestSnapshot(*sequence));
  }
  const auto is_waiting = [](const RequestSnapshot& r) {
    return r.state == RequestState::kWaiting;
  };
  snapshot.waiting = static_cast<int>(absl::c_count_if(snapshot.requests, is_waiting));
  snapshot.running = static_cast<int>(snapshot.requests.size()) - snapshot.waiting;
  absl::c_sort(snapshot.requests, [&](const RequestSnapshot& a, const RequestSnapshot& b) {
    return std::pair(is_waiting(a), a.id) < std::pair(is_waiting(b), b.id);
  });
  return snapshot;
}

void EngineLoop::CheckConservation() {
  std::vector<const SequenceCache*> caches;
  size_t reserved = 0;
  for (const auto& [id, sequence] : running_) {
    sequence->store->CatchUp();
    caches.push_back(&sequence->store->cache());
    reserved += sequence->store->reserved_blocks();
  }
  absl::Status status = CheckIntegrity(*pool_, caches);
  if (status.ok() && (reserved != ledger_.total() || reserved > pool_->free_blocks())) {
    status =
        absl::InternalError(absl::StrCat("reservations are ", reserved, " blocks, the ledger says ",
                                         ledger_.total(), ", free are ", pool_->free_blocks()));
  }
  if (status.ok()) return;
  spdlog::critical("the block pool is inconsistent: {}", status.ToString());
  std::abort();
}

}  // namespace ziggurat
