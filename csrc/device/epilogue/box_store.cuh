// The epilogue of one warp of a wgmma kernel in registers: 16 rows of kN accumulators, box by box. A box is 16 rows of
// 128 bytes: alpha, C, bias and activation in the accumulators' layout, rounded, written to swizzled shared memory
// (stmatrix), and from there to D
//
//   by TMA    where D's rows are whole 16-byte words: asynchronous, clipped by TMA at the edges of D; the warp goes on
//             while the copy engine reads the box. kN that is no multiple of the box ends with a box that overlaps the
//             one before: the same values twice
//   by rows   any other 16-bit D with contiguous rows, two boxes at a time: whole 16-byte words of D, however oddly a
//             row starts, and the 2 to 14 bytes at either end of it by elements
//
// C is read element by element or, after load_first(), by TMA into the buffer that its box of D leaves from: two boxes
// ahead of the epilogue, each later one when the store before last has left its buffer.
//
// Without C and activation the loop over boxes is unrolled. With them it is rolled, so that the activations' code
// exists once; registers have no run-time index, so that every box's copy out of the accumulators is a branch.
//
// Each warp has two buffers of its own, so that no warp waits for another. Rounding steps are those of
// linear_combination.cuh, so that every epilogue gives the same bits. The general one is staged_store.cuh.
#pragma once

#include "device/bytes.cuh"
#include "device/epilogue/linear_combination.cuh"
#include "device/ptx/load_shared.cuh"
#include "device/ptx/mbarrier.cuh"
#include "device/ptx/stmatrix.cuh"
#include "device/ptx/tma.cuh"
#include "device/swizzle.cuh"

namespace gemmx::device {

// Columns of a box: 128 bytes of a row, or the largest power of two that a narrower tile holds.
GEMMX_HOST_DEVICE constexpr int store_box_columns(int tile_n, int element_bytes) {
  int columns = 128 / element_bytes;
  while (columns > tile_n) columns /= 2;
  return columns;
}

template <int kN>
struct BoxStore {
  static constexpr int kRows = 16;
  static constexpr int kBoxBytes = kRows * 128;  // at most
  static constexpr int kBuffers = 2;
  static constexpr int kBytes = kBuffers * kBoxBytes;
  // stmatrix writes 16 columns, a row of a TMA box has 32 bytes or more.
  static constexpr bool kAvailable = kN >= 16;

  // Boxes overlap: not for a C that may be D itself, of which the second box would read what the first one wrote.
  static constexpr bool overlaps(int element_bytes) { return kN % store_box_columns(kN, element_bytes) != 0; }

  // C by TMA where `loads`: its descriptor, boxes as D's of 16-bit elements; its batch; two barriers of the warp, which
  // count a box's bytes.
  struct CByTma {
    bool loads;
    const void* tensor_map;
    int batch;
    uint32_t barriers;
  };

  // Asks for the first boxes of C of a tile that run() will store, with the same arguments.
  __device__ static __forceinline__ void load_first(const CByTma& c, int m, int n, uint32_t smem_buffers, int lane,
                                                    uint32_t boxes) {
    if (lane == 0) {
      ptx::tma_store_wait_read<0>();
#pragma unroll
      for (int box = 0; box < kBuffers && box < Boxes<2>::kCount; ++box)
        load_c(c, m, n, smem_buffers, box, boxes + box);
    }
    __syncwarp();
  }

  // Which code serves a call: bytes of an element of D where alpha and bias are all, else kGeneral.
  static constexpr int kGeneral = 0;
  __device__ static __forceinline__ int path_of(const EpilogueParams& e) {
    return e.c != nullptr || e.activation != Activation::none ? kGeneral : e.d_dtype == DType::f32 ? 4 : 2;
  }

  // (m, n): the warp's first row and column in D; smem_buffers: kBytes, 1024-byte aligned. tensor_map: nullptr stores
  // by rows. `boxes` counts the boxes of this warp so far. path: path_of(e).
  __device__ static __forceinline__ void run(const EpilogueParams& e, const void* tensor_map, int batch, int m, int n,
                                             const float (&acc)[kN / 2], uint32_t smem_buffers, int lane,
                                             uint32_t& boxes, int path, const CByTma& c = {false, nullptr, 0, 0}) {
    const Place at{e, tensor_map, c, batch, m, n, smem_buffers, lane};
    if (path == kGeneral) {
      store_general(at, acc, boxes);
    } else if (path == 4) {
      store_plain<4>(at, acc, boxes);
    } else {
      store_plain<2>(at, acc, boxes);
    }
  }

