// The tile of A or B that one stage of the pipeline holds in shared memory, and how a warp reads it.
//
//   K-major:   row = m or n, chunks run along k    ldmatrix
//   MN-major:  row = k, chunks run along m or n    ldmatrix.trans
//
// A chunk is 8 elements of 16 bits, at its swizzled place in its row (device/swizzle.cuh). Index arithmetic
// only: host and device, tested by tests/test_device_indexing.py.
#pragma once

#include "core/splits.h"
#include "device/swizzle.cuh"

namespace gemmx::device {

inline constexpr int kChunkBytes = 16;
inline constexpr int kElementBytes = 2;

struct OperandTile {
  int extent_mn;
  int extent_k;
  bool k_major;

  GEMMX_HOST_DEVICE constexpr int rows() const { return k_major ? extent_mn : extent_k; }
  GEMMX_HOST_DEVICE constexpr int row_bytes() const { return (k_major ? extent_k : extent_mn) * kElementBytes; }
  GEMMX_HOST_DEVICE constexpr int chunks_per_row() const { return row_bytes() / kChunkBytes; }
  GEMMX_HOST_DEVICE constexpr int bytes() const { return rows() * row_bytes(); }

  // Byte offset in the tile of byte `byte` of row `row`.
  GEMMX_HOST_DEVICE constexpr int offset(int row, int byte) const {
    return row * row_bytes() + swizzled_chunk(row, byte / kChunkBytes, chunks_per_row()) * kChunkBytes +
           byte % kChunkBytes;
  }

  // The address that `lane` gives to ldmatrix.x4 for the 16 x 16 block at (mn, k = 0), mn a multiple of 16.
  // The four 8 x 8 matrices come in the order of the mma fragment: (mn, k) (mn+8, k) (mn, k+8) (mn+8, k+8)
  // for A (mn_first), (mn, k) (mn, k+8) (mn+8, k) (mn+8, k+8) for the two n8 fragments of B.
  GEMMX_HOST_DEVICE constexpr int lane_offset(int lane, int mn, bool mn_first) const {
    const int first = ((lane >> 3) & 1) * 8;
    const int second = (lane >> 4) * 8;
    const int at_mn = mn + (mn_first ? first : second);
    const int at_k = mn_first ? second : first;
    const int in_matrix = lane & 7;
    return k_major ? offset(at_mn + in_matrix, at_k * kElementBytes) : offset(at_k + in_matrix, at_mn * kElementBytes);
  }

  // lane_offset for the block `block` x 16 further along mn and `step` x 16 further along k. The swizzle term
  // of a row depends on row % 8 alone, which 16-row steps keep, so one of the two steps is an addition and
  // the other an XOR: with constants for both, one register per operand addresses the whole warp tile. The
  // warp's first mn must have no bit that one of its blocks' distances (16 x block) has, as a multiple of the warp's
  // extent, a power of two, has none.
  GEMMX_HOST_DEVICE constexpr int block_offset(int lane_offset, int block, int step) const {
    constexpr int kBlockBytes = 16 * kElementBytes;
    return k_major ? (lane_offset ^ (step * kBlockBytes)) + block * 16 * row_bytes()
                   : (lane_offset ^ (block * kBlockBytes)) + step * 16 * row_bytes();
  }
};

// How the threads of a CTA share the copy of a tile in pieces of `vector` bytes (16, 8, 4, 2): neighbouring
// threads take neighbouring pieces of a row, a pass of all threads takes `rows_per_pass` rows, so a thread
// keeps its column and its rows are row(thread) + pass * rows_per_pass.
struct CopyMap {
  OperandTile tile;
  int threads;
  int vector;

  GEMMX_HOST_DEVICE constexpr int pieces_per_row() const { return tile.row_bytes() / vector; }
  GEMMX_HOST_DEVICE constexpr int rows_per_pass() const { return threads / pieces_per_row(); }
  GEMMX_HOST_DEVICE constexpr int passes() const { return tile.rows() / rows_per_pass(); }
  GEMMX_HOST_DEVICE constexpr int row(int thread) const { return thread / pieces_per_row(); }
  GEMMX_HOST_DEVICE constexpr int byte(int thread) const { return thread % pieces_per_row() * vector; }
  // Whether the threads cover the tile evenly.
  GEMMX_HOST_DEVICE constexpr bool even() const {
    return pieces_per_row() <= threads && threads % pieces_per_row() == 0 && rows_per_pass() <= tile.rows() &&
           tile.rows() % rows_per_pass() == 0;
  }
};

// How many of the `vector` bytes that start at `byte` of a row lie before its end.
GEMMX_HOST_DEVICE constexpr int valid_bytes(int byte, int row_end, int vector) {
  const int left = row_end - byte;
  return left < 0 ? 0 : left < vector ? left : vector;
}

}  // namespace gemmx::device
