// Copies operands that TMA can't read (odd strides or addresses, no unit stride, stride 0) to packed rows of whole 16
// bytes in the workspace: any stride and alignment, 16-bit elements.
//
// A thread has several chunks of 16 bytes of the copy. A row with unit stride starts at the same byte of a 16-byte word
// for all its chunks, so that a chunk is two aligned 16-byte loads, of which the neighbouring thread has one too,
// shifted together in registers: 16-byte accesses however odd the row. At the ends of the operand, where such a load
// would leave it, and for rows without unit stride, elements are loaded one by one.
//
// Least architecture sm_90 (programmatic dependent launch). Bytes: each operand once read and once written.
#pragma once

#include <cstdint>

#include "core/splits.h"

namespace gemmx::sm90 {

// An operand as rows along its contiguous dimension. Strides in elements.
struct PackOperand {
  const uint16_t* source = nullptr;
  uint16_t* packed = nullptr;  // rows of `pitch` elements, 16-byte aligned
  int64_t row_stride = 0, element_stride = 0, batch_stride = 0;
  int64_t rows = 0, length = 0, batch = 0;
  int64_t pitch = 0;

  GEMMX_HOST_DEVICE int64_t chunks() const { return batch * rows * (pitch / 8); }
};

// ... and how far apart a thread's chunks are: whole rows, and chunks of a row.
struct PackTask {
  PackOperand operand;
  int64_t step_rows, step_chunks;
};

struct PackParams {
  PackTask tasks[2];
  int64_t first_block_of_second;
};

inline constexpr int kPackThreads = 256;
inline constexpr int kChunksPerThread = 4;

constexpr int64_t pack_blocks(int64_t chunks) { return ceil_div(chunks, kPackThreads * kChunksPerThread); }

// Elements of a packed row. TMA asks for whole 16-byte words; rows of whole 128-byte lines are read faster, because a
// box row of 128 bytes is then one line and not two (H200, 2048x4096x4097 in 128x256 tiles: 176 us with rows of 16-byte
// words, copy included, against 91 for the aligned product).
constexpr int64_t pack_pitch(int64_t length) {
  const int64_t unit = length >= 256 ? 64 : 8;
  return ceil_div(length, unit) * unit;
}

void launch_pack(const char* kernel, const PackOperand& a, const PackOperand& b, struct CUstream_st* stream);

}  // namespace gemmx::sm90
