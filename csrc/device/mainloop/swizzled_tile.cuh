// One operand's tile of one pipeline stage as TMA writes it and wgmma reads it: 16-bit elements, 128-byte swizzle.
//
//   K-major   kK / 64 slabs  of kMn rows; a row is 64 elements along K of one index of M or N
//   MN-major  kMn / 64 slabs of kK rows;  a row is 64 elements along M or N of one index of K
//
// A row is 128 bytes; within each 8 rows (1024 bytes) the copy engine permutes its 16-byte chunks, so that the tensor
// core reads 8 rows of one chunk column without bank conflicts. Stages and slabs start at multiples of 1024 bytes.
#pragma once

#include "core/splits.h"
#include "device/ptx/tma.cuh"
#include "device/ptx/wgmma.cuh"

namespace gemmx::device {

inline constexpr int kSwizzleBytes = 128;
inline constexpr int kSwizzleElements = kSwizzleBytes / 2;

template <int kMn, int kK, bool kKMajor>
struct SwizzledTile {
  static_assert(kK % kSwizzleElements == 0, "the K tile is made of whole 128-byte rows or slabs");
  static_assert(kMn % (kKMajor ? 8 : kSwizzleElements) == 0, "M or N is made of whole swizzle blocks");
  static constexpr int kSlabs = (kKMajor ? kK : kMn) / kSwizzleElements;
  static constexpr int kRows = kKMajor ? kMn : kK;  // of a slab
  static constexpr int kSlabBytes = kRows * kSwizzleBytes;
  static constexpr int kBytes = kSlabs * kSlabBytes;

  // Where the wgmma operand that starts at (mn, k) begins, in bytes. K-major: k in steps of 16 stays inside a
  // swizzled row, which wgmma undoes by address bits.
  GEMMX_HOST_DEVICE static constexpr uint32_t offset(int mn, int k) {
    return kKMajor ? k / kSwizzleElements * kSlabBytes + mn * kSwizzleBytes + k % kSwizzleElements * 2
                   : mn / kSwizzleElements * kSlabBytes + k * kSwizzleBytes;
  }

  __device__ static constexpr uint64_t descriptor() { return ptx::swizzled_descriptor(kKMajor ? 16 : kSlabBytes); }

  // A cluster that shares the tile loads one slice per CTA: some rows of every slab or, where the rows are too few,
  // some slabs.
  template <int kSlices>
  static constexpr bool kSlicesRows = kRows % (8 * kSlices) == 0;
  template <int kSlices>
  static constexpr int kBoxRows = kSlicesRows<kSlices> ? kRows / kSlices : kRows;

  // Loads slice `slice` of kSlices and multicasts it to `ctas`. (mn, k): the tile's first element in the operand.
  template <int kSlices>
  __device__ static __forceinline__ void load(const void* tensor_map, uint32_t smem_tile, uint32_t barrier, int mn,
                                              int k, int batch, uint32_t slice, uint16_t ctas, uint64_t policy) {
    for_each_box<kSlices>(mn, k, slice, [&](uint32_t offset, int x, int y) {
      if constexpr (kSlices == 1) {
        ptx::tma_load(smem_tile + offset, tensor_map, barrier, x, y, batch, policy);
      } else {
        ptx::tma_load_multicast(smem_tile + offset, tensor_map, barrier, x, y, batch, ctas, policy);
      }
    });
  }

  // Half of the tile's M or N indices, which lie elsewhere in the operand than the other half: (mn, k) is its first
  // element. With kMulticast it goes to `ctas` too.
  static constexpr int kHalfRows = kKMajor ? kMn / 2 : kK;  // of a box
  template <bool kMulticast>
  __device__ static __forceinline__ void load_half(const void* tensor_map, uint32_t smem_tile, uint32_t barrier, int mn,
                                                   int k, int batch, uint32_t half, uint16_t ctas, uint64_t policy) {
    for_each_box_of_half(mn, k, half, [&](uint32_t offset, int x, int y) {
      if constexpr (kMulticast) {
        ptx::tma_load_multicast(smem_tile + offset, tensor_map, barrier, x, y, batch, ctas, policy);
      } else {
        ptx::tma_load(smem_tile + offset, tensor_map, barrier, x, y, batch, policy);
      }
    });
  }

 private:
  template <class F>
  __device__ static __forceinline__ void for_each_box_of_half(int mn, int k, uint32_t half, F f) {
    static_assert(kKMajor ? kMn % 16 == 0 : kSlabs % 2 == 0, "a half is whole swizzle blocks or whole slabs");
    constexpr int kSlabsOfHalf = kKMajor ? kSlabs : kSlabs / 2;
    const uint32_t offset = half * (kKMajor ? kHalfRows * kSwizzleBytes : kSlabsOfHalf * kSlabBytes);
#pragma unroll
    for (int slab = 0; slab < kSlabsOfHalf; ++slab) {
      f(offset + slab * kSlabBytes, (kKMajor ? k : mn) + slab * kSwizzleElements, kKMajor ? mn : k);
    }
  }

  // f(bytes from the tile's start in shared memory, first column, first row) for every box of a slice.
  template <int kSlices, class F>
  __device__ static __forceinline__ void for_each_box(int mn, int k, uint32_t slice, F f) {
    static_assert(kSlicesRows<kSlices> || kSlabs % kSlices == 0, "slices are whole swizzle blocks or whole slabs");
    constexpr int kSlabsOfSlice = kSlicesRows<kSlices> ? kSlabs : kSlabs / kSlices;
    const uint32_t first_row = kSlicesRows<kSlices> ? slice * kBoxRows<kSlices> : 0;
    const uint32_t first_slab = kSlicesRows<kSlices> ? 0 : slice * kSlabsOfSlice;
    const int x = (kKMajor ? k : mn) + static_cast<int>(first_slab) * kSwizzleElements;
    const int y = (kKMajor ? mn : k) + static_cast<int>(first_row);
    const uint32_t offset = first_slab * kSlabBytes + first_row * kSwizzleBytes;
#pragma unroll
    for (int slab = 0; slab < kSlabsOfSlice; ++slab) f(offset + slab * kSlabBytes, x + slab * kSwizzleElements, y);
  }
};

}  // namespace gemmx::device
