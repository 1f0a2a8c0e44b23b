#include <cstring>
#include <dnnl.hpp>
#include <list>
#include <new>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "attention/packed_product.h"
#include "model/decoder/aligned_bytes.h"
#include "model/decoder/linear.h"
#include "model/decoder/weight_arena.h"

namespace ziggurat {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

/// Rows for which the packed layout is chosen. oneDNN's AVX-512 kernels use the same layout for
/// every number of rows; where another one would be preferred, this one still serves.
constexpr int kPackingRows = 256;

/// Compiled kernels kept; the least recently used leave. One takes 65 to 90 KiB and 0.1 to 0.5 ms
/// to make, so 64 numbers of rows of a model's five products are at most 29 MiB.
constexpr size_t kMaxKernels = 320;

memory::data_type DataTypeOf(ElementType element) {
  return element == ElementType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
}

/// What a compiled kernel depends on; layers of equal shape share it.
struct KernelKey {
  int rows, in_features, out_features;
  ElementType element, out_element;
  bool has_bias, accumulates;

  auto Tie() const {
    return std::make_tuple(rows, in_features, out_features, element, out_element, has_bias,
                           accumulates);
  }
  bool operator==(const KernelKey& other) const { return Tie() == other.Tie(); }
  template <typename H>
  friend H AbslHashValue(H state, const KernelKey& key) {
    return H::combine(std::move(state), key.Tie());
  }
};

/// A compiled product and its argument handles, rebound to new pointers for each call.
struct Kernel {
  dnnl::matmul primitive;
  memory x, y, bias, scratch;
  size_t scratch_bytes = 0;
};

/// Engine, stream, compiled kernels and scratch memory of one model.
class OneDnnContext {
 public:
  OneDnnContext() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    if (const absl::StatusOr<CpuLevel> level = DetectCpuLevel(); level.ok()) {
      own_product_ = MakePackedProduct(*level);
    }
    // Its own cache would hold kernels that left ours.
    dnnl::set_primitive_cache_capacity(0);
  }

  const dnnl::engine& engine() const { return engine_; }
  const dnnl::stream& stream() const { return stream_; }
  /// Our own kernels over weights that oneDNN has packed; may be null.
  PackedProduct* own_product() const { return own_product_.get(); }

  static dnnl::matmul::primitive_desc Describe(const dnnl::engine& engine, const KernelKey& key,
                                               const memory::desc& weights) {
    const memory::desc x({key.rows, key.in_features}, DataTypeOf(key.element), Tag::ab);
    const memory::desc y({key.rows, key.out_features}, DataTypeOf(key.out_element), Tag::ab);
    const memory::desc bias({1, key.out_features}, memory::data_type::f32, Tag::ab);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (key.accumulates) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
#if DNNL_VERSION_MAJOR >= 3
    return key.has_bias ? dnnl::matmul::primitive_desc(engine, x, weights, bias, y, attributes)
                        : dnnl::matmul::primitive_desc(engine, x, weights, y, attributes);
#else
    const dnnl::matmul::desc desc =
        key.has_bias ? dnnl::matmul::desc(x, weights, bias, y) : dnnl::matmul::desc(x, weights, y);
    return dnnl::matmul::primitive_desc(desc, attributes, engine);
#endif
  }

  Kernel& Find(const KernelKey& key, const memory::desc& weights) {
    if (auto found = index_.find(key); found != index_.end()) {
      kernels_.splice(kernels_.begin(), kernels_, found->second);
      return kernels_.front().second;
    }
    const auto desc = Describe(engine_, key, weights);
    Kernel kernel{dnnl::matmul(desc),
                  Handle(desc.src_desc()),
                  Handle(desc.dst_desc()),
                  Handle(memory::desc({1, key.out_features}, memory::data_type::f32, Tag::ab)),
                  Handle(desc.scratchpad_desc()),
                  desc.scratchpad_desc().get_size()};
    if (kernels_.size() >= kMaxKernels) {
      index_.erase(kernels_.back().first);
      kernels_.pop_back();
    }
    kernels_.emplace_front(key, std::move(kernel));
    index_[key] = kernels_.begin();
    return kernels_.front().second;
  }

  /// At least `bytes` bytes, 64-byte aligned, valid until the next call.
  void* Scratch(size_t bytes) {
    if (bytes > scratch_bytes_) {
      scratch_ = AllocateAligned(bytes);
      scratch_bytes_ = bytes;
    }
    return scratch_.get();
  }

 private:
  memory Handle(const memory::desc& desc) const { return memory(desc, engine_, DNNL_MEMORY_NONE); }

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::list<std::pair<KernelKey, Kernel>> kernels_;  // most recently used first
  std::unordered_map<KernelKey, std::list<std::pair<KernelKey, Kernel>>::iterator,
                     absl::Hash<KernelKey>>
      index_;
  AlignedBytes scratch_;
  size_t scratch_bytes_ = 0;
  std::unique_ptr<PackedProduct> own_product_;
};

