#include "model/cuda/token_draws.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace ziggurat::cuda {
namespace {

/// Forbidden tokens of a step, for each sequence on average.
constexpr size_t kForbiddenOfRow = 256;
static_assert(kMaxLogprobs == SamplingParameters::kMostLogprobs);

std::vector<MemoryPart> OwnParts(int rows) {
  return {{"requests for tokens", rows * sizeof(SamplingRequest)},
          {"forbidden tokens", rows * kForbiddenOfRow * sizeof(int32_t)},
          {"drawn tokens", rows * sizeof(SampledRecord)}};
}

}  // namespace

std::vector<MemoryPart> TokenDraws::Parts(int rows, int vocab_size) {
  std::vector<MemoryPart> parts = SeenLists::Parts(rows, vocab_size);
  for (const MemoryPart& part : OwnParts(rows)) parts.push_back(part);
  return parts;
}

absl::StatusOr<std::unique_ptr<TokenDraws>> TokenDraws::Create(Stream* stream, int rows,
                                                               int vocab_size) {
  std::unique_ptr<TokenDraws> draws(new TokenDraws(stream, rows, vocab_size));
  auto seen = SeenLists::Create(stream, rows, vocab_size);
  if (!seen.ok()) return seen.status();
  draws->seen_ = *std::move(seen);
  const std::vector<MemoryPart> parts = OwnParts(rows);
  const std::pair<DeviceMemory*, DeviceMemory*> memories[] = {
      {&draws->requests_, &draws->pinned_requests_},
      {&draws->forbidden_, &draws->pinned_forbidden_},
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

bool TokenDraws::FillLists(const TokenDraw& draw, uint64_t sequence, SamplingRequest* request) {
  if (draw.forbidden.size() > rows_ * kForbiddenOfRow - num_forbidden_) return false;
  if (draw.sampler->penalizes()) {
    request->num_seen = draw.sampler->num_seen();
    request->seen = seen_->Of(sequence, *draw.sampler);
    if (request->seen == nullptr) return false;
  }
  auto* forbidden = pinned_forbidden_.as<int32_t>() + num_forbidden_;
  // What is outside the vocabulary, or twice there, cannot be drawn anyway.
  int32_t* end = std::copy_if(draw.forbidden.begin(), draw.forbidden.end(), forbidden,
                              [&](int32_t id) { return id >= 0 && id < vocab_size_; });
  std::sort(forbidden, end);
  end = std::unique(forbidden, end);
  request->forbidden = forbidden_.as<const int32_t>() + num_forbidden_;
  request->num_forbidden = static_cast<int32_t>(end - forbidden);
  num_forbidden_ += request->num_forbidden;
  return true;
}

void TokenDraws::DrawOnHost(size_t draw, const TokenDraw& of, const float* logits) {
  std::vector<float> row(vocab_size_);
  stream_->Copy(row.data(), logits, row.size() * sizeof(float));
  stream_->Synchronize();
  of_host_.emplace_back(draw, of.sampler->Sample(absl::MakeSpan(row), of.forbidden));
}

void TokenDraws::Ask(absl::Span<const TokenDraw> draws, absl::Span<const uint64_t> sequences,
                     absl::Span<const int> row_of, float* logits) {
  seen_->BeginStep();
  num_forbidden_ = 0;
  of_host_.clear();
  auto* requests = pinned_requests_.as<SamplingRequest>();
  for (size_t i = 0; i < draws.size(); ++i) {
    SamplingRequest& request = requests[row_of[i]];
    request = {};
    if (!FillLists(draws[i], sequences[i], &request)) {
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
  if (num_forbidden_ > 0) {
    stream_->Copy(forbidden_.data(), pinned_forbidden_.data(), num_forbidden_ * sizeof(int32_t));
  }
  LaunchSample(logits, vocab_size_, requests_.as<SamplingRequest>(), static_cast<int>(draws.size()),
               records_.as<SampledRecord>(), stream_->get());
  stream_->Copy(pinned_records_.data(), records_.data(), draws.size() * sizeof(SampledRecord));
}

void TokenDraws::Fetch(absl::Span<const TokenDraw> draws, absl::Span<const int> row_of,
                       SampledToken* tokens) {
  auto next_of_host = of_host_.begin();
  for (size_t i = 0; i < draws.size(); ++i) {
    if (next_of_host != of_host_.end() && next_of_host->first == i) {
      tokens[i] = std::move(next_of_host++->second);
      continue;
    }
    const SampledRecord& record = pinned_records_.as<SampledRecord>()[row_of[i]];
    tokens[i] = {record.token_id, record.logprob, {}, record.is_arbitrary != 0};
    for (int n = 0; n < record.num_top; ++n) {
      tokens[i].top.push_back({record.top_ids[n], record.top_logprobs[n]});
    }
    draws[i].sampler->Took(record.token_id);
  }
}

}  // namespace ziggurat::cuda
