#include "model/decoder/head_padding.h"

#include <cstddef>
#include <cstring>
#include <utility>

namespace ziggurat {
namespace {

WeightMatrix Zeros(int rows, int columns, ElementType element) {
  WeightMatrix matrix(rows, columns, element);
  std::memset(matrix.data(), 0, matrix.bytes());
  return matrix;
}

}  // namespace

HeadPadding::HeadPadding(const ModelConfig& config)
    : rotated_heads_(config.num_q_heads + config.num_kv_heads),
      heads_(rotated_heads_ + config.num_kv_heads),
      stored_(config.head_dim),
      padded_(config.padded_head_dim()) {}

int HeadPadding::PaddedRow(int row) const {
  const int head = row / stored_, channel = row % stored_;
  const bool is_second_half = head < rotated_heads_ && channel >= stored_ / 2;
  return head * padded_ + channel + (is_second_half ? (padded_ - stored_) / 2 : 0);
}

void HeadPadding::PadQkv(Projection& qkv) const {
  if (!is_needed()) return;
  auto& [weight, bias] = qkv;
  WeightMatrix padded = Zeros(heads_ * padded_, weight.columns(), weight.element());
  const size_t row_bytes = weight.bytes() / weight.rows();
  for (int row = 0; row < weight.rows(); ++row) {
    std::memcpy(padded.data() + PaddedRow(row) * row_bytes, weight.data() + row * row_bytes,
                row_bytes);
  }
  weight = std::move(padded);
  if (bias.empty()) return;
  std::vector<float> padded_bias(static_cast<size_t>(heads_) * padded_);
  for (size_t row = 0; row < bias.size(); ++row) {
    padded_bias[PaddedRow(static_cast<int>(row))] = bias[row];
  }
  bias = std::move(padded_bias);
}

void HeadPadding::PadOutput(Projection& output) const {
  if (!is_needed()) return;
  WeightMatrix& weight = output.weight;
  const int heads = weight.columns() / stored_;
  WeightMatrix padded = Zeros(weight.rows(), heads * padded_, weight.element());
  const size_t element_bytes = ElementBytes(weight.element());
  const size_t stored_bytes = stored_ * element_bytes, padded_bytes = padded_ * element_bytes;
  for (size_t i = 0; i < static_cast<size_t>(weight.rows()) * heads; ++i) {
    std::memcpy(padded.data() + i * padded_bytes, weight.data() + i * stored_bytes, stored_bytes);
  }
  weight = std::move(padded);
}

}  // namespace ziggurat