class OneDnnLinear final : public Linear {
 public:
  OneDnnLinear(OneDnnContext* context, KernelKey key, memory weights, std::vector<float> bias)
      : context_(context), key_(key), weights_(std::move(weights)), bias_(std::move(bias)) {
    const memory::dims shape = {key.in_features, key.out_features};
    const bool is_readable =
        context->own_product() != nullptr && key.in_features % 2 == 0 &&
        weights_.get_desc() == memory::desc(shape, memory::data_type::bf16, Tag::BA16a64b2a);
    if (!is_readable) return;
    own_weights_ = {.data = static_cast<const std::byte*>(weights_.get_data_handle()),
                    .in_features = key.in_features,
                    .out_features = key.out_features,
                    .bias = key.has_bias ? bias_.data() : nullptr};
  }

  absl::Status Run(const void* x, int rows, ElementType out_element, void* y) override {
    return Execute(x, rows, out_element, /*accumulates=*/false, y);
  }
  absl::Status Accumulate(const void* x, int rows, float* y) override {
    return Execute(x, rows, ElementType::kF32, /*accumulates=*/true, y);
  }

 private:
  absl::Status Execute(const void* x, int rows, ElementType out_element, bool accumulates,
                       void* y) {
    if (rows == 0) return absl::OkStatus();
    KernelKey key = key_;
    key.rows = rows;
    key.out_element = out_element;
    key.accumulates = accumulates;
    try {
      if (own_weights_.data != nullptr && rows <= context_->own_product()->max_rows()) {
        context_->own_product()->Run(own_weights_, x, rows, out_element, accumulates, y);
        return absl::OkStatus();
      }
      Kernel& kernel = context_->Find(key, weights_.get_desc());
      kernel.x.set_data_handle(const_cast<void*>(x));  // only read
      kernel.y.set_data_handle(y);
      kernel.scratch.set_data_handle(context_->Scratch(kernel.scratch_bytes));
      std::vector<dnnl_exec_arg_t>& arguments = arguments_;
      arguments = {{DNNL_ARG_SRC, kernel.x.get()},
                   {DNNL_ARG_WEIGHTS, weights_.get()},
                   {DNNL_ARG_DST, kernel.y.get()},
                   {DNNL_ARG_SCRATCHPAD, kernel.scratch.get()}};
      if (key.has_bias) {
        kernel.bias.set_data_handle(bias_.data());
        arguments.push_back({DNNL_ARG_BIAS, kernel.bias.get()});
      }
      dnnl::error::wrap_c_api(
          dnnl_primitive_execute(kernel.primitive.get(), context_->stream().get(),
                                 static_cast<int>(arguments.size()), arguments.data()),
          "could not execute a product");
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError("out of memory in a matrix product");
    } catch (const dnnl::error& error) {
      return absl::InternalError(absl::StrCat("oneDNN, product of ", rows, "x", key.in_features,
                                              " by ", key.in_features, "x", key.out_features, ": ",
                                              error.what()));
    }
    return absl::OkStatus();
  }

  OneDnnContext* context_;
  KernelKey key_;  // rows, out_element and accumulates are set by each call
  memory weights_;
  std::vector<float> bias_;
  PackedWeights own_weights_;  ///< the same, without data where their layout is another
  std::vector<dnnl_exec_arg_t> arguments_;
};

class OneDnnLinearFactory final : public LinearFactory {
 public:
  absl::StatusOr<std::unique_ptr<Linear>> Make(const WeightMatrix& weight,
                                               const std::vector<float>& bias) override {
    const ElementType element = weight.element();
    const int out_features = weight.rows();
    const int in_features = weight.columns();
    const KernelKey key = {kPackingRows, in_features,   out_features, element,
                           element,      !bias.empty(), false};
    try {
      const memory::dims shape = {in_features, out_features};
      const auto desc = OneDnnContext::Describe(context_.engine(), key,
                                                memory::desc(shape, DataTypeOf(element), Tag::any));
      // [out, in] row-major is [in, out] with the first dimension contiguous.
      memory source(memory::desc(shape, DataTypeOf(element), Tag::ba), context_.engine(),
                    const_cast<std::byte*>(weight.data()));  // only read
      std::byte* const bytes = arena_.Allocate(desc.weights_desc().get_size());
      if (bytes == nullptr) {
        return absl::ResourceExhaustedError(
            absl::StrCat("no memory for weights of ", out_features, "x", in_features));
      }
      memory packed(desc.weights_desc(), context_.engine(), bytes);
      dnnl::stream stream = context_.stream();
      dnnl::reorder(source, packed).execute(stream, source, packed);
      stream.wait();
      return std::make_unique<OneDnnLinear>(&context_, key, std::move(packed), bias);
    } catch (const dnnl::error& error) {
      return absl::InternalError(absl::StrCat("oneDNN cannot pack weights of ", out_features, "x",
                                              in_features, ": ", error.what()));
    }
  }

 private:
  WeightArena arena_;
  OneDnnContext context_;
};

}  // namespace

std::unique_ptr<LinearFactory> MakeOneDnnLinearFactory() {
  return std::make_unique<OneDnnLinearFactory>();
}

bool IsOneDnnFast(ElementType element) {
  try {
    dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    const KernelKey key = {kPackingRows, 128, 128, element, ElementType::kF32, true, true};
    const auto desc = OneDnnContext::Describe(
        engine, key, memory::desc({128, 128}, DataTypeOf(element), Tag::any));
    return std::strstr(desc.impl_info_str(), "ref") == nullptr;  // its slow reference kernel
  } catch (const dnnl::error&) {
    return false;
  }
}

}  // namespace ziggurat
