// An operand that TMA refuses as it lies, K-major with rows of any alignment, as eight matrices of every eighth row:
// the rows of one are 16 * stride bytes apart, a multiple of 16, and so begin alike within 16 bytes. Matrix j begins at
// the multiple of 16 bytes before the operand's row j; element k of a row is its column k + shift, up to 7.
//
// TMA clips at the end of K, so that no byte behind a row is taken; where the operand begins within 16 bytes is known
// only with its address, and decides the widths: the descriptors of all 8 are made once.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/problem.h"

namespace gemmx::sm90 {

struct EightsMaps {
  int count = 0;           // matrices that have rows
  int box_rows = 0;        // of each that a tile loads
  CUtensorMap maps[8][8];  // [where the operand begins, elements][matrix]

  EightsMaps() = default;
  // extent: M or N; stride: elements from row to row; tile_rows: of each matrix in a tile.
  EightsMaps(const char* kernel, const Matrix& x, int64_t extent, int64_t k, int64_t stride, int tile_rows);

  // The matrices of the operand at this address.
  void at(const char* kernel, const void* address, int64_t stride, CUtensorMap (&to)[8], int (&shifts)[8]) const;
};

}  // namespace gemmx::sm90
