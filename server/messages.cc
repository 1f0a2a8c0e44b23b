#include "server/messages.h"

#include <algorithm>
#include <string>

namespace ziggurat {
namespace {

v1::LayerCacheReport ToMessage(uint32_t index, const LayerCacheReport& layer) {
  v1::LayerCacheReport message;
  message.set_layer(index);
  message.set_budget_tokens(layer.budget_tokens);
  message.set_tokens(layer.tokens);
  message.set_blocks(layer.blocks);
  message.set_bytes(layer.bytes);
  message.set_live_bytes(layer.live_bytes);
  message.set_format(CacheFormatName(layer.format));
  for (const FormatReport& of_layer : layer.formats) {
    v1::FormatOccupancy* entry = message.add_formats();
    entry->set_format(CacheFormatName(of_layer.format));
    entry->set_blocks(of_layer.blocks);
    entry->set_tokens(of_layer.tokens);
  }
  message.set_lazy(layer.lazy);
  if (layer.merged_with) message.set_merged_with(static_cast<uint32_t>(*layer.merged_with));
  message.mutable_keys_of()->Add(layer.keys_of.begin(), layer.keys_of.end());
  message.set_evicted_tokens(layer.evicted_tokens);
  message.set_merged_tokens(layer.merged_tokens);
  message.set_distant_tokens(layer.distant_tokens);
  message.set_quantized_tokens(layer.quantized_tokens);
  if (layer.attention_recall >= 0) message.set_attention_recall(layer.attention_recall);
  return message;
}

v1::LayerOccupancy ToMessage(uint32_t index, const LayerSnapshot& layer) {
  v1::LayerOccupancy message;
  message.set_layer(index);
  message.set_used_blocks(layer.used_blocks);
  message.set_reserved_blocks(layer.reserved_blocks);
  message.set_live_bytes(layer.live_bytes);
  message.set_tail_waste_bytes(layer.tail_waste_bytes);
  for (const auto& [format, blocks] : layer.blocks_by_format) {
    if (blocks == 0) continue;
    v1::FormatOccupancy* entry = message.add_formats();
    entry->set_format(CacheFormatName(format));
    entry->set_blocks(blocks);
  }
  return message;
}

}  // namespace

v1::RequestOccupancy ToMessage(const RequestSnapshot& request, CacheDetail detail) {
  v1::RequestOccupancy message;
  message.set_id(request.id);
  message.set_request_id(request.name);
  message.set_compression(request.policy);
  message.set_state(std::string(RequestStateName(request.state)));
  message.set_prompt_tokens(request.prompt_tokens);
  message.set_generated_tokens(request.generated_tokens);
  message.set_blocks(request.blocks);
  message.set_reserved_blocks(request.reserved_blocks);
  message.mutable_layer_blocks()->Add(request.layer_blocks.begin(), request.layer_blocks.end());
  if (detail != CacheDetail::kRequestsInFull) return message;
  for (uint32_t i = 0; i < request.layers.size(); ++i) {
    *message.add_layers() = ToMessage(i, request.layers[i]);
  }
  return message;
}

v1::CacheReport ToMessage(const CacheReport& report) {
  v1::CacheReport message;
  message.set_compression(report.policy);
  message.set_block_bytes(report.block_bytes);
  for (uint32_t i = 0; i < report.layers.size(); ++i) {
    *message.add_layers() = ToMessage(i, report.layers[i]);
  }
  message.set_blocks(report.blocks);
  message.set_bytes(report.bytes);
  message.set_full_blocks(report.full_blocks);
  message.set_compression_ratio(report.compression_ratio);
  message.set_distant_attentions(report.distant.attended + report.distant.skipped);
  message.set_skipped_attentions(report.distant.skipped);
  return message;
}

v1::GetCacheResponse ToMessage(const EngineSnapshot& snapshot, CacheDetail detail,
                               size_t max_requests) {
  v1::GetCacheResponse message;
  message.set_block_bytes(snapshot.block_bytes);
  message.set_total_blocks(snapshot.total_blocks);
  message.set_used_blocks(snapshot.used_blocks);
  message.set_reserved_blocks(snapshot.reserved_blocks);
  message.set_free_blocks(snapshot.total_blocks - snapshot.used_blocks - snapshot.reserved_blocks);
  message.set_high_water_blocks(snapshot.high_water_blocks);
  message.set_workspace_capacity_bytes(snapshot.workspace_capacity_bytes);
  message.set_workspace_high_water_bytes(snapshot.workspace_high_water_bytes);
  message.set_running(snapshot.running);
  message.set_waiting(snapshot.waiting);
  if (detail == CacheDetail::kTotals) return message;
  for (uint32_t i = 0; i < snapshot.layers.size(); ++i) {
    *message.add_layers() = ToMessage(i, snapshot.layers[i]);
  }
  for (size_t i = 0; i < std::min(max_requests, snapshot.requests.size()); ++i) {
    *message.add_requests() = ToMessage(snapshot.requests[i], detail);
  }
  return message;
}

v1::TokenLogprobs ToMessage(const SampledToken& token) {
  v1::TokenLogprobs message;
  message.set_token_id(token.token_id);
  message.set_logprob(token.logprob);
  for (const TokenLogprob& alternative : token.top) {
    v1::TokenLogprobs::Alternative* entry = message.add_top();
    entry->set_token_id(alternative.token_id);
    entry->set_logprob(alternative.logprob);
  }
  return message;
}

}  // namespace ziggurat
