#include "kernels/sm90/pack.cuh"

#include <stdexcept>
#include <string>

#include "device/bytes.cuh"
#include "device/ptx/griddepcontrol.cuh"
#include "kernels/sm90/early_launch.cuh"

namespace gemmx::sm90 {
namespace {

// Elements one by one; zeros beyond the row.
__device__ __forceinline__ uint4 gather(const PackOperand& o, const uint16_t* row, int64_t first) {
  uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (first + i < o.length) words[i / 2] |= uint32_t{row[(first + i) * o.element_stride]} << (i % 2 * 16);
  }
  return {words[0], words[1], words[2], words[3]};
}

__device__ __forceinline__ uint4 load_chunk(const PackOperand& o, const uint16_t* matrix, int64_t r, int64_t first) {
  const uint16_t* const row = matrix + r * o.row_stride;
  if (o.element_stride != 1) return gather(o, row, first);
  const auto address = reinterpret_cast<uintptr_t>(row + first);
  const uint32_t byte = address % 16;
  const uintptr_t low = address - byte;
  const auto begin = reinterpret_cast<uintptr_t>(matrix);
  const auto end = reinterpret_cast<uintptr_t>(matrix + (o.rows - 1) * o.row_stride + o.length);
  if (low < begin || low + (byte == 0 ? 16 : 32) > end) return gather(o, row, first);
  // Not by the read-only path: the kernel before may write the operand while this one already runs, until it has
  // waited.
  const auto* const words = reinterpret_cast<const uint4*>(low);
  return byte == 0 ? words[0] : device::bytes_from(words[0], words[1], byte);
}

// Index: 32-bit where all chunks can be counted so, since a 64-bit division takes as long as the loads. One division a
// thread, and one a chunk with a batch.
template <class Index>
__device__ __forceinline__ void pack(const PackTask& task, int64_t block) {
  const PackOperand& o = task.operand;
  const Index per_row = static_cast<Index>(o.pitch / 8);
  const Index rows = static_cast<Index>(o.rows);
  const Index chunks = static_cast<Index>(o.chunks());
  const Index begin = static_cast<Index>(block) * (kPackThreads * kChunksPerThread) + threadIdx.x;
  const Index step_rows = static_cast<Index>(task.step_rows), step_chunks = static_cast<Index>(task.step_chunks);
  Index row = begin / per_row;  // of all batches
  Index in_row = begin - row * per_row;
  uint4 x[kChunksPerThread];
#pragma unroll
  for (int i = 0; i < kChunksPerThread; ++i) {
    if (begin + i * kPackThreads < chunks) {
      const Index batch = o.batch > 1 ? row / rows : 0;
      const uint16_t* const matrix = o.source + batch * o.batch_stride;
      x[i] = load_chunk(o, matrix, row - batch * rows, static_cast<int64_t>(in_row) * 8);
    }
    row += step_rows;
    in_row += step_chunks;
    if (in_row >= per_row) {
      in_row -= per_row;
      ++row;
    }
  }
#pragma unroll
  for (int i = 0; i < kChunksPerThread; ++i) {
    const Index chunk = begin + i * kPackThreads;
    if (chunk < chunks) reinterpret_cast<uint4*>(o.packed)[chunk] = x[i];
  }
}

__global__ void __launch_bounds__(kPackThreads) pack_kernel(const __grid_constant__ PackParams p) {
  device::ptx::let_next_kernel_start();
  device::ptx::wait_for_earlier_kernels();
  const bool second = blockIdx.x >= p.first_block_of_second;
  const PackTask& task = p.tasks[second ? 1 : 0];
  const int64_t block = blockIdx.x - (second ? p.first_block_of_second : 0);
  constexpr int64_t kNarrow = int64_t{1} << 31;
  if (task.operand.chunks() < kNarrow) {
    pack<uint32_t>(task, block);
  } else {
    pack<uint64_t>(task, block);
  }
}

}  // namespace

// An operand that needs no copy has no rows.
void launch_pack(const char* kernel, const PackOperand& a, const PackOperand& b, cudaStream_t stream) {
  const auto task = [](const PackOperand& o) {
    const int64_t per_row = o.rows > 0 ? o.pitch / 8 : 1;
    return PackTask{o, kPackThreads / per_row, kPackThreads % per_row};
  };
  PackParams p{{task(a), task(b)}, pack_blocks(a.chunks())};
  const int64_t blocks = p.first_block_of_second + pack_blocks(b.chunks());
  if (blocks > 2147483647) {
    throw std::runtime_error(std::string(kernel) + ": the operands to be packed are larger than one launch can copy");
  }
  launch_early(kernel, "packing copy", pack_kernel, blocks, kPackThreads, p, stream);
}

}  // namespace gemmx::sm90
