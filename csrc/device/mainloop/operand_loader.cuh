// Global to shared memory for one operand, tile after tile along K, by all threads of a CTA.
//
// What lies outside the operand is never read: a piece that the edge cuts is copied in part and zero-filled by
// cp.async, a piece beyond the edge is zero-filled from an address inside. Zeros are selected, not
// multiplied in, so NaN next to the operand stays there.
//
//   aligned: 16-byte cp.async.
//   any:     16, 8 or 4-byte cp.async, as the operand allows, chosen at run time (a branch uniform over the
//            grid); 2 bytes through registers, with any stride in both dimensions, so that an operand with
//            no unit stride, or a broadcast one, is only another pair of strides.
//
// kHalves: the operand is two of extent_mn each, one behind the other along M or N (gate | up), and a tile has the same
// part of both, one half each.
#pragma once

#include <cstdint>

#include "device/mainloop/operand_tile.cuh"
#include "device/ptx/cp_async.cuh"

namespace gemmx::device {

// An operand as the rows of its tile see it: `outer` steps from row to row, `inner` along a row. In elements.
struct OperandParams {
  const void* data;
  int64_t outer_stride;
  int64_t inner_stride;
  int64_t batch_stride;
  int64_t extent_mn;  // with kHalves that of one half
  int vector_bytes;   // widest piece that is aligned everywhere; 2 where inner_stride is not 1
};

template <class Tile, int kThreads, bool kAligned, bool kHalves = false>
class OperandLoader {
 public:
  // Starts at row or column `mn` of the operand or of each half, element `k`. Forms addresses, reads nothing.
  __device__ OperandLoader(const OperandParams& p, int64_t batch, int64_t mn, int64_t k) {
    constexpr OperandTile kTile = Tile::tile();
    const int vector = kAligned ? kChunkBytes : p.vector_bytes;
    const CopyMap map{kTile, kThreads, vector};
    const int64_t left = p.extent_mn - mn;
    mn_left_ = left < kExtent ? static_cast<int>(left) : kExtent;
    row_ = map.row(threadIdx.x);
    byte_ = map.byte(threadIdx.x);
    vector_ = vector;
    inside_ = static_cast<const char*>(p.data) + batch * p.batch_stride * kElementBytes;
    const int64_t outer = (kTile.k_major ? mn : k) + row_;
    int64_t inner = (kTile.k_major ? k : mn) + byte_ / kElementBytes;
    if (kColumnHalves && byte_ >= kHalfBytes) inner += p.extent_mn - kExtent;
    source_ = inside_ + (outer * p.outer_stride + inner * p.inner_stride) * kElementBytes;
    pass_bytes_ = map.rows_per_pass() * p.outer_stride * kElementBytes;
    second_half_bytes_ = (p.extent_mn - kExtent) * p.outer_stride * kElementBytes;
    tile_bytes_ = kTile.extent_k * (kTile.k_major ? p.inner_stride : p.outer_stride) * kElementBytes;
  }

  // Issues the copy of the current tile, whose first `valid_k` elements of K exist. 2-byte pieces go no
  // further than registers; store() takes them on, when their loads have had time to land.
  __device__ __forceinline__ void load(uint32_t smem_tile, int valid_k) {
    if constexpr (kAligned) {
      copy<16>(smem_tile, valid_k);
    } else {
      switch (vector_) {
        case 16: copy<16>(smem_tile, valid_k); break;
        case 8: copy<8>(smem_tile, valid_k); break;
        case 4: copy<4>(smem_tile, valid_k); break;
        default: fetch(valid_k); break;
      }
    }
    source_ += tile_bytes_;
  }

  __device__ __forceinline__ void store(uint32_t smem_tile) {
    if constexpr (!kAligned) {
      if (vector_ != kElementBytes) return;
#pragma unroll
      for (int pass = 0; pass < kElementPasses; ++pass) {
        const uint32_t address = smem_tile + piece_offset<kElementBytes>(pass);
        asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(element_[pass]) : "memory");
      }
    }
  }

 private:
  static constexpr int kElementPasses = kAligned ? 1 : CopyMap{Tile::tile(), kThreads, kElementBytes}.passes();