  // The accumulators as they are to an fp32 partial tile, by TMA; m: the warp's first row in the tile.
  __device__ static __forceinline__ void put_partial(const void* tensor_map, int slot, int m,
                                                     const float (&acc)[kN / 2], uint32_t smem_buffers, int lane,
                                                     uint32_t& boxes) {
    EpilogueParams e;
    e.d_dtype = DType::f32;
    store_plain<4>({e, tensor_map, {false, nullptr, 0, 0}, slot, m, 0, smem_buffers, lane}, acc, boxes);
  }

  // Before the CTA ends, or its buffers are used otherwise.
  __device__ static __forceinline__ void drain(int lane) {
    if (lane == 0) ptx::tma_store_wait_read<0>();
    __syncwarp();
  }

 private:
  struct Place {
    const EpilogueParams& e;
    const void* tensor_map;
    CByTma c;
    int batch, m, n;
    uint32_t smem_buffers;
    int lane;
  };

  template <int kElementBytes>
  struct Boxes {
    static constexpr int kColumns = store_box_columns(kN, kElementBytes);
    static constexpr int kCount = static_cast<int>(ceil_div(kN, kColumns));
    static constexpr int kChunks = kColumns * kElementBytes / 16;  // of 16 bytes in a row
    __device__ static constexpr int first(int box) {
      return box * kColumns + kColumns <= kN ? box * kColumns : kN - kColumns;
    }
  };

