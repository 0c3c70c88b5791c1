// Streaming reads, 16 bytes a load or 8 KB a bulk copy. DRAM at 4.3 TB/s with 0.8 us of latency needs 3.4 MB in
// flight, 26 KB an SM of an H200; every variant has at least 64 KB.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/splits.h"
#include "device/ptx/bulk_copy.cuh"
#include "device/ptx/load_streaming.cuh"
#include "device/ptx/mbarrier.cuh"
#include "kernels/stream_read/stream_read.h"

namespace gemmx {
namespace {

namespace ptx = device::ptx;

// A value that the xor of what was read has once in 2^32 times; then it is written to the sink.
constexpr uint32_t kUnlikely = 0x9e3779b9u;

__device__ __forceinline__ uint32_t fold(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }

// The last bytes, fewer than 16.
__device__ uint32_t read_tail(const uint4* data, int64_t bytes) {
  uint32_t sum = 0;
  const auto* const p = reinterpret_cast<const unsigned char*>(data);
  for (int64_t i = bytes / 16 * 16; i < bytes; ++i) sum ^= p[i];
  return sum;
}

// CTAs take chunks of kThreads * kUnroll vectors in turn. All loads of a chunk are issued before the first is
// used.
template <int kThreads, int kUnroll>
__global__ void __launch_bounds__(kThreads)
    read_by_loads(const uint4* __restrict__ data, int64_t bytes, uint32_t* sink) {
  constexpr int64_t kChunk = int64_t{kThreads} * kUnroll;
  const int64_t vectors = bytes / 16;
  const uint64_t policy = ptx::evict_first_policy();
  uint32_t sum = 0;
  for (int64_t begin = blockIdx.x * kChunk; begin < vectors; begin += gridDim.x * kChunk) {
    const uint4* const mine = data + begin + threadIdx.x;
    if (begin + kChunk > vectors) {  // the last chunk
      for (int64_t at = begin + threadIdx.x; at < vectors; at += kThreads) sum ^= fold(data[at]);
      break;
    }
    uint4 v[kUnroll];
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) v[i] = ptx::load_streaming(mine + i * kThreads, policy);
#pragma unroll
    for (int i = 0; i < kUnroll; ++i) sum ^= fold(v[i]);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) sum ^= read_tail(data, bytes);
  if (sum == kUnlikely) *sink = sum;
}

constexpr int kBulkBytes = 8192;
constexpr int kBulkStages = 12;  // 96 KB a CTA, two CTAs an SM

struct BulkStorage {
  alignas(128) unsigned char buffer[kBulkStages][kBulkBytes];
  alignas(8) uint64_t barrier[kBulkStages];
};

// One thread keeps kBulkStages copies in flight into buffers that no one reads.
__global__ void __launch_bounds__(32)
    read_by_bulk_copies(const uint4* __restrict__ data, int64_t bytes, uint32_t* sink) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char raw_storage[];
  if (threadIdx.x != 0) return;
  auto& smem = *reinterpret_cast<BulkStorage*>(raw_storage);
  const auto address = [](const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); };
  const uint64_t policy = ptx::evict_first_policy();
  for (int i = 0; i < kBulkStages; ++i) ptx::mbarrier_init(address(&smem.barrier[i]), 1);
  ptx::mbarrier_init_fence();

  const int64_t whole = bytes / 16 * 16;
  int stage = 0, issued = 0;
  uint32_t parity = 1;  // of the phase before the one that the next copy opens; the first round waits for none
  for (int64_t at = int64_t{blockIdx.x} * kBulkBytes; at < whole; at += int64_t{gridDim.x} * kBulkBytes) {
    const uint32_t barrier = address(&smem.barrier[stage]);
    const auto size = static_cast<uint32_t>(whole - at < kBulkBytes ? whole - at : kBulkBytes);
    ptx::mbarrier_wait(barrier, parity);
    ptx::mbarrier_arrive_expect_tx(barrier, size);
    ptx::bulk_copy(address(smem.buffer[stage]), reinterpret_cast<const char*>(data) + at, size, barrier, policy);
    issued = issued < kBulkStages ? issued + 1 : kBulkStages;
    if (++stage == kBulkStages) stage = 0, parity ^= 1;
  }
  // Drain: shared memory must outlive the copies. The next stage holds the oldest one.
  for (int i = 0; i < kBulkStages; ++i) {
    if (i + issued >= kBulkStages) ptx::mbarrier_wait(address(&smem.barrier[stage]), parity);
    if (++stage == kBulkStages) stage = 0, parity ^= 1;
  }
  const uint32_t sum = blockIdx.x == 0 ? read_tail(data, bytes) : 0;
  if (sum == kUnlikely) *sink = sum;
#endif
}

struct Variant {
  void (*kernel)(const uint4*, int64_t, uint32_t*);
  int threads;
  int chunk_bytes;
  int ctas_per_sm;  // 0: one CTA per chunk
  int smem_bytes;
  int min_capability;
};

template <int kThreads, int kUnroll>
constexpr Variant by_loads(int ctas_per_sm) {
  return {read_by_loads<kThreads, kUnroll>, kThreads, kThreads * kUnroll * 16, ctas_per_sm, 0, 80};
}

constexpr Variant kVariants[] = {
    by_loads<256, 8>(0),  by_loads<256, 4>(0),
    by_loads<512, 4>(0),  by_loads<128, 16>(0),
    by_loads<256, 8>(4),  by_loads<512, 8>(2),
    by_loads<1024, 4>(2), {read_by_bulk_copies, 32, kBulkBytes, 2, sizeof(BulkStorage), 90},
};

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("stream_read: ") + what + " failed: " + cudaGetErrorString(error));
  }
}

void check_capability(const Variant& variant, int index) {
  int device = 0, major = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  if (10 * major < variant.min_capability) {
    throw std::invalid_argument("variant: " + std::to_string(index) + " needs compute capability 9.0 or later");
  }
}

}  // namespace

int stream_read_variants() { return static_cast<int>(std::size(kVariants)); }

void stream_read(const void* data, int64_t bytes, void* sink, int device_sm_count, int variant, Stream stream) {
  if (variant < 0 || variant >= stream_read_variants()) {
    throw std::invalid_argument("variant: got " + std::to_string(variant) + ", takes 0 to " +
                                std::to_string(stream_read_variants() - 1));
  }
  if (bytes <= 0) throw std::invalid_argument("bytes: got " + std::to_string(bytes) + ", takes 1 or more");
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0) throw std::invalid_argument("data: must be 16-byte aligned");
  const Variant& v = kVariants[variant];
  check_capability(v, variant);
  if (v.smem_bytes > 48 * 1024) {
    check(cudaFuncSetAttribute(v.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, v.smem_bytes),
          "cudaFuncSetAttribute");
  }
  const int64_t most = v.ctas_per_sm == 0 ? 0x7fffffff : int64_t{v.ctas_per_sm} * device_sm_count;
  const auto grid = static_cast<unsigned>(std::min(most, ceil_div(bytes, v.chunk_bytes)));
  v.kernel<<<grid, v.threads, v.smem_bytes, stream>>>(static_cast<const uint4*>(data), bytes,
                                                      static_cast<uint32_t*>(sink));
  check(cudaGetLastError(), "the launch");
}

}  // namespace gemmx
