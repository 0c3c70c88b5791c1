// 16 bytes that start inside a 16-byte word, from the two words that hold them.
#pragma once

#include <cstdint>

namespace gemmx::device {

// Bytes `byte` (0 to 15) .. byte + 15 of low | high.
__device__ __forceinline__ uint4 bytes_from(uint4 low, uint4 high, uint32_t byte) {
  uint32_t w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  if (byte & 8) {
#pragma unroll
    for (int i = 0; i < 6; ++i) w[i] = w[i + 2];
  }
  if (byte & 4) {
#pragma unroll
    for (int i = 0; i < 5; ++i) w[i] = w[i + 1];
  }
  const uint32_t bits = byte % 4 * 8;
  return {__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits), __funnelshift_r(w[2], w[3], bits),
          __funnelshift_r(w[3], w[4], bits)};
}

}  // namespace gemmx::device