  // alpha and bias.
  template <int kElementBytes>
  __device__ static __forceinline__ void store_plain(const Place& at, const float (&acc)[kN / 2], uint32_t& boxes) {
    using Boxes = Boxes<kElementBytes>;
    constexpr int kBiasLoads = static_cast<int>(ceil_div(kN, 32));
    float bias[kBiasLoads];
    if (at.e.bias != nullptr) load_bias(at.e, at.n, at.lane, bias);
#pragma unroll
    for (int box = 0; box < Boxes::kCount; ++box) {
      const uint32_t buffer = wait_for_buffer(at, box, boxes);
#pragma unroll
      for (int j = 0; j < Boxes::kColumns / 8; j += 2) {
        const int column = Boxes::first(box) + 8 * j;
        float x[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = __fmul_rn(at.e.alpha, acc[column / 2 + i]);
        if (at.e.bias != nullptr) {
#pragma unroll
          for (int i = 0; i < 2; ++i) add_bias(bias[(column + 8 * i) / 32], (column + 8 * i) % 32, at.lane, x + 4 * i);
        }
        write<kElementBytes>(at.e.d_dtype, x, buffer, j, at.lane);
      }
      store_box<kElementBytes>(at, box, buffer, boxes);
    }
  }

  // alpha, C, bias and activation, in steps of up to 32 columns: a box of fp32, half a box of 16-bit elements. One code
  // for both: 16 values a lane, ten activations, are 40 KB of instructions.
  static constexpr int kStep = store_box_columns(kN, 4);

  // Whether a step begins at this column.
  __device__ static constexpr bool begins_step(int column) {
    for (int box = 0; box < Boxes<4>::kCount; ++box) {
      if (column == Boxes<4>::first(box)) return true;
    }
    for (int box = 0; box < Boxes<2>::kCount; ++box) {
      for (int in_box = 0; in_box < Boxes<2>::kColumns; in_box += kStep) {
        if (column == Boxes<2>::first(box) + in_box) return true;
      }
    }
    return false;
  }

  __device__ static __forceinline__ void store_general(const Place& at, const float (&acc)[kN / 2], uint32_t& boxes) {
    constexpr int kValues = kStep / 2;  // of a lane
    const bool f32 = at.e.d_dtype == DType::f32;
    const int steps = f32 ? 1 : Boxes<2>::kColumns / kStep;  // of a box
    const int count = (f32 ? Boxes<4>::kCount : Boxes<2>::kCount) * steps;
    uint32_t buffer = 0;
#pragma unroll 1
    for (int step = 0; step < count; ++step) {
      const int box = f32 ? step : step / (Boxes<2>::kColumns / kStep);
      const int in_box = (step - box * steps) * kStep;
      const int column = (f32 ? Boxes<4>::first(box) : Boxes<2>::first(box)) + in_box;
      const int n = at.n + column;
      float bias[1];
      if (at.e.bias != nullptr) load_bias(at.e, n, at.lane, bias);
      float x[kValues];
#pragma unroll
      for (int i = 0; i + kStep <= kN; i += 8) {
        if (begins_step(i) && column == i) {
#pragma unroll
          for (int j = 0; j < kValues; ++j) x[j] = __fmul_rn(at.e.alpha, acc[i / 2 + j]);
        }
      }
      if (at.c.loads) {
        if (in_box == 0) {
          buffer = at.smem_buffers + boxes % kBuffers * kBoxBytes;
          ptx::mbarrier_wait(at.c.barriers + boxes % kBuffers * 8, boxes / kBuffers & 1);
        }
        add_loaded_c<kValues>(at.e, buffer, in_box / 8, at.lane, x);
        __syncwarp();  // D takes C's place
      } else if (at.e.c != nullptr) {
        add_c<kValues>(at.e, at.batch, at.m, n, at.lane, x);
      }
      if (at.e.bias != nullptr) {
#pragma unroll
        for (int j = 0; j < kStep / 8; ++j) add_bias(bias[0], 8 * j, at.lane, x + 4 * j);
      }
      activate_all(x, at.e);
      if (in_box == 0 && !at.c.loads) buffer = wait_for_buffer(at, box, boxes);
#pragma unroll
      for (int j = 0; j < kStep / 8; j += 2) {
        if (f32) {
          write<4>(at.e.d_dtype, x + 4 * j, buffer, j, at.lane);
        } else {
          write<2>(at.e.d_dtype, x + 4 * j, buffer, in_box / 8 + j, at.lane);
        }
      }
      if (in_box + kStep < steps * kStep) continue;
      if (f32) {
        store_box<4>(at, box, buffer, boxes);
      } else {
        store_box<2>(at, box, buffer, boxes);
      }
    }
  }

  // The buffer of the next box, once nothing reads it any more.
  __device__ static __forceinline__ uint32_t wait_for_buffer(const Place& at, int box, uint32_t boxes) {
    if (at.tensor_map == nullptr) {
      if (box % kBuffers == 0) __syncwarp();
      return at.smem_buffers + box % kBuffers * kBoxBytes;
    }
    if (at.lane == 0) ptx::tma_store_wait_read<kBuffers - 1>();
    __syncwarp();
    return at.smem_buffers + boxes % kBuffers * kBoxBytes;
  }

  template <int kElementBytes>
  __device__ static __forceinline__ void store_box(const Place& at, int box, uint32_t buffer, uint32_t& boxes) {
    using Boxes = Boxes<kElementBytes>;
    if (at.tensor_map != nullptr) {
      ptx::fence_proxy_async();
      __syncwarp();
      if (at.lane == 0) {
        ptx::tma_store(at.tensor_map, buffer, at.n + Boxes::first(box), at.m, at.batch);
        ptx::tma_store_commit();
        if (at.c.loads && box > 0 && box + 1 < Boxes::kCount) {
          ptx::tma_store_wait_read<1>();  // the box before this one has left the buffer of the next
          load_c(at.c, at.m, at.n, at.smem_buffers, box + 1, boxes + 1);
        }
      }
      ++boxes;
    } else if constexpr (kElementBytes == 2) {
      if (box % kBuffers != kBuffers - 1 && box != Boxes::kCount - 1) return;
      __syncwarp();
      store_rows(at, box - box % kBuffers);
    }
  }

  // One thread. The `count`-th box of this warp, `box` of its tile.
  __device__ static __forceinline__ void load_c(const CByTma& c, int m, int n, uint32_t smem_buffers, int box,
                                                uint32_t count) {
    const uint32_t barrier = c.barriers + count % kBuffers * 8;
    ptx::mbarrier_arrive_expect_tx(barrier, kRows * Boxes<2>::kColumns * 2);
    const int column = box * Boxes<2>::kColumns;  // boxes with C do not overlap
    ptx::tma_load(smem_buffers + count % kBuffers * kBoxBytes, c.tensor_map, barrier, n + column, m, c.batch,
                  ptx::kEvictFirst);
  }

  // Adds C from the buffer; x as in add_c(), its first column is the 16-byte chunk `chunk` of the box.
  template <int kValues>
  __device__ static __forceinline__ void add_loaded_c(const EpilogueParams& e, uint32_t buffer, int chunk, int lane,
                                                      float (&x)[kValues]) {
    constexpr int kChunks = Boxes<2>::kChunks;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + 8 * half;
#pragma unroll
      for (int j = 0; j < kValues / 4; ++j) {
        const int at = swizzled_chunk(row, chunk + j, kChunks);
        const uint32_t bits = ptx::load_shared_4(buffer + (row * kChunks + at) * 16 + lane % 4 * 4);
        float* const to = x + 4 * j + 2 * half;
        to[0] = __fmaf_rn(e.beta, half_as_float(bits, e.c_dtype), to[0]);
        to[1] = __fmaf_rn(e.beta, half_as_float(bits >> 16, e.c_dtype), to[1]);
      }
    }
  }

