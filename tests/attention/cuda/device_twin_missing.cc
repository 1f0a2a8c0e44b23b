#include "gtest/gtest.h"
#include "tests/attention/cuda/device_twin.h"

namespace ziggurat::cuda {

void DeviceTwin::PrefillAttention(const AttentionShape&, const PackedSequences&, ElementType,
                                  const void*, const void*, const void*, void*, float*) {
  ADD_FAILURE() << "no kernel: PrefillAttention";
}
void DeviceTwin::PrefillDistantAttention(const AttentionShape&, int, ElementType, const void*,
                                         const void*, const void*, const DistantPrefill&, void*,
                                         float*, DistantCounts*) {
  ADD_FAILURE() << "no kernel: PrefillDistantAttention";
}
void DeviceTwin::WindowScores(const AttentionShape&, ElementType, const void*, const float*,
                              const void*, int, int, int, ScorePooling, float*) {
  ADD_FAILURE() << "no kernel: WindowScores";
}
void DeviceTwin::ColumnSums(const AttentionShape&, ElementType, const void*, const float*,
                            const void*, int, int, int, int, ScoreRows, float*) {
  ADD_FAILURE() << "no kernel: ColumnSums";
}
void DeviceTwin::SelectBest(const float*, int, int, int, int32_t*) {
  ADD_FAILURE() << "no kernel: SelectBest";
}
int DeviceTwin::SelectWindows(const float*, int, int, int, int, int, int32_t*) {
  ADD_FAILURE() << "no kernel: SelectWindows";
  return 0;
}
double DeviceTwin::CosineSum(const float*, const float*, int, int) {
  ADD_FAILURE() << "no kernel: CosineSum";
  return 0;
}
void DeviceTwin::AccumulateScores(const AttentionShape&, absl::Span<const DecodeItem>, const float*,
                                  const float*, PoolView) {
  ADD_FAILURE() << "no kernel: AccumulateScores";
}
double DeviceTwin::SlotMass(const AttentionShape&, const SegmentView&, int, int, const float*,
                            const float*, PoolView) {
  ADD_FAILURE() << "no kernel: SlotMass";
  return 0;
}
void DeviceTwin::RmsNorm(const float*, const float*, float, int, int, ElementType, void*) {
  ADD_FAILURE() << "no kernel: RmsNorm";
}
void DeviceTwin::SplitAndRotate(const AttentionShape&, ElementType, const void*, const float*,
                                const float*, int, ElementType, void*, void*, void*) {
  ADD_FAILURE() << "no kernel: SplitAndRotate";
}
void DeviceTwin::SwiGlu(ElementType, const void*, int, int, void*) {
  ADD_FAILURE() << "no kernel: SwiGlu";
}
void DeviceTwin::AddResidual(ElementType, const void*, size_t, float*) {
  ADD_FAILURE() << "no kernel: AddResidual";
}
void DeviceTwin::Convert(ElementType, const void*, size_t, ElementType, void*) {
  ADD_FAILURE() << "no kernel: Convert";
}

}  // namespace ziggurat::cuda
