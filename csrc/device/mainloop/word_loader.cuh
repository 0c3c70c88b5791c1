// Fills the K-major stages of a ring with an operand that TMA refuses, whatever the alignment of its rows: the threads
// of one warpgroup load aligned 16-byte words and shift them together in registers on their way to shared memory.
//
// Thread t has chunk t % 8 (16 bytes) of the rows t / 8, t / 8 + 16, ... of a stage's 128 bytes a row. 16 rows of any
// even length are a multiple of 16 bytes, so that all its rows start at the same byte of a 16-byte word. A chunk is
// made of the word where it begins and the one after it, which the neighbouring thread has loaded; for the last chunk
// of a row that is the first word of the next stage, which is in flight already. So every word is loaded once.
//
// Bytes in flight: kAhead stages in registers. What lies outside the matrix is not read: words that hang over its first
// or last element are gathered by elements. What lies behind the end of K becomes zeros.
#pragma once

#include <cstdint>

#include "core/splits.h"
#include "device/bytes.cuh"
#include "device/mainloop/swizzled_tile.cuh"

namespace gemmx::device {

// A K-major operand of 16-bit elements: rows of M or N, any strides.
struct WordRows {
  const unsigned char* data = nullptr;  // the first element, 2-byte aligned
  int64_t row_bytes = 0;                // from row to row
  int64_t batch_bytes = 0;
  int64_t bytes = 0;  // of one matrix, from its first element to the end of its last
  int rows = 0;
};

template <int kRowsOfTile>
class WordLoader {
 public:
  static constexpr int kThreads = 128;
  static constexpr int kRowsOfPass = kThreads / 8;
  static constexpr int kPasses = kRowsOfTile / kRowsOfPass;
  static_assert(kRowsOfTile % kRowsOfPass == 0, "a pass loads 16 rows");
  using Words = uint4[kPasses];

  // From row `row` and element `k` on, a multiple of 8.
  __device__ __forceinline__ WordLoader(const WordRows& o, int batch, int row, int64_t k) {
    const int thread = threadIdx.x % kThreads;
    const int first = row + thread / 8;
    begin_ = o.data + batch * o.batch_bytes;
    end_ = begin_ + o.bytes;
    rows_ = o.rows - first;
    pass_bytes_ = kRowsOfPass * o.row_bytes;
    const unsigned char* const at = begin_ + first * o.row_bytes + 2 * k;
    byte_ = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(at) % 16);
    next_ = at - byte_ + thread % 8 * 16;
    const int swizzled = (thread % 8) ^ (thread / 8 % 8);
    offset_ = static_cast<uint32_t>(thread / 8 * kSwizzleBytes + swizzled * 16);
  }

  // The words of the next stage: loads without a branch, so that all of them are on their way at once.
  __device__ __forceinline__ void load(Words& words) {
    bool hangs_over = false;
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const unsigned char* const at = next_ + i * pass_bytes_;
      const bool row = i * kRowsOfPass < rows_;
      const bool inside = row && at >= begin_ && at + 16 <= end_;
      words[i] = load_if(inside, at);
      hangs_over |= row && !inside;
    }
    if (hangs_over) {
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        const unsigned char* const at = next_ + i * pass_bytes_;
        if (i * kRowsOfPass < rows_ && (at < begin_ || at + 16 > end_)) words[i] = gather(at);
      }
    }
    next_ += kSwizzleBytes;
  }

  // A stage, of which `k_left` elements of K exist, from its words and those of the stage behind it.
  __device__ __forceinline__ void store(uint32_t smem_tile, const Words& words, const Words& behind, int k_left) const {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const uint4 high = from_next_lane(words[i], behind[i]);
      uint4 chunk = byte_ == 0 ? words[i] : bytes_from(words[i], high, byte_);
      if (k_left < kSwizzleElements) chunk = cut(chunk, k_left - static_cast<int>(threadIdx.x % 8) * 8);
      if (i * kRowsOfPass >= rows_) continue;
      asm volatile(
          "st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(smem_tile + offset_ + i * (kRowsOfPass * kSwizzleBytes)),
          "r"(chunk.x), "r"(chunk.y), "r"(chunk.z), "r"(chunk.w)
          : "memory");
    }
  }

 private:
  // Volatile: it is to be issued here, stages before its use.
  __device__ static __forceinline__ uint4 load_if(bool condition, const unsigned char* at) {
    uint4 x = {};
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %5, 0;\n"
        "@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n"
        "}"
        : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
        : "l"(at), "r"(static_cast<uint32_t>(condition)));
    return x;
  }

  // The elements of a word that exist, zeros for the others.
  __device__ __forceinline__ uint4 gather(const unsigned char* at) const {
    uint32_t words[4] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const unsigned char* const element = at + 2 * i;
      if (element < begin_ || element >= end_) continue;
      words[i / 2] |= uint32_t{__ldg(reinterpret_cast<const uint16_t*>(element))} << (i % 2 * 16);
    }
    return {words[0], words[1], words[2], words[3]};
  }

  // Of the 8 lanes of a row: the next lane's word, for the last one the first lane's word of the stage behind.
  __device__ static __forceinline__ uint4 from_next_lane(const uint4& word, const uint4& behind) {
    const int lane = threadIdx.x % 32;
    const bool first = lane % 8 == 0;
    const int source = lane / 8 * 8 + (lane + 1) % 8;
    const auto one = [&](uint32_t x, uint32_t y) { return __shfl_sync(~0u, first ? y : x, source); };
    return {one(word.x, behind.x), one(word.y, behind.y), one(word.z, behind.z), one(word.w, behind.w)};
  }

  // The first `count` elements, zeros behind them.
  __device__ static __forceinline__ uint4 cut(const uint4& x, int count) {
    const auto one = [&](uint32_t pair, int first) {
      return count >= first + 2 ? pair : count == first + 1 ? pair & 0xffff : 0;
    };
    return {one(x.x, 0), one(x.y, 2), one(x.z, 4), one(x.w, 6)};
  }

  const unsigned char* next_;  // this thread's word of its first row, 16-byte aligned
  const unsigned char *begin_, *end_;
  int64_t pass_bytes_;
  uint32_t byte_;    // where the rows start in a word
  uint32_t offset_;  // of the thread's chunk in the tile
  int rows_;         // of the operand from the thread's first row on
};

}  // namespace gemmx::device
