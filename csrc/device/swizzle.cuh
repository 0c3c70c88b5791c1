// XOR swizzle of shared memory. A tile is rows of 16-byte chunks; a chunk covers 4 of the 32 banks, so eight
// chunks that are moved together (one ldmatrix matrix, one phase of a 16-byte store) must differ modulo 8.
//
// Rows of fewer than 8 chunks share a 128-byte line, so their row number counts in lines. Host and device;
// tests/test_device_indexing.py proves that it is a bijection without bank conflicts.
#pragma once

#include "core/splits.h"

namespace gemmx::device {

// Where chunk `chunk` of row `row` lies within its row. chunks_per_row is a power of two.
GEMMX_HOST_DEVICE constexpr int swizzled_chunk(int row, int chunk, int chunks_per_row) {
  const int width = chunks_per_row < 8 ? chunks_per_row : 8;
  return chunk ^ ((row * width / 8) & (width - 1));
}

}  // namespace gemmx::device
