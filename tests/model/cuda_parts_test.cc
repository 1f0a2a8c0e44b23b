// The parts of the decoder on a device, each by itself.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <utility>

#include "model/cuda/product_library.h"
#include "model/cuda/seen_lists.h"
#include "model/cuda/token_draws.h"
#include "tests/attention/cuda/device_memory.h"
#include "tests/attention/test_cache.h"

namespace ziggurat::cuda {
namespace {

// ---- Matrix products ----------------------------------------------------------------------------

struct ProductCase {
  ElementType element, out_element;
  int rows, in_features, out_features;
  bool has_bias, accumulates;
};

std::vector<float> ExpectedProduct(const ProductCase& c, const Tensor& x, const Tensor& weight,
                                   const Tensor& bias, const Tensor& before) {
  std::vector<float> expected;
  for (int r = 0; r < c.rows; ++r) {
    for (int o = 0; o < c.out_features; ++o) {
      double sum = c.has_bias ? bias.at(o) : 0;
      if (c.accumulates) sum += before.at(expected.size());
      for (int i = 0; i < c.in_features; ++i) {
        sum += double{x.at(size_t{1} * r * c.in_features + i)} *
               weight.at(size_t{1} * o * c.in_features + i);
      }
      expected.push_back(static_cast<float>(sum));
    }
  }
  return expected;
}

enum class Way : uint8_t { kPlain, kLibrary, kOneRow };

TEST(CudaProducts, AreTheSumInEveryWay) {
  auto library = ProductLibrary::Create(&TestStream());
  ASSERT_TRUE(library.ok()) << library.status();
  constexpr ElementType kF32 = ElementType::kF32, kBf16 = ElementType::kBf16;
  for (const ProductCase& c : {ProductCase{kF32, kF32, 1, 48, 96, false, false},
                               ProductCase{kF32, kF32, 5, 64, 24, true, true},
                               ProductCase{kBf16, kBf16, 3, 128, 40, true, false},
                               ProductCase{kBf16, kF32, 16, 80, 64, false, true},
                               ProductCase{kBf16, kF32, 2, 72, 304, false, false},
                               ProductCase{kBf16, kBf16, 5, 72, 40, true, false},
                               ProductCase{kBf16, kF32, 1, 8, 1, false, true},
                               ProductCase{kBf16, kBf16, 1, 1032, 7, true, false},
                               ProductCase{kBf16, kF32, 1, 4360, 33, true, true},
                               ProductCase{kBf16, kBf16, 1, 264, 16391, true, true},
                               ProductCase{kBf16, kBf16, 1, 2056, 16387, false, true},
                               ProductCase{kBf16, kBf16, 4, 264, 9, false, false}}) {
    const Tensor x = RandomTensor(c.element, size_t{1} * c.rows * c.in_features, 1);
    const Tensor weight = RandomTensor(c.element, size_t{1} * c.out_features * c.in_features, 2);
    const Tensor bias = RandomTensor(kF32, c.out_features, 3);
    const Tensor before = RandomTensor(c.out_element, size_t{1} * c.rows * c.out_features, 4);
    const std::vector<float> expected = ExpectedProduct(c, x, weight, bias, before);
    OnDevice device_x(x.data(), x.bytes.size()), device_w(weight.data(), weight.bytes.size());
    OnDevice device_bias(bias.data(), bias.bytes.size());
    for (const Way way : {Way::kPlain, Way::kLibrary, Way::kOneRow}) {
      OnDevice y(before.data(), before.bytes.size());
      const Product product{c.element,      device_x.get(),
                            device_w.get(), c.has_bias ? device_bias.get<float>() : nullptr,
                            c.rows,         c.in_features,
                            c.out_features, c.out_element,
                            y.get(),        c.accumulates};
      if (way == Way::kOneRow && !SuitsOneRow(product)) continue;
      if (way == Way::kPlain) LaunchPlainProduct(product, TestStream().get());
      if (way == Way::kOneRow) LaunchOneRowProduct(product, TestStream().get());
      if (way == Way::kLibrary) {
        ASSERT_TRUE((*library)->Run(product).ok());
      }
      Tensor actual(c.out_element, expected.size());
      y.CopyTo(actual.data());
      EXPECT_LE(Deviation(actual.floats(), expected), Tolerance(c.out_element))
          << "way " << static_cast<int>(way) << ", " << c.rows << " x " << c.in_features << " x "
          << c.out_features;
    }
  }
}

/// Of x and weights in bf16, to f32.
Product Bf16Product(const void* x, const void* weight, int rows, int in_features, int out_features,
                    void* y) {
  Product product;
  product.element = ElementType::kBf16;
  product.x = x;
  product.weight = weight;
  product.rows = rows;
  product.in_features = in_features;
  product.out_features = out_features;
  product.y = y;
  return product;
}

// Behind a library's product; more columns than a block has threads.
TEST(CudaProducts, BiasIsAddedToEveryRow) {
  constexpr int kRows = 3, kWidth = 300;
  for (const ElementType element : {ElementType::kF32, ElementType::kBf16}) {
    Tensor y = RandomTensor(element, size_t{kRows} * kWidth, 1);
    const Tensor bias = RandomTensor(ElementType::kF32, kWidth, 2);
    Tensor expected = y;
    for (int i = 0; i < kRows * kWidth; ++i) expected.set(i, y.at(i) + bias.at(i % kWidth));
    OnDevice device_y(y.data(), y.bytes.size()), device_bias(bias.data(), bias.bytes.size());
    LaunchAddBias(element, device_bias.get<float>(), kRows, kWidth, device_y.get(),
                  TestStream().get());
    device_y.CopyTo(y.data());
    EXPECT_EQ(y.floats(), expected.floats()) << Name(element);
  }
}

TEST(CudaProducts, FusedNormalizeBeforeAndGateAfter) {
  constexpr float kEpsilon = 1e-3f;
  for (const auto& [in, out] : {std::pair{8, 2}, {1040, 14}, {264, 6}, {4120, 36}, {1040, 16390}}) {
    const Tensor x = RandomTensor(ElementType::kF32, in, 7);
    const Tensor norm = RandomTensor(ElementType::kF32, in, 8);
    const Tensor weight = RandomTensor(ElementType::kBf16, size_t{1} * out * in, 9);
    const Tensor bias = RandomTensor(ElementType::kF32, out, 10);
    Tensor normed(ElementType::kF32, in);
    MakeReferenceBackend()->RmsNorm(static_cast<const float*>(x.data()),
                                    static_cast<const float*>(norm.data()), kEpsilon, 1, in,
                                    ElementType::kF32, normed.data());
    const ProductCase c = {ElementType::kF32, ElementType::kF32, 1, in, out, true, false};
    const std::vector<float> sums = ExpectedProduct(c, normed, weight, bias, Tensor());
    OnDevice device_x(x.data(), x.bytes.size()), device_norm(norm.data(), norm.bytes.size());
    OnDevice device_w(weight.data(), weight.bytes.size());
    OnDevice device_bias(bias.data(), bias.bytes.size());
    for (const bool gates : {false, true}) {
      std::vector<float> expected = sums;
      if (gates) {
        expected.resize(out / 2);
        for (int i = 0; i < out / 2; ++i) {
          expected[i] = sums[i] / (1 + std::exp(-sums[i])) * sums[out / 2 + i];
        }
      }
      OnDevice y(expected.size() * sizeof(float));
      FusedProduct fused = {Bf16Product(device_x.get(), device_w.get(), 1, in, out, y.get()),
                            device_norm.get<float>(), kEpsilon, gates};
      fused.product.bias = device_bias.get<float>();
      ASSERT_TRUE(SuitsFusion(fused));
      LaunchFusedProduct(fused, TestStream().get());
      std::vector<float> actual(expected.size());
      y.CopyTo(actual.data());
      EXPECT_LE(Deviation(actual, expected), Tolerance(ElementType::kF32))
          << in << " x " << out << (gates ? " with gates" : "");
    }
  }
}

TEST(CudaProducts, OfOneRowRefuseWhatTheyDoNotSuit) {
  alignas(16) const uint16_t numbers[16] = {};
  const Product product = Bf16Product(numbers, numbers, 1, 16, 1, nullptr);
  EXPECT_TRUE(SuitsOneRow(product));
  const auto changed = [&](auto change) {
    Product other = product;
    change(other);
    return SuitsOneRow(other);
  };
  EXPECT_FALSE(changed([](Product& p) { p.element = ElementType::kF32; }));
  EXPECT_FALSE(changed([](Product& p) { ++p.rows; }));
  EXPECT_FALSE(changed([](Product& p) { p.rows = 0; }));
  EXPECT_FALSE(changed([](Product& p) { p.in_features = 12; }));
  EXPECT_FALSE(changed([&](Product& p) { p.x = numbers + 1; }));
  EXPECT_FALSE(changed([&](Product& p) { p.weight = numbers + 4; }));

  const auto* norm = reinterpret_cast<const float*>(numbers);
  EXPECT_TRUE(SuitsFusion({product, norm}));
  EXPECT_FALSE(SuitsFusion({product, norm + 1}));
  Product two_rows = product;
  two_rows.rows = 2;
  EXPECT_FALSE(SuitsFusion({two_rows, norm}));
}

// ---- Draws --------------------------------------------------------------------------------------

TEST(TokenDraws, OfAListThatFindsNoRoomAreTheHosts) {
  constexpr int kVocabulary = 420000;  // twice as many are too much for a step
  SamplingParameters penalized;
  penalized.repetition_penalty = 1.5f;
  penalized.logprobs = 2;
  std::vector<int32_t> everything(kVocabulary);
  std::iota(everything.begin(), everything.end(), 0);
  const std::vector<int32_t> few = {7, 7, 9};
  Sampler samplers[] = {{penalized, everything, kVocabulary},
                        {penalized, few, kVocabulary},
                        {penalized, everything, kVocabulary}};
  Sampler twins[] = {{penalized, everything, kVocabulary},
                     {penalized, few, kVocabulary},
                     {penalized, everything, kVocabulary}};
  const std::vector<int32_t> forbidden = {11};

  auto draws = TokenDraws::Create(&TestStream(), 3, kVocabulary);
  ASSERT_TRUE(draws.ok()) << draws.status();
  const std::vector<float> logits =
      RandomTensor(ElementType::kF32, size_t{3} * kVocabulary, 3).floats();
  OnDevice device_logits(logits.data(), logits.size() * sizeof(float));
  const TokenDraw how[] = {
      {&samplers[0], forbidden}, {&samplers[1], forbidden}, {&samplers[2], forbidden}};
  const int rows[] = {1, 0, 2};
  const uint64_t sequences[] = {1, 2, 3};
  SampledToken tokens[3];
  (*draws)->Ask(how, sequences, rows, device_logits.get<float>());
  TestStream().Synchronize();
  (*draws)->Fetch(how, rows, tokens);
  for (int i = 0; i < 3; ++i) {
    std::vector<float> row(logits.begin() + rows[i] * kVocabulary,
                           logits.begin() + (rows[i] + 1) * kVocabulary);
    const SampledToken expected = twins[i].Sample(absl::MakeSpan(row), forbidden);
    EXPECT_EQ(tokens[i].token_id, expected.token_id) << i;
    EXPECT_NEAR(tokens[i].logprob, expected.logprob, 1e-4) << i;
    EXPECT_EQ(tokens[i].top.size(), expected.top.size()) << i;
    EXPECT_EQ(samplers[i].num_seen(), twins[i].num_seen()) << i;
  }
}

SeenToken FirstOf(const SeenToken* list) {
  SeenToken first;
  TestStream().Copy(&first, list, sizeof(first));
  TestStream().Synchronize();
  return first;
}

TEST(SeenLists, AreSentOnceAndAgainWhereTheDeviceCannotKnow) {
  auto lists = SeenLists::Create(&TestStream(), 1, 100);
  ASSERT_TRUE(lists.ok()) << lists.status();
  SamplingParameters penalized;
  penalized.presence_penalty = 0.5f;
  Sampler sampler(penalized, {}, 100);
  sampler.Took(7);
  const auto ask = [&] { return (*lists)->BeginStep(), (*lists)->Of(1, sampler); };
  SeenToken* const list = ask();
  ASSERT_NE(list, nullptr);
  EXPECT_EQ(FirstOf(list).output_count, 1);
  // The kernel counts the token that it draws.
  const SeenToken counted = {7, 2, 0};
  TestStream().Copy(list, &counted, sizeof(counted));
  sampler.Took(9);
  EXPECT_EQ(ask(), list);
  EXPECT_EQ(FirstOf(list).output_count, 2) << "sent again";
  sampler.Took(9);
  sampler.Took(9);  // one of them elsewhere
  EXPECT_EQ(ask(), list);
  EXPECT_EQ(FirstOf(list).output_count, FirstOf(list).id == 7 ? 1 : 3);
}

TEST(SeenLists, MakeRoomForOthersButNotForThoseOfTheSameStep) {
  // Room for 16,384 tokens, which is one whole vocabulary's.
  constexpr int kVocabulary = 13000;
  auto lists = SeenLists::Create(&TestStream(), 1, kVocabulary);
  ASSERT_TRUE(lists.ok()) << lists.status();
  SamplingParameters penalized;
  penalized.repetition_penalty = 1.5f;
  const auto of_so_many = [&](int count) {
    std::vector<int32_t> prompt(count);
    std::iota(prompt.begin(), prompt.end(), 0);
    return Sampler(penalized, prompt, kVocabulary);
  };
  const Sampler small = of_so_many(1000), large = of_so_many(6000), all = of_so_many(kVocabulary);
  for (uint64_t sequence = 1; sequence < 100; ++sequence) {
    (*lists)->BeginStep();
    ASSERT_NE((*lists)->Of(sequence, sequence % 5 == 0 ? large : small), nullptr) << sequence;
    EXPECT_EQ((*lists)->Of(1000 + sequence, all), nullptr);
  }
  (*lists)->BeginStep();
  (*lists)->BeginStep();
  EXPECT_NE((*lists)->Of(200, large), nullptr);
  EXPECT_NE((*lists)->Of(201, large), nullptr);
  EXPECT_EQ((*lists)->Of(202, large), nullptr);
  (*lists)->BeginStep();
  (*lists)->BeginStep();
  EXPECT_NE((*lists)->Of(203, all), nullptr) << "with no more room than for one token";
}

/// A sequence that draws on the device, and its twin on the host.
struct DrawingSequence {
  uint64_t id = 0;
  Sampler sampler, twin;

