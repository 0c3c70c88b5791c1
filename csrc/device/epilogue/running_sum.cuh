// The sum of cuts of K that one warpgroup computes one after the other: p0 + p1 + ..., fp32, ascending from the first,
// with the roundings of split_k_reduce.cuh and cluster_reduce.cuh, so that D has the same bits.
//
// Each cut is accumulated from zero, so that the sum of those before it waits elsewhere: in registers where they hold
// both, else in device memory, which is L2's for as long as a tile takes. There a lane reads what it wrote itself, in
// the accumulators' own order: no fence, no barrier, whole lines.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "device/ptx/thread.cuh"

namespace gemmx::device {

// kCount: accumulators of a lane in a block, a multiple of 4.
template <int kBlocks, int kCount, bool kInRegisters>
struct RunningSum {
  using Accumulators = float[kBlocks][kCount];
  static constexpr int kThreads = 128;
  static constexpr int64_t kFloats = kInRegisters ? 0 : kBlocks * kCount * kThreads;  // of memory, a warpgroup's
  static_assert(kCount % 4 == 0, "accumulators are kept in vectors of four");

  // Adds the sum so far to the accumulators of a cut, which become the sum; keeps it where a cut follows.
  __device__ __forceinline__ void add(Accumulators& acc, float* memory, bool is_first, bool is_last) {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int i = 0; i < kBlocks * kCount; ++i) {
        float& x = acc[i / kCount][i % kCount];
        if (!is_first) x = __fadd_rn(kept[i], x);
        if (!is_last) kept[i] = x;
      }
    } else {
      float4* const at = reinterpret_cast<float4*>(memory) + ptx::read_thread_index() % kThreads;
      if (!is_first) {
        // Rolled, and a branch for each group of registers, which have no run-time index: else all loads are issued
        // before the first sum, and registers spill.
#pragma unroll 1
        for (int group = 0; group < kGroups; ++group) {
#pragma unroll
          for (int i = 0; i < kGroups; ++i) {
            if (group == i) add_group(acc, at, i);
          }
        }
      }
      if (!is_last) {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          const float* x = vector(acc, v);
          __stcg(at + v * kThreads, make_float4(x[0], x[1], x[2], x[3]));
        }
      }
    }
  }

 private:
  static constexpr int kVectors = kBlocks * kCount / 4;  // of a lane
  static constexpr int kGroup = 8;
  static constexpr int kGroups = (kVectors + kGroup - 1) / kGroup;

  __device__ static __forceinline__ float* vector(Accumulators& acc, int v) {
    return acc[4 * v / kCount] + 4 * v % kCount;
  }
  __device__ static __forceinline__ void add_group(Accumulators& acc, const float4* at, int group) {
#pragma unroll
    for (int v = group * kGroup; v < (group + 1) * kGroup && v < kVectors; ++v) {
      const float4 sum = __ldcg(at + v * kThreads);
      float* x = vector(acc, v);
      x[0] = __fadd_rn(sum.x, x[0]), x[1] = __fadd_rn(sum.y, x[1]);
      x[2] = __fadd_rn(sum.z, x[2]), x[3] = __fadd_rn(sum.w, x[3]);
    }
  }

  float kept[kInRegisters ? kBlocks * kCount : 1];
};

}  // namespace gemmx::device
