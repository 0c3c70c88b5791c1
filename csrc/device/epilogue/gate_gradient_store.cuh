// The epilogue of one warp of a wgmma kernel whose product is dH, the gradient of what a gate gave: the gate's
// backward.
//
//   dZ gate = dH * up * act'(gate)      dZ up = dH * act(gate)      dH = alpha * acc, fp32, never rounded
//
// Gate and up are read, and their gradients written, in pairs of boxes of 16 rows x 64 columns: TMA loads the box of
// the gate into the warp's first buffer and the same elements of up into the second, the gradients take their places,
// and TMA stores both. Z and dZ are tensors of two batches, gate and up, so that TMA clips each half at its own edge.
// The first pair of a tile is asked for before the mainloop; each later one when the pair before it has left the
// buffers, which ping-pong hides behind the other consumer's mainloop.
//
// The loop over steps of 32 columns is rolled, so that the code of ten activations exists once; registers have no
// run-time index, so that every step's copy out of the accumulators is a branch.
#pragma once

#include "device/epilogue/activation_gradient.cuh"
#include "device/epilogue/linear_combination.cuh"
#include "device/ptx/ldmatrix.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/stmatrix.cuh"
#include "device/ptx/tma.cuh"
#include "device/swizzle.cuh"

namespace gemmx::device {

// kBlocks: blocks of 64 rows, of which the warp has 16 each; kN: columns of the tile.
template <int kBlocks, int kN>
struct GateGradientStore {
  static constexpr int kRows = 16, kColumns = 64;  // of a box
  static constexpr int kBoxBytes = kRows * kColumns * 2;
  static constexpr int kStep = 32;           // columns
  static constexpr int kValues = kStep / 2;  // of a lane
  static constexpr int kStepsOfBox = kColumns / kStep, kStepsOfBlock = kN / kStep;
  static constexpr int kPairs = kBlocks * kN / kColumns;
  static_assert(kN % kColumns == 0,
                "a tile is whole boxes, which do not overlap: the second would read the first's dZ");

  // Of Z and dZ, gate and up as two batches; the warp's first row and column; two boxes of shared memory, 1024-byte
  // aligned; a barrier that counts the bytes of a pair.
  const void* z;
  const void* dz;
  int m, n;
  uint32_t smem_buffers, barrier;

  // Asks for the first pair of the tile.
  __device__ __forceinline__ void load_first(int lane) const {
    if (lane == 0) {
      ptx::tma_store_wait_read<0>();
      load(0);
    }
    __syncwarp();
  }

  // The tile, after load_first(); acc as wgmma leaves it. `pairs` counts those of this warp so far.
  __device__ __forceinline__ void run(const EpilogueParams& e, const float (&acc)[kBlocks][kN / 2], int lane,
                                      uint32_t& pairs) const {
    const int row = lane % 16;  // matrices 0 and 2 of four: rows 0-7; 1 and 3: rows 8-15
#pragma unroll 1
    for (int step = 0; step < kBlocks * kStepsOfBlock; ++step) {
      const int pair = step / kStepsOfBox, in_box = step % kStepsOfBox;
      if (in_box == 0) ptx::mbarrier_wait(barrier, pairs & 1);
      uint32_t at[kStep / 16];  // of this lane's row of four matrices, in the gate's box
#pragma unroll
      for (int j = 0; j < kStep / 16; ++j) {
        const int chunk = in_box * (kStep / 8) + 2 * j + lane / 16;
        at[j] = smem_buffers + (row * (kColumns / 8) + swizzled_chunk(row, chunk, kColumns / 8)) * 16;
      }
      float dh[kValues], gate[kValues], up[kValues];
#pragma unroll
      for (int i = 0; i < kBlocks * kStepsOfBlock; ++i) {
        if (step == i) {
#pragma unroll
          for (int j = 0; j < kValues; ++j) {
            dh[j] = __fmul_rn(e.alpha, acc[i / kStepsOfBlock][i % kStepsOfBlock * kValues + j]);
          }
        }
      }
      read(at, 0, e.c_dtype, gate);
      read(at, kBoxBytes, e.c_dtype, up);
      with_activation(e.activation, [&](auto tag) {
        constexpr Activation kActivation = decltype(tag)::value;
#pragma unroll
        for (int i = 0; i < kValues; ++i) {
          const float of_up = dh[i] * activate(kActivation, gate[i], e.arg0, e.arg1);
          gate[i] = gradient_of_input<kActivation>(dh[i] * up[i], gate[i], e.arg0, e.arg1);
          up[i] = of_up;
        }
      });
      __syncwarp();  // every lane has read: dZ takes Z's place
      write(at, 0, e.d_dtype, gate);
      write(at, kBoxBytes, e.d_dtype, up);
      if (in_box + 1 < kStepsOfBox) continue;
      ptx::fence_proxy_async();
      __syncwarp();
      if (lane == 0) {
        const int column = n + column_of(pair), first_row = m + row_of(pair);
        ptx::tma_store(dz, smem_buffers, column, first_row, 0);
        ptx::tma_store(dz, smem_buffers + kBoxBytes, column, first_row, 1);
        ptx::tma_store_commit();
        if (pair + 1 < kPairs) {
          ptx::tma_store_wait_read<0>();
          load(pair + 1);
        }
      }
      ++pairs;
    }
  }

 private:
  __device__ static constexpr int row_of(int pair) { return pair / (kN / kColumns) * 64; }
  __device__ static constexpr int column_of(int pair) { return pair % (kN / kColumns) * kColumns; }

  // One thread. Boxes beyond Z's edges count their bytes, too.
  __device__ __forceinline__ void load(int pair) const {
    ptx::mbarrier_arrive_expect_tx(barrier, 2 * kBoxBytes);
    const int column = n + column_of(pair), row = m + row_of(pair);
    ptx::tma_load(smem_buffers, z, barrier, column, row, 0, ptx::kEvictFirst);
    ptx::tma_load(smem_buffers + kBoxBytes, z, barrier, column, row, 1, ptx::kEvictFirst);
  }

  // Of a lane, as wgmma's accumulators: x[4 j + i] is column 8 j + 2 (lane % 4) + i % 2, row lane / 4 (+ 8 for i = 2,
  // 3).
  __device__ static __forceinline__ void read(const uint32_t (&at)[kStep / 16], int offset, DType dtype,
                                              float (&x)[kValues]) {
#pragma unroll
    for (int j = 0; j < kStep / 16; ++j) {
      uint32_t words[4];
      ptx::ldmatrix_x4(words, at[j] + offset);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[8 * j + 2 * i] = half_as_float(words[i], dtype);
        x[8 * j + 2 * i + 1] = half_as_float(words[i] >> 16, dtype);
      }
    }
  }

  __device__ static __forceinline__ void write(const uint32_t (&at)[kStep / 16], int offset, DType dtype,
                                               const float (&x)[kValues]) {
#pragma unroll
    for (int j = 0; j < kStep / 16; ++j) {
      const uint32_t words[4] = {pack_pair(x[8 * j], x[8 * j + 1], dtype), pack_pair(x[8 * j + 2], x[8 * j + 3], dtype),
                                 pack_pair(x[8 * j + 4], x[8 * j + 5], dtype),
                                 pack_pair(x[8 * j + 6], x[8 * j + 7], dtype)};
      ptx::stmatrix_x4(at[j] + offset, words);
    }
  }
};

}  // namespace gemmx::device
