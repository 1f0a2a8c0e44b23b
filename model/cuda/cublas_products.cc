// product_library.h on cuBLASLt.
#include <cublasLt.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/cuda/product_library.h"

namespace ziggurat::cuda {
namespace {

/// What NVIDIA advises for Hopper.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

absl::Status Check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": ", cublasLtGetStatusString(status)));
}

cudaDataType TypeOf(ElementType element) {
  return element == ElementType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
}

/// What all operands are aligned to, in bytes, as far as an algorithm could ask for it.
uint32_t AlignmentOf(const Product& p) {
  const auto addresses = reinterpret_cast<uintptr_t>(p.weight) | reinterpret_cast<uintptr_t>(p.x) |
                         reinterpret_cast<uintptr_t>(p.y);
  constexpr uintptr_t kMost = 256;
  return static_cast<uint32_t>(std::min(kMost, addresses & -addresses));
}

/// One kind of product: its layouts, and the algorithm that the library's heuristics give first.
///
/// The library thinks in columns: row-major y [rows, out] is a column-major [out, rows], so it
/// computes W x, with W transposed, as it lies there row-major.
class Plan {
 public:
  static absl::StatusOr<std::unique_ptr<Plan>> Make(cublasLtHandle_t handle, const Product& p) {
    auto plan = std::make_unique<Plan>();
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const auto out = static_cast<uint64_t>(p.out_features), rows = static_cast<uint64_t>(p.rows);
    const auto in = static_cast<uint64_t>(p.in_features);
    absl::Status status;
    status.Update(Check(cublasLtMatmulDescCreate(&plan->product_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                        "cublasLtMatmulDescCreate"));
    status.Update(Check(cublasLtMatmulDescSetAttribute(plan->product_, CUBLASLT_MATMUL_DESC_TRANSA,
                                                       &transposed, sizeof(transposed)),
                        "cublasLtMatmulDescSetAttribute"));
    status.Update(Layout(TypeOf(p.element), in, out, &plan->weight_));
    status.Update(Layout(TypeOf(p.element), in, rows, &plan->x_));
    status.Update(Layout(TypeOf(p.out_element), out, rows, &plan->y_));
    if (status.ok()) status = plan->Choose(handle, p);
    if (!status.ok()) return status;
    return plan;
  }

  ~Plan() {
    cublasLtMatrixLayoutDestroy(y_);
    cublasLtMatrixLayoutDestroy(x_);
    cublasLtMatrixLayoutDestroy(weight_);
    cublasLtMatmulDescDestroy(product_);
  }

  absl::Status Run(cublasLtHandle_t handle, const Product& p, void* workspace,
                   cudaStream_t stream) const {
    const float one = 1, beta = p.accumulates ? 1 : 0;
    return Check(cublasLtMatmul(handle, product_, &one, p.weight, weight_, p.x, x_, &beta, p.y, y_,
                                p.y, y_, &algorithm_, workspace, kWorkspaceBytes, stream),
                 "cublasLtMatmul");
  }

 private:
  static absl::Status Layout(cudaDataType type, uint64_t rows, uint64_t columns,
                             cublasLtMatrixLayout_t* layout) {
    return Check(
        cublasLtMatrixLayoutCreate(layout, type, rows, columns, static_cast<int64_t>(rows)),
        "cublasLtMatrixLayoutCreate");
  }

  template <typename Value>
  static absl::Status Prefer(cublasLtMatmulPreference_t preference,
                             cublasLtMatmulPreferenceAttributes_t what, Value value) {
    return Check(cublasLtMatmulPreferenceSetAttribute(preference, what, &value, sizeof(value)),
                 "cublasLtMatmulPreferenceSetAttribute");
  }

  absl::Status Choose(cublasLtHandle_t handle, const Product& p) {
    cublasLtMatmulPreference_t preference = nullptr;
    absl::Status status =
        Check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
    if (!status.ok()) return status;
    status = Prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    for (const auto operand :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      status.Update(Prefer(preference, operand, AlignmentOf(p)));
    }
    // A sum that is cut into parts is to be one of f32: else the parts would be rounded to bf16
    // before they are added. Where the result is f32 every way of adding them is.
    if (p.out_element != ElementType::kF32) {
      status.Update(Prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                           uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}));
    }
    cublasLtMatmulHeuristicResult_t result = {};
    int found = 0;
    if (status.ok()) {
      status = Check(cublasLtMatmulAlgoGetHeuristic(handle, product_, weight_, x_, y_, y_,
                                                    preference, 1, &result, &found),
                     "cublasLtMatmulAlgoGetHeuristic");
    }
    cublasLtMatmulPreferenceDestroy(preference);
    if (status.ok() && found == 0) {
      status = absl::InternalError(absl::StrCat("cuBLASLt has no product of ", p.rows, " x ",
                                                p.in_features, " by ", p.out_features));
    }
    algorithm_ = result.algo;
    return status;
  }

  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t weight_ = nullptr, x_ = nullptr, y_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_ = {};
};

class CublasProducts final : public ProductLibrary {
 public:
  CublasProducts(Stream* stream, cublasLtHandle_t handle, DeviceMemory workspace)
      : stream_(stream), handle_(handle), workspace_(std::move(workspace)) {}
  ~CublasProducts() override {
    plans_.clear();
    cublasLtDestroy(handle_);
  }

  absl::Status Run(const Product& p) override {
    if (p.rows == 0) return absl::OkStatus();
    auto& plan =
        plans_[{p.element, p.out_element, p.rows, p.in_features, p.out_features, AlignmentOf(p)}];
    if (plan == nullptr) {
      auto made = Plan::Make(handle_, p);
      if (!made.ok()) return made.status();
      plan = *std::move(made);
    }
    absl::Status status = plan->Run(handle_, p, workspace_.data(), stream_->get());
    if (status.ok() && p.bias != nullptr) {
      LaunchAddBias(p.out_element, p.bias, p.rows, p.out_features, p.y, stream_->get());
    }
    return status;
  }

 private:
  using Kind = std::tuple<ElementType, ElementType, int, int, int, uint32_t>;

  Stream* stream_;
  cublasLtHandle_t handle_;
  DeviceMemory workspace_;
  std::map<Kind, std::unique_ptr<Plan>> plans_;
};

}  // namespace

size_t ProductLibrary::WorkspaceBytes() { return kWorkspaceBytes; }

absl::StatusOr<std::unique_ptr<ProductLibrary>> ProductLibrary::Create(Stream* stream) {
  auto workspace =
      DeviceMemory::Allocate(MemoryKind::kDevice, kWorkspaceBytes, "workspace of matrix products");
  if (!workspace.ok()) return workspace.status();
  cublasLtHandle_t handle = nullptr;
  if (absl::Status status = Check(cublasLtCreate(&handle), "cublasLtCreate"); !status.ok()) {
    return status;
  }
  return std::make_unique<CublasProducts>(stream, handle, *std::move(workspace));
}

}  // namespace ziggurat::cuda