  DrawingSequence(uint64_t own_id, const SamplingParameters& parameters,
                  const std::vector<int32_t>& prompt, int vocab_size)
      : id(own_id), sampler(parameters, prompt, vocab_size), twin(parameters, prompt, vocab_size) {}
};

SamplingParameters SomePenalties(uint64_t id) {
  SamplingParameters p;
  p.seed = id;
  if (id % 2 == 0) p.temperature = 0.8f;
  if (id % 3 != 0) p.repetition_penalty = 1.2f;
  if (id % 5 < 2) p.presence_penalty = 0.5f;
  if (id % 7 < 3) p.frequency_penalty = 0.3f;
  if (id % 11 == 0) p.logprobs = 3;
  return p;
}

/// Penalties count on by themselves on the device, in lists that grow, move, and make room for
/// others.
TEST(TokenDraws, CountWhatSequencesThatComeAndGoHaveSeen) {
  constexpr int kRows = 4;
  constexpr int kVocabulary = 700;
  auto draws = TokenDraws::Create(&TestStream(), kRows, kVocabulary);
  ASSERT_TRUE(draws.ok()) << draws.status();
  std::mt19937 random(17);
  std::vector<std::unique_ptr<DrawingSequence>> live;
  uint64_t next_id = 1;
  for (int step = 0; step < 160; ++step) {
    // One stays, and so outgrows its list; the others come and go, until the first ones' lists
    // must make room.
    while (live.size() > 1 && random() % 2 == 0) live.erase(live.begin() + 1);
    while (live.size() < kRows) {
      std::vector<int32_t> prompt(1 + random() % 600);
      for (int32_t& token : prompt) token = static_cast<int32_t>(random() % kVocabulary);
      live.push_back(
          std::make_unique<DrawingSequence>(next_id, SomePenalties(next_id), prompt, kVocabulary));
      ++next_id;
    }
    // Some tokens are drawn elsewhere.
    if (step % 50 == 49) live[0]->sampler.Took(step), live[0]->twin.Took(step);

    const std::vector<float> logits =
        RandomTensor(ElementType::kF32, size_t{kRows} * kVocabulary, step).floats();
    OnDevice device_logits(logits.data(), logits.size() * sizeof(float));
    std::vector<int> rows(kRows);
    std::iota(rows.begin(), rows.end(), 0);
    std::shuffle(rows.begin(), rows.end(), random);
    std::vector<TokenDraw> how;
    std::vector<uint64_t> ids;
    for (const auto& sequence : live) {
      how.push_back({&sequence->sampler, {}});
      ids.push_back(sequence->id);
    }
    SampledToken tokens[kRows];
    (*draws)->Ask(how, ids, rows, device_logits.get<float>());
    TestStream().Synchronize();
    (*draws)->Fetch(how, rows, tokens);
    for (int i = 0; i < kRows; ++i) {
      std::vector<float> row(logits.begin() + rows[i] * kVocabulary,
                             logits.begin() + (rows[i] + 1) * kVocabulary);
      const SampledToken expected = live[i]->twin.Sample(absl::MakeSpan(row), {});
      ASSERT_EQ(tokens[i].token_id, expected.token_id) << "step " << step << " sequence " << ids[i];
      ASSERT_NEAR(tokens[i].logprob, expected.logprob, 1e-4);
    }
  }
  EXPECT_GT(next_id, 130u);
}

}  // namespace
}  // namespace ziggurat::cuda
