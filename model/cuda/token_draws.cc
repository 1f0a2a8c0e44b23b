#include "model/cuda/token_draws.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ziggurat::cuda {
namespace {

/// Of a step, for all sequences together: some 300,000 tokens that penalties concern.
constexpr size_t kListBytes = size_t{4} << 20;

}  // namespace

std::vector<MemoryPart> TokenDraws::Parts(int rows) {
  return {{"requests for tokens", rows * sizeof(SamplingRequest)},
          {"lists of tokens", kListBytes},
          {"drawn tokens", rows * sizeof(SampledRecord)}};
}

absl::StatusOr<std::unique_ptr<TokenDraws>> TokenDraws::Create(Stream* stream, int rows,
                                                               int vocab_size) {
  std::unique_ptr<TokenDraws> draws(new TokenDraws(stream, vocab_size));
  const std::vector<MemoryPart> parts = Parts(rows);
  const std::pair<DeviceMemory*, DeviceMemory*> memories[] = {
      {&draws->requests_, &draws->pinned_requests_},
      {&draws->lists_, &draws->pinned_lists_},
      {&draws->records_, &draws->pinned_records_}};
  for (size_t i = 0; i < parts.size(); ++i) {
    auto device = DeviceMemory::Allocate(MemoryKind::kDevice, parts[i].bytes, parts[i].what);
    if (!device.ok()) return device.status();
    auto pinned = DeviceMemory::Allocate(MemoryKind::kPinned, parts[i].bytes, parts[i].what);
    if (!pinned.ok()) return pinned.status();
    *memories[i].first = *std::move(device);
    *memories[i].second = *std::move(pinned);
  }
  return draws;
}

size_t TokenDraws::Room(size_t bytes) {
  if (bytes > kListBytes - used_list_bytes_) return kNoRoom;
  const size_t at = used_list_bytes_;
  used_list_bytes_ = std::min(kListBytes, at + (bytes + 7) / 8 * 8);
  return at;
}

bool TokenDraws::FillLists(const TokenDraw& draw, SamplingRequest* request) {
  const std::vector<Sampler::Seen> seen = draw.sampler->seen();
  const size_t seen_at = Room(seen.size() * sizeof(SeenToken));
  if (seen_at == kNoRoom) return false;
  const size_t forbidden_at = Room(draw.forbidden.size() * sizeof(int32_t));
  if (forbidden_at == kNoRoom) return false;
  auto* listed = reinterpret_cast<SeenToken*>(pinned_lists_.data() + seen_at);
  for (const Sampler::Seen& token : seen) *listed++ = {token.id, token.output_count, 0};
  auto* forbidden = reinterpret_cast<int32_t*>(pinned_lists_.data() + forbidden_at);
  // What is outside the vocabulary, or twice there, cannot be drawn anyway.
  int32_t* end = std::copy_if(draw.forbidden.begin(), draw.forbidden.end(), forbidden,
                              [&](int32_t id) { return id >= 0 && id < vocab_size_; });
  std::sort(forbidden, end);
  end = std::unique(forbidden, end);
  request->seen = reinterpret_cast<SeenToken*>(lists_.data() + seen_at);
  request->num_seen = static_cast<int32_t>(seen.size());
  request->forbidden = reinterpret_cast<const int32_t*>(lists_.data() + forbidden_at);
  request->num_forbidden = static_cast<int32_t>(end - forbidden);
  return true;
}

void TokenDraws::DrawOnHost(size_t draw, const TokenDraw& of, const float* logits) {
  std::vector<float> row(vocab_size_);
  stream_->Copy(row.data(), logits, row.size() * sizeof(float));
  stream_->Synchronize();
  of_host_.emplace_back(draw, of.sampler->Sample(absl::MakeSpan(row), of.forbidden));
}

void TokenDraws::Ask(absl::Span<const TokenDraw> draws, absl::Span<const int> row_of,
                     float* logits) {
  used_list_bytes_ = 0;
  of_host_.clear();
  auto* requests = pinned_requests_.as<SamplingRequest>();
  for (size_t i = 0; i < draws.size(); ++i) {
    SamplingRequest& request = requests[row_of[i]];
    request = {};
    if (!FillLists(draws[i], &request)) {
      request = {};
      DrawOnHost(i, draws[i], logits + static_cast<size_t>(row_of[i]) * vocab_size_);
      continue;
    }
    const SamplingParameters& p = draws[i].sampler->parameters();
    request.temperature = p.temperature;
    request.top_k = p.top_k;
    request.top_p = p.top_p;
    request.min_p = p.min_p;
    request.repetition_penalty = p.repetition_penalty;
    request.presence_penalty = p.presence_penalty;
    request.frequency_penalty = p.frequency_penalty;
    request.logprobs = p.logprobs;
    request.uniform = draws[i].sampler->DrawNumber();
  }
  stream_->Copy(requests_.data(), requests, draws.size() * sizeof(SamplingRequest));
  if (used_list_bytes_ > 0) stream_->Copy(lists_.data(), pinned_lists_.data(), used_list_bytes_);
  LaunchSample(logits, vocab_size_, requests_.as<SamplingRequest>(), static_cast<int>(draws.size()),
               records_.as<SampledRecord>(), stream_->get());
  stream_->Copy(pinned_records_.data(), records_.data(), draws.size() * sizeof(SampledRecord));
}

void TokenDraws::Fetch(absl::Span<const TokenDraw> draws, absl::Span<const int> row_of,
                       SampledToken* tokens) {
  stream_->Synchronize();
  auto next_of_host = of_host_.begin();
  for (size_t i = 0; i < draws.size(); ++i) {
    if (next_of_host != of_host_.end() && next_of_host->first == i) {
      tokens[i] = std::move(next_of_host++->second);
      continue;
    }
    const SampledRecord& record = pinned_records_.as<SampledRecord>()[row_of[i]];
    tokens[i] = {record.token_id, record.logprob, {}};
    for (int n = 0; n < record.num_top; ++n) {
      tokens[i].top.push_back({record.top_ids[n], record.top_logprobs[n]});
    }
    draws[i].sampler->Took(record.token_id);
  }
}

}  // namespace ziggurat::cuda
