// The epilogue of one warp of a wgmma kernel that computes D^T (swap_ab): 16 columns of D by kN rows, straight from the
// accumulators. Any C, bias, activation, type, stride and alignment.
//
// With few rows D is small and the time to the last store counts, not the bytes a store moves: eight lanes write 16
// neighbouring bytes of a row and no shared memory is passed. A lane has kN / 2 elements. Rounding steps are those of
// linear_combination.cuh. Two paths:
//
//   run_plain   D of the kernel's own 16-bit type with contiguous rows, alpha alone: what a linear layer without bias
//               asks for. A warp has nothing to overlap its instructions with here: the other path takes 1.0 us of a
//               decode layer's 12 with 16 rows (H200)
//   run         everything. The loop over groups of rows is rolled where kN is large, so that the activations' code
//               exists once; registers have no run-time index, so that every group's copy out of the accumulators is a
//               branch
#pragma once

#include "device/epilogue/linear_combination.cuh"

namespace gemmx::device {

template <int kN>
struct TransposedStore {
  static constexpr int kGroup = kN % 16 == 0 ? 16 : 8;  // rows of D
  static constexpr int kValues = kGroup / 2;            // of a lane

  // Whether run_plain<kType>() serves the call.
  template <DType kType>
  __device__ static __forceinline__ bool is_plain(const EpilogueParams& e) {
    return e.d_dtype == kType && e.d_col_stride == 1 && e.c == nullptr && e.bias == nullptr &&
           e.activation == Activation::none;
  }

  // As run(), where is_plain<kType>().
  template <DType kType>
  __device__ static __forceinline__ void run_plain(const EpilogueParams& e, int64_t batch, int m, int n, int n_end,
                                                   const float (&acc)[kN / 2], int lane) {
    const int columns = (e.n < n_end ? static_cast<int>(e.n) : n_end) - n - lane / 4;  // from the lane's first on
    const int row = m + lane % 4 * 2;
    const int rows = static_cast<int>(e.m) - row;
    auto* at = static_cast<uint16_t*>(e.d) + batch * e.d_batch_stride + row * e.d_row_stride + n + lane / 4;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j, at += 8 * e.d_row_stride) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* x = acc + 4 * j + 2 * half;
        const uint32_t pair = pack_pair(__fmul_rn(e.alpha, x[0]), __fmul_rn(e.alpha, x[1]), kType);
        if (8 * half >= columns) continue;
        if (8 * j < rows) at[8 * half] = static_cast<uint16_t>(pair);
        if (8 * j + 1 < rows) at[8 * half + e.d_row_stride] = static_cast<uint16_t>(pair >> 16);
      }
    }
  }

  // (m, n): where the warp's first accumulator lies in D; columns from n_end on are not the tile's. acc[4 j + i]: row m
  // + 8 j + 2 (lane % 4) + i % 2, column n + lane / 4 (+ 8 for i = 2, 3).
  __device__ static __forceinline__ void run(const EpilogueParams& e, int64_t batch, int64_t m, int64_t n,
                                             int64_t n_end, const float (&acc)[kN / 2], int lane) {
    const int64_t column = n + lane / 4;
    if (n_end > e.n) n_end = e.n;
    float bias[2] = {};
    if (e.bias != nullptr) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (column + 8 * i < n_end) bias[i] = load_element(e.bias, (column + 8 * i) * e.bias_stride, e.bias_dtype);
      }
    }
#pragma unroll 1
    for (int group = 0; group < kN / kGroup; ++group) {
      const int64_t row = m + group * kGroup + lane % 4 * 2;
      if (m + group * kGroup >= e.m) break;
      float x[kValues];
#pragma unroll
      for (int i = 0; i < kN / kGroup; ++i) {
        if (group == i) {
#pragma unroll
          for (int j = 0; j < kValues; ++j) x[j] = __fmul_rn(e.alpha, acc[i * kValues + j]);
        }
      }
      const auto row_of = [&](int i) { return row + i / 4 * 8 + i % 2; };
      const auto column_of = [&](int i) { return column + i / 2 % 2 * 8; };
      const auto inside = [&](int i) { return row_of(i) < e.m && column_of(i) < n_end; };
      if (e.c != nullptr) {
        const int64_t base = batch * e.c_batch_stride;
        float c[kValues];
#pragma unroll
        for (int i = 0; i < kValues; ++i) {
          c[i] = inside(i)
                     ? load_element(e.c, base + row_of(i) * e.c_row_stride + column_of(i) * e.c_col_stride, e.c_dtype)
                     : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < kValues; ++i) x[i] = __fmaf_rn(e.beta, c[i], x[i]);
      }
      if (e.bias != nullptr) {
#pragma unroll
        for (int i = 0; i < kValues; ++i) x[i] = __fadd_rn(x[i], bias[i / 2 % 2]);
      }
      activate_all(x, e);
      const int64_t base = batch * e.d_batch_stride;
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        if (inside(i)) {
          store_element(e.d, base + row_of(i) * e.d_row_stride + column_of(i) * e.d_col_stride, e.d_dtype, x[i]);
        }
      }
    }
  }

  // To an fp32 tile of kN rows of D, `columns` columns wide, the accumulators as they are; `column`: the warp's first,
  // of 16 or, at the tile's end, 8.
  __device__ static __forceinline__ void put_partial(float* tile, int columns, int column, const float (&acc)[kN / 2],
                                                     int lane) {
    float* const at = tile + lane % 4 * 2 * columns + column + lane / 4;
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      if (i / 2 % 2 == 0 || column + 8 < columns) at[(i / 4 * 8 + i % 2) * columns + i / 2 % 2 * 8] = acc[i];
    }
  }
};

}  // namespace gemmx::device
