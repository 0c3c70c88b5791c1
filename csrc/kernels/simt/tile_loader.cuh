// Moves one operand's tiles from global memory, through registers, into shared memory as fp32, K outermost:
// tile[k][outer], where outer is m for A and n for B. Elements outside the operand are set to 0 and not read.
//
// A thread moves four elements of each tile. Which four depends on the layout, so that a warp reads whole
// sectors and its stores meet no bank twice (rows of tile[][] are 4 mod 8 floats apart):
//   access        a thread's elements      lanes of a warp run over
//   k_vector      4 along k, one load      2 quads of k, 16 rows of outer     STS.32, bank 16 * quad + row
//   outer_vector  4 along outer, one load  consecutive quads of outer         STS.128
//   k_scalar      extent / 4 apart         8 k, 4 rows of outer               STS.32, bank 4 * k + row
//   outer_scalar  tile_k / 4 apart         32 consecutive outer               STS.32, bank outer
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/ptx/convert.cuh"
#include "kernels/simt/specs.h"

namespace gemmx::simt {

enum class Access : uint8_t { k_vector, outer_vector, k_scalar, outer_scalar };

struct OperandParams {
  const void* data = nullptr;
  int64_t outer_stride = 0, k_stride = 0, batch_stride = 0;  // elements
  int64_t outer_extent = 0;
  Access access = Access::k_scalar;
};

// fp32 as it is, 16-bit types as their bits.
template <DType kType>
using Scalar = std::conditional_t<kType == DType::f32, float, uint16_t>;

template <DType kType>
__device__ __forceinline__ float to_float(Scalar<kType> x) {
  static_assert(kType == DType::f32 || kType == DType::f16 || kType == DType::bf16, "not an operand type");
  if constexpr (kType == DType::f32) {
    return x;
  } else {
    return kType == DType::f16 ? device::ptx::f16_to_float(x) : device::ptx::bf16_to_float(x);
  }
}

// Four neighbours in one load of 16 or 8 bytes.
template <DType kType>
__device__ __forceinline__ void load_vector(const Scalar<kType>* p, float (&r)[4]) {
  if constexpr (kType == DType::f32) {
    const float4 v = __ldg(reinterpret_cast<const float4*>(p));
    r[0] = v.x, r[1] = v.y, r[2] = v.z, r[3] = v.w;
  } else {
    const uint2 v = __ldg(reinterpret_cast<const uint2*>(p));
    r[0] = to_float<kType>(static_cast<uint16_t>(v.x)), r[1] = to_float<kType>(static_cast<uint16_t>(v.x >> 16));
    r[2] = to_float<kType>(static_cast<uint16_t>(v.y)), r[3] = to_float<kType>(static_cast<uint16_t>(v.y >> 16));
  }
}

template <DType kType, int kExtent, int kTileK>
class TileLoader {
 public:
  static constexpr int kRow = kExtent + kRowPadding;  // floats from tile[k] to tile[k + 1]
  static_assert(kRow % 8 == 4, "the transposing store would meet banks twice");
  static_assert(kExtent % 16 == 0 && kTileK % 8 == 0, "a warp's lanes would not divide the tile");

  // `params` must be a kernel parameter: what follows from it is read again from constant memory where it is
  // needed, because kept in registers it spills in the 8 x 8 kernel (sm_80, 128 registers).
  __device__ __forceinline__ TileLoader(const OperandParams& params, int64_t batch, int64_t outer_begin, int thread)
      : p_(params) {
    const int64_t left = p_.outer_extent - outer_begin;
    outer_limit_ = left < kExtent ? static_cast<int>(left) : kExtent;
    switch (p_.access) {
      case Access::k_vector:
        outer_ = thread / 2 % kExtent;
        k_ = (thread % 2 + thread / (2 * kExtent) * 2) * 4;
        break;
      case Access::outer_vector:
        outer_ = thread % (kExtent / 4) * 4;
        k_ = thread / (kExtent / 4);
        break;
      case Access::k_scalar:
        outer_ = thread / 8 % (kExtent / 4);
        k_ = thread % 8 + thread / (2 * kExtent) * 8;
        break;
      case Access::outer_scalar:
        outer_ = thread % kExtent;
        k_ = thread / kExtent;
        break;
    }
    next_ = static_cast<const Scalar<kType>*>(p_.data) + batch * p_.batch_stride +
            (outer_begin + outer_) * p_.outer_stride + k_ * p_.k_stride;
  }

  // Reads this thread's part of the next tile, of which only the first `k_limit` values of k exist.
  __device__ __forceinline__ void load(int k_limit) {
    const bool vector = p_.access == Access::k_vector || p_.access == Access::outer_vector;
    const bool whole = outer_ + 3 * outer_step() < outer_limit_ && k_ + 3 * k_step() < k_limit;
    if (vector && whole) {
      load_vector<kType>(next_, values_);
    } else {
      const int64_t step = outer_step() * p_.outer_stride + k_step() * p_.k_stride;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        // `&`, not `&&`: four predicated loads instead of four branches
        const bool exists = (outer_ + j * outer_step() < outer_limit_) & (k_ + j * k_step() < k_limit);
        values_[j] = exists ? to_float<kType>(next_[j * step]) : 0.0f;
      }
    }
    next_ += kTileK * p_.k_stride;
  }

  __device__ __forceinline__ void store(float* tile) const {
    float* const to = tile + k_ * kRow + outer_;
    if (p_.access == Access::outer_vector) {
      *reinterpret_cast<float4*>(to) = make_float4(values_[0], values_[1], values_[2], values_[3]);
      return;
    }
    const int step = k_step() * kRow + outer_step();
#pragma unroll
    for (int j = 0; j < 4; ++j) to[j * step] = values_[j];
  }

 private:
  // Between the thread's four elements: exactly one of the two is not 0.
  __device__ __forceinline__ int outer_step() const {
    return p_.access == Access::outer_vector ? 1 : p_.access == Access::k_scalar ? kExtent / 4 : 0;
  }
  __device__ __forceinline__ int k_step() const {
    return p_.access == Access::k_vector ? 1 : p_.access == Access::outer_scalar ? kTileK / 4 : 0;
  }

  const OperandParams& p_;
  const Scalar<kType>* next_;  // this thread's first element of the next tile
  int outer_, k_;              // its place in the tile
  int outer_limit_;            // of the tile's `outer`, the first that does not exist
  float values_[4];
};

}  // namespace gemmx::simt
