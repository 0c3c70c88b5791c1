// The epilogue of one warp of a wgmma kernel whose tiles of A and B lie in shared memory by eights: row 8 i + j of an
// operand's 64 is row 8 j + i of its tile (SwizzledTile::load_eights), and so are the rows and columns of the product.
//
// A lane's accumulators of the eight groups of columns are eight neighbours of a row of D then: straight from registers
// in vectors of four, without shared memory. Any C, bias, activation, type, stride and alignment. The loop over vectors
// is rolled, so that the activations' code exists once; registers have no run-time index, so that every vector's copy
// out of the accumulators is a branch.
#pragma once

#include "device/epilogue/linear_combination.cuh"

namespace gemmx::device {

struct EightsStore {
  static constexpr int kTile = 64;  // rows and columns

  // (m, n): the tile's first element of D; warp: of its warpgroup. acc[4 g + i]: row 16 warp + lane / 4 (+ 8 for i = 2,
  // 3) and column 8 g + 2 (lane % 4) + i % 2 of the product.
  __device__ static __forceinline__ void run(const EpilogueParams& e, int64_t batch, int64_t m, int64_t n,
                                             const float (&acc)[kTile / 2], int warp, int lane) {
#pragma unroll 1
    for (int vector = 0; vector < 8; ++vector) {
      const int i = vector / 2, half = vector % 2;
      const int64_t row = m + lane / 4 * 8 + 2 * warp + i / 2;
      const int64_t column = n + (lane % 4 * 2 + i % 2) * 8 + 4 * half;
      float x[4];
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        if (vector == v) {
#pragma unroll
          for (int g = 0; g < 4; ++g) x[g] = acc[4 * (4 * (v % 2) + g) + v / 2];
        }
      }
      if (row < e.m && column < e.n) epilogue_store_rows<1>(e, batch, row, 1, column, x);
    }
  }
};

}  // namespace gemmx::device
