#include "kernels/sm90/eights.h"

#include <algorithm>

#include "kernels/sm90/tensor_map.h"

namespace gemmx::sm90 {
namespace {

constexpr int kElements = 8;  // of 2 bytes in 16

// Elements of row j before a multiple of 16 bytes, where the operand itself begins `begin` behind one.
int shift_of(int begin, int64_t stride, int j) {
  return static_cast<int>((begin + j * (stride % kElements)) % kElements);
}

}  // namespace

EightsMaps::EightsMaps(const char* kernel, const Matrix& x, int64_t extent, int64_t k, int64_t stride, int tile_rows)
    : count(static_cast<int>(std::min<int64_t>(extent, 8))),
      box_rows(static_cast<int>(std::min<int64_t>(tile_rows, (extent + 7) / 8))) {
  Matrix eighth;
  eighth.dtype = x.dtype;
  eighth.row_stride = 8 * stride;
  eighth.col_stride = 1;
  for (int begin = 0; begin < kElements; ++begin) {
    for (int j = 0; j < count; ++j) {
      maps[begin][j] =
          encode_tensor_map(kernel, eighth, k + shift_of(begin, stride, j), (extent - j + 7) / 8, 1, {64, box_rows});
    }
  }
}

void EightsMaps::at(const char* kernel, const void* address, int64_t stride, CUtensorMap (&to)[8],
                    int (&shifts)[8]) const {
  const auto first = reinterpret_cast<uintptr_t>(address);
  const int begin = static_cast<int>(first % 16 / 2);
  for (int j = 0; j < count; ++j) {
    shifts[j] = shift_of(begin, stride, j);
    to[j] = maps[begin][j];
    set_address(kernel, to[j], reinterpret_cast<const void*>(first + 2 * (j * stride - shifts[j])));
  }
}

}  // namespace gemmx::sm90