  // bias[i]: column n + 32 i + lane.
  template <int kLoads>
  __device__ static __forceinline__ void load_bias(const EpilogueParams& e, int n, int lane, float (&bias)[kLoads]) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int column = n + 32 * i + lane;
      bias[i] = column < e.n ? load_element(e.bias, column * e.bias_stride, e.bias_dtype) : 0.0f;
    }
  }

  // To the lane's two columns of 8, which lanes `first` to first + 7 loaded; x: both columns in two rows.
  __device__ static __forceinline__ void add_bias(float bias, int first, int lane, float* x) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float value = __shfl_sync(~0u, bias, first + lane % 4 * 2 + i);
      x[i] = __fadd_rn(x[i], value);
      x[i + 2] = __fadd_rn(x[i + 2], value);
    }
  }

  // x[4 j + i]: row lane / 4 (+ 8 for i = 2, 3), column n + 8 j + 2 (lane % 4) + i % 2.
  template <int kValues>
  __device__ static __forceinline__ void add_c(const EpilogueParams& e, int batch, int m, int n, int lane,
                                               float (&x)[kValues]) {
    const int64_t column = n + lane % 4 * 2;
    const int64_t row = m + lane / 4;
    const int64_t at = batch * e.c_batch_stride + row * e.c_row_stride + column * e.c_col_stride;
    const bool pairs = e.c_vector && e.c_dtype != DType::f32;  // 4-byte loads: rows are 8-byte aligned
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (row + 8 * half >= e.m) break;
      const int64_t base = at + 8 * half * e.c_row_stride;
#pragma unroll
      for (int j = 0; j < kValues / 4; ++j) {
        float c[2] = {};
        if (pairs && column + 8 * j + 1 < e.n) {
          const uint32_t bits =
              *reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(e.c) + base + 8 * j * e.c_col_stride);
          c[0] = half_as_float(bits, e.c_dtype);
          c[1] = half_as_float(bits >> 16, e.c_dtype);
        } else {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            if (column + 8 * j + i < e.n) c[i] = load_element(e.c, base + (8 * j + i) * e.c_col_stride, e.c_dtype);
          }
        }
        x[4 * j + 2 * half] = __fmaf_rn(e.beta, c[0], x[4 * j + 2 * half]);
        x[4 * j + 2 * half + 1] = __fmaf_rn(e.beta, c[1], x[4 * j + 2 * half + 1]);
      }
    }
  }

  // x: 16 columns of 16 rows, the columns 8 j .. of the box.
  template <int kElementBytes>
  __device__ static __forceinline__ void write(DType dtype, const float* x, uint32_t buffer, int j, int lane) {
    if constexpr (kElementBytes == 2) {
      write_16bit<Boxes<2>::kChunks>(dtype, x, buffer, j, lane);
    } else {
      write_f32<Boxes<4>::kChunks>(x, buffer, 2 * j, lane);
    }
  }

  // 16 rows of 16 columns as four 8x8 matrices; `chunk`: the first 16-byte chunk of the box's rows.
  template <int kChunks>
  __device__ static __forceinline__ void write_16bit(DType dtype, const float* x, uint32_t buffer, int chunk,
                                                     int lane) {
    const uint32_t packed[4] = {pack_pair(x[0], x[1], dtype), pack_pair(x[2], x[3], dtype),
                                pack_pair(x[4], x[5], dtype), pack_pair(x[6], x[7], dtype)};
    const int row = lane % 16;  // matrices 0 and 2: rows 0-7; 1 and 3: rows 8-15
    const int at = swizzled_chunk(row, chunk + lane / 16, kChunks);
    ptx::stmatrix_x4(buffer + (row * kChunks + at) * 16, packed);
  }

  template <int kChunks>
  __device__ static __forceinline__ void write_f32(const float* x, uint32_t buffer, int chunk, int lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i % 2 * 8;
      const int at = swizzled_chunk(row, chunk + i / 2 * 2 + lane % 4 / 2, kChunks);
      const uint32_t address = buffer + (row * kChunks + at) * 16 + lane % 2 * 8;
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x[2 * i]), "f"(x[2 * i + 1]) : "memory");
    }
  }

  // Stores the columns of boxes first_box .. first_box + kBuffers - 1. The whole 16-byte words of D in a row are chunks
  // of shared memory shifted by the row's misalignment; the words at its two ends belong in part to neighbours.
  __device__ static __forceinline__ void store_rows(const Place& at, int first_box) {
    using Boxes = Boxes<2>;
    constexpr int kPass = kBuffers * Boxes::kColumns < kN ? kBuffers * Boxes::kColumns : kN;
    constexpr int kWords = kPass / 8;
    constexpr int kRowsAtOnce = 32 / kWords;
    const EpilogueParams& e = at.e;
    const int first = first_box * Boxes::kColumns;
    const int n = at.n + first;
    if (n >= e.n) return;
    const int width = kN - first < kPass ? kN - first : kPass;
    const int bytes = 2 * (e.n - n < width ? static_cast<int>(e.n - n) : width);
    const int rows = e.m - at.m < kRows ? static_cast<int>(e.m - at.m) : kRows;
    auto* const d =
        static_cast<unsigned char*>(e.d) + 2 * (at.batch * e.d_batch_stride + int64_t{at.m} * e.d_row_stride + n);
    const auto row_start = [&](int row) { return d + 2 * row * e.d_row_stride; };
    const auto head_bytes = [](const unsigned char* p) {
      return static_cast<int>(-reinterpret_cast<intptr_t>(p) & 15);
    };
    // Shared memory of this byte of the row; bytes of one 16-byte chunk are neighbours.
    const auto smem = [&](int row, int byte) {
      const int column = first + byte / 2;
      const int box = column / Boxes::kColumns;
      const int chunk = swizzled_chunk(row, (column - Boxes::first(box)) / 8, Boxes::kChunks);
      return at.smem_buffers + box % kBuffers * kBoxBytes + (row * Boxes::kChunks + chunk) * 16 + byte % 16;
    };
#pragma unroll
    for (int i = 0; i < static_cast<int>(ceil_div(kRows, kRowsAtOnce)); ++i) {
      const int row = i * kRowsAtOnce + at.lane / kWords;
      if (at.lane >= kRowsAtOnce * kWords || row >= rows) continue;
      unsigned char* const out = row_start(row);
      const int byte = head_bytes(out) + at.lane % kWords * 16;
      if (byte + 16 > bytes) continue;
      const uint4 low = ptx::load_shared_16(smem(row, byte & ~15));
      const uint4 high = ptx::load_shared_16(smem(row, byte % 16 == 0 ? byte : byte + 15 & ~15));
      *reinterpret_cast<uint4*>(out + byte) = bytes_from(low, high, byte % 16);
    }
    // Eight lanes an end.
#pragma unroll
    for (int i = 0; i < 2 * kRows / 4; ++i) {
      const int end = i * 4 + at.lane / 8;
      const int row = end / 2;
      if (row >= rows) continue;
      unsigned char* const out = row_start(row);
      const int head = head_bytes(out) < bytes ? head_bytes(out) : bytes;
      const int from = end % 2 == 0 ? 0 : head + (bytes - head & ~15);
      const int to = end % 2 == 0 ? head : bytes;
      const int byte = from + at.lane % 8 * 2;
      if (byte < to) *reinterpret_cast<uint16_t*>(out + byte) = ptx::load_shared_2(smem(row, byte));
    }
  }
};

}  // namespace gemmx::device
