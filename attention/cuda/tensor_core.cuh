// The few instructions of tensor cores, each with what it does written out for the emulator.
//
// Lane 4 r + c of a warp (r = 0 .. 7, c = 0 .. 3) holds of the matrices of D[16, 8] += A[16, 16]
// B[16, 8], two bf16 in each register, the lower column (of B: row) in the lower half:
//   a[0] A[r][2c, 2c+1]      a[2] A[r][2c+8, 2c+9]       b[0] B[2c, 2c+1][r]
//   a[1] A[r+8][2c, 2c+1]    a[3] A[r+8][2c+8, 2c+9]     b[1] B[2c+8, 2c+9][r]
//   d[0], d[1] D[r][2c], D[r][2c+1]      d[2], d[3] D[r+8][2c], D[r+8][2c+1]
// Of an 8 x 8 matrix of 16-bit numbers it holds [r][2c, 2c+1].
#pragma once

#include "attention/bfloat16.h"
#include "attention/cuda/cells.cuh"

namespace ziggurat::cuda {

constexpr float kLog2E = 1.4426950408889634F, kLn2 = 0.6931471805599453F;

#if defined(__CUDACC__)

__device__ inline void MultiplyAdd(const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                   float (&d)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The transposed of an 8 x 8 matrix.
__device__ inline uint32_t Transpose(uint32_t pair) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(transposed) : "r"(pair));
  return transposed;
}

/// Four 8 x 8 matrices from shared memory: lane l names row l % 8 of matrix l / 8, aligned to 16
/// bytes. matrices[i]: what this lane holds of matrix i.
__device__ inline void LoadMatrices(const uint16_t* row, uint32_t (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

/// As LoadMatrices, and each matrix transposed.
__device__ inline void LoadMatricesTransposed(const uint16_t* row, uint32_t (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

/// 2^x, to about two units in the last place.
__device__ inline float Exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(power) : "f"(x));
  return power;
}

/// Two bf16, rounded to nearest even.
__device__ inline uint32_t PackBf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// a * b + c of two bf16 each.
__device__ inline uint32_t FusedBf16(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

/// a & b | c, in one instruction also where two of them are constants.
__device__ inline uint32_t AndOr(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;\n" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

/// x stays in a register: else the compiler may work it out anew wherever it is used.
template <typename T>
__device__ void Keep(T& x) {
  asm volatile("" : "+r"(x));
}

/// Whatever a register holds: for rows of a fragment whose sums nobody looks at.
__device__ inline uint32_t Anything() {
  uint32_t x;
  asm("" : "=r"(x));
  return x;
}

#else

inline void MultiplyAdd(const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float (&d)[4],
                        std::source_location where = std::source_location::current()) {
  cuda_emulator::LaneValue own;
  own.words[0] = a[0] | uint64_t{a[1]} << 32;
  own.words[1] = a[2] | uint64_t{a[3]} << 32;
  own.words[2] = b0 | uint64_t{b1} << 32;
  const unsigned r = cuda_emulator::CurrentLane() / 4, c = cuda_emulator::CurrentLane() % 4;
  cuda_emulator::WarpExchange(kAllLanes, own, where, [&](const auto* lanes) {
    const auto number = [](uint64_t registers, unsigned which, unsigned half) {
      return Bf16ToFloat(static_cast<uint16_t>(registers >> (32 * which + 16 * half)));
    };
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned column = k % 8 / 2;
      for (unsigned i = 0; i < 4; ++i) {  // d[i] is D[r + 8 (i / 2)][2c + i % 2]
        const float x = number(lanes[4 * r + column].words[k / 8], i / 2, k % 2);
        const float y = number(lanes[4 * (2 * c + i % 2) + column].words[2], k / 8, k % 2);
        d[i] += x * y;
      }
    }
  });
}

inline uint32_t Transpose(uint32_t pair,
                          std::source_location where = std::source_location::current()) {
  cuda_emulator::LaneValue own;
  own.words[0] = pair;
  const unsigned r = cuda_emulator::CurrentLane() / 4, c = cuda_emulator::CurrentLane() % 4;
  uint32_t transposed = 0;
  cuda_emulator::WarpExchange(kAllLanes, own, where, [&](const auto* lanes) {
    for (unsigned half = 0; half < 2; ++half) {
      const auto from = static_cast<uint32_t>(lanes[4 * (2 * c + half) + r / 2].words[0]);
      transposed |= (from >> (16 * (r % 2)) & 0xffff) << (16 * half);
    }
  });
  return transposed;
}

inline void LoadMatrices(const uint16_t* row, bool is_transposed, uint32_t (&matrices)[4],
                         std::source_location where) {
  cuda_emulator::CheckAligned(reinterpret_cast<const uint4*>(row), where);
  cuda_emulator::LaneValue own;
  own.words[0] = reinterpret_cast<uintptr_t>(row);
  const unsigned r = cuda_emulator::CurrentLane() / 4, c = cuda_emulator::CurrentLane() % 4;
  cuda_emulator::WarpExchange(kAllLanes, own, where, [&](const auto* lanes) {
    const auto number = [&](unsigned matrix, unsigned i, unsigned j) -> uint32_t {
      if (is_transposed) std::swap(i, j);
      return reinterpret_cast<const uint16_t*>(lanes[8 * matrix + i].words[0])[j];
    };
    for (unsigned i = 0; i < 4; ++i) {
      matrices[i] = number(i, r, 2 * c) | number(i, r, 2 * c + 1) << 16;
    }
  });
}

inline void LoadMatrices(const uint16_t* row, uint32_t (&matrices)[4],
                         std::source_location where = std::source_location::current()) {
  LoadMatrices(row, false, matrices, where);
}

inline void LoadMatricesTransposed(const uint16_t* row, uint32_t (&matrices)[4],
                                   std::source_location where = std::source_location::current()) {
  LoadMatrices(row, true, matrices, where);
}

inline float Exp2(float x) { return std::exp2(x); }

inline uint32_t PackBf16(float low, float high) {
  return FloatToBf16(low) | static_cast<uint32_t>(FloatToBf16(high)) << 16;
}

inline uint32_t FusedBf16(uint32_t a, uint32_t b, uint32_t c) {
  const auto fused = [&](int shift) {
    const auto number = [shift](uint32_t pair) {
      return Bf16ToFloat(static_cast<uint16_t>(pair >> shift));
    };
    return number(a) * number(b) + number(c);
  };
  return PackBf16(fused(0), fused(16));
}

inline uint32_t AndOr(uint32_t a, uint32_t b, uint32_t c) { return (a & b) | c; }

template <typename T>
void Keep(T&) {}

inline uint32_t Anything() { return 0x7fc07fc0u; }  // NaN

#endif

}  // namespace ziggurat::cuda
