// The attention that calibrations are shown, against a plain softmax.
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/bfloat16.h"
#include "gtest/gtest.h"
#include "model/cache_ops/prompt_layer.h"

namespace ziggurat {
namespace {

constexpr AttentionShape kShape = {4, 2, 16, 0.25f};

/// A tensor as the workspace holds it, and the numbers that it stands for.
struct Tensor {
  ElementType element;
  std::vector<float> numbers;
  std::vector<uint16_t> bf16;

  Tensor(ElementType type, size_t size, std::mt19937& random) : element(type) {
    std::normal_distribution<float> normal(0, 2);
    for (size_t i = 0; i < size; ++i) {
      float number = normal(random);
      if (type == ElementType::kBf16) {
        bf16.push_back(FloatToBf16(number));
        number = Bf16ToFloat(bf16.back());
      }
      numbers.push_back(number);
    }
  }
  void* data() {
    return element == ElementType::kBf16 ? static_cast<void*>(bf16.data()) : numbers.data();
  }
};

/// [num_q_heads, rows, tokens]
std::vector<double> PlainAttention(const std::vector<float>& q, const std::vector<float>& k,
                                   int tokens, int rows) {
  std::vector<double> all;
  for (int head = 0; head < kShape.num_q_heads; ++head) {
    for (int i = tokens - rows; i < tokens; ++i) {
      std::vector<double> row(tokens);
      double sum = 0;
      for (int j = 0; j <= i; ++j) {
        double dot = 0;
        for (int c = 0; c < kShape.head_dim; ++c) {
          dot += static_cast<double>(q[(i * kShape.num_q_heads + head) * kShape.head_dim + c]) *
                 k[(j * kShape.num_kv_heads + head / kShape.group_size()) * kShape.head_dim + c];
        }
        sum += row[j] = std::exp(kShape.scale * dot);
      }
      for (const double share : row) all.push_back(share / sum);
    }
  }
  return all;
}

void ExpectPlainAttention(AttentionBackend& backend, ElementType element, int tokens, int rows) {
  SCOPED_TRACE(testing::Message() << backend.name() << " " << ElementTypeName(element) << ", "
                                  << rows << " of " << tokens << " tokens");
  std::mt19937 random(tokens + rows);
  const size_t q_width = kShape.num_q_heads * kShape.head_dim;
  const size_t kv_width = kShape.num_kv_heads * kShape.head_dim;
  Tensor q(element, tokens * q_width, random), k(element, tokens * kv_width, random),
      v(element, tokens * kv_width, random);
  const std::vector<double> plain = PlainAttention(q.numbers, k.numbers, tokens, rows);

  CachePlan plan;
  plan.layers.resize(1);
  std::vector<float> window(rows * q_width), lse(tokens * kShape.num_q_heads);
  PromptBuffers buffers;
  buffers.window_rows = rows;
  buffers.window_q = window.data();
  PromptLayers layers(&backend, kShape, tokens, &plan, buffers);
  const PromptTensors at{element, q.data(), k.data(), v.data(), q.data(), lse.data()};
  layers.Prepare(0, at);
  const std::vector<int> offsets = {0, tokens};
  backend.PrefillAttention(kShape, {offsets}, at);
  std::vector<float> attention(plain.size(), -1);
  layers.LastAttention(at, rows, attention.data());
  // The log-sum-exp of the backend's own attention: in bf16 not quite the plain one.
  const double tolerance = element == ElementType::kF32 ? 2e-5 : 1e-2;
  for (size_t i = 0; i < plain.size(); ++i) {
    const size_t row = i / tokens % rows, token = i % tokens;
    if (token > tokens - rows + row) {
      ASSERT_EQ(attention[i], 0) << "row " << row << " sees token " << token;
    }
    ASSERT_NEAR(attention[i], plain[i], tolerance) << "row " << row << ", token " << token;
  }
}

void ExpectPlainAttention(AttentionBackend& backend) {
  for (const ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    for (const int tokens : {1, 7, 65, 200}) {
      for (const int rows : {1, 5, 64, 200}) {
        if (rows <= tokens) ExpectPlainAttention(backend, element, tokens, rows);
      }
    }
  }
}

TEST(LastAttention, OfTheReferenceIsAPlainSoftmax) {
  ExpectPlainAttention(*MakeReferenceBackend());
}

TEST(LastAttention, OfTheCpuIsAPlainSoftmax) {
  const auto level = DetectCpuLevel();
  if (!level.ok()) GTEST_SKIP() << level.status();
  const auto backend = MakeCpuBackend(*level, 2);
  ASSERT_TRUE(backend.ok()) << backend.status();
  ExpectPlainAttention(**backend);
}

}  // namespace
}  // namespace ziggurat