  static constexpr bool kRowHalves = kHalves && Tile::tile().k_major;
  static constexpr bool kColumnHalves = kHalves && !Tile::tile().k_major;
  static constexpr int kExtent = Tile::tile().extent_mn / (kHalves ? 2 : 1);
  static constexpr int kHalfBytes = kExtent * kElementBytes;  // of a row of two halves
  // "kColumnHalves ? byte_ % kHalfBytes : byte_" below is no function: with one, nvcc 13.0 orders the mainloops of
  // plain kernels otherwise.

  // Which pass of its half of the rows `pass` of kPasses is.
  template <int kPasses>
  static constexpr int in_half_of_rows(int pass) {
    static_assert(!kRowHalves || kPasses % 2 == 0, "a pass must not cross from one half to the other");
    return kRowHalves ? pass % (kPasses / 2) : pass;
  }

  // Bytes from the source of the pass before `pass` to its own.
  template <int kPasses>
  __device__ __forceinline__ int64_t step(int pass) const {
    if constexpr (kRowHalves) return pass == kPasses / 2 ? pass_bytes_ + second_half_bytes_ : pass_bytes_;
    return pass_bytes_;
  }

  template <int kVector>
  __device__ __forceinline__ int piece_offset(int pass) const {
    constexpr OperandTile kTile = Tile::tile();
    constexpr int kRows = CopyMap{kTile, kThreads, kVector}.rows_per_pass();
    // The swizzle has a period of 8 rows: after so many passes only a constant is added.
    constexpr int kPeriod = kRows < 8 ? 8 / kRows : 1;
    const int in_period = pass % kPeriod;
    return kTile.offset(row_ + in_period * kRows, byte_) + (pass - in_period) * kRows * kTile.row_bytes();
  }

  template <int kVector>
  __device__ __forceinline__ void copy(uint32_t smem_tile, int valid_k) const {
    constexpr OperandTile kTile = Tile::tile();
    constexpr CopyMap kMap{kTile, kThreads, kVector};
    static_assert(kMap.even(), "the threads must cover the tile in whole passes");
    const int rows = kTile.k_major ? mn_left_ : valid_k;
    const int bytes = valid_bytes(kColumnHalves ? byte_ % kHalfBytes : byte_,
                                  (kTile.k_major ? valid_k : mn_left_) * kElementBytes, kVector);
    const char* source = source_;
#pragma unroll
    for (int pass = 0; pass < kMap.passes(); ++pass, source += step<kMap.passes()>(pass)) {
      const int present = row_ + in_half_of_rows<kMap.passes()>(pass) * kMap.rows_per_pass() < rows ? bytes : 0;
      ptx::cp_async<kVector>(smem_tile + piece_offset<kVector>(pass), present > 0 ? source : inside_, present);
    }
  }

  __device__ __forceinline__ void fetch(int valid_k) {
    constexpr OperandTile kTile = Tile::tile();
    constexpr CopyMap kMap{kTile, kThreads, kElementBytes};
    static_assert(kMap.even(), "the threads must cover the tile in whole passes");
    const int rows = kTile.k_major ? mn_left_ : valid_k;
    const bool in_row =
        (kColumnHalves ? byte_ % kHalfBytes : byte_) < (kTile.k_major ? valid_k : mn_left_) * kElementBytes;
    const char* source = source_;
#pragma unroll
    for (int pass = 0; pass < kMap.passes(); ++pass, source += step<kMap.passes()>(pass)) {
      // One addition per pass; otherwise all multiples of pass_bytes_ are kept in registers over the mainloop.
      asm("" : "+l"(source));
      const bool present = in_row && row_ + in_half_of_rows<kMap.passes()>(pass) * kMap.rows_per_pass() < rows;
      element_[pass] = present ? __ldg(reinterpret_cast<const unsigned short*>(source)) : uint16_t{0};
    }
  }

  const char* inside_;         // a readable, aligned address of this batch
  const char* source_;         // this thread's first piece of the current tile
  int64_t pass_bytes_;         // from one piece of this thread to its next
  int64_t second_half_bytes_;  // kRowHalves: what more lies between the last piece of the first half and the next one
  int64_t tile_bytes_;         // from one K tile to the next
  int mn_left_, row_, byte_, vector_;
  uint16_t element_[kElementPasses];
};

}  // namespace gemmx::device
