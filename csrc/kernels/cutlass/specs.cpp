#include "kernels/cutlass/specs.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/splits.h"

namespace gemmx::cutlass {
namespace {

// TMA reads and writes rows that start at multiples of 16 bytes; CUTLASS asks the same of their length.
constexpr int kTmaBytes = 16;
// Strides of a TMA descriptor are below 2^40 bytes.
constexpr int64_t kMaxStrideBytes = int64_t{1} << 40;
// A sm_100 grid has one CTA per tile with the batch in z and tiles in y; both end at 65535.
constexpr int64_t kMaxGridYz = 65535;

constexpr int64_t round_up(int64_t x, int64_t multiple) { return ceil_div(x, multiple) * multiple; }

// CUTLASS swizzles by 1, 2, 4 or 8 tiles, the widest that the request allows and that the smaller side has use for.
constexpr int64_t swizzle_width(int64_t smaller_side, int request) {
  if (request >= 8 && smaller_side >= 6) return 8;
  if (request >= 4 && smaller_side >= 3) return 4;
  return request >= 2 && smaller_side >= 2 ? 2 : 1;
}

// Tiles that the scheduler walks: whole clusters, and whole groups of the swizzle.
int64_t output_tiles(const KernelSpec& s, const Problem& p, int swizzle) {
  const int64_t tiles_m = round_up(ceil_div(s.swap_ab ? p.n : p.m, s.tile.m), s.cluster.m);
  const int64_t tiles_n = round_up(ceil_div(s.swap_ab ? p.m : p.n, s.tile.n), s.cluster.n);
  const int64_t width = swizzle_width(std::min(tiles_m, tiles_n), swizzle);
  return round_up(tiles_m, width * s.cluster.m) * round_up(tiles_n, width * s.cluster.n) * p.batch;
}

// ---- stream-K ----

// CUTLASS gives no stream-K CTA fewer K tiles than this (min_iters_per_sk_unit_).
constexpr int64_t kMinKTiles = 8;
// One barrier of 4 bytes for each of the two math warp groups of a split tile.
constexpr int64_t kBarrierBytes = 2 * 4;
constexpr int64_t kL2Line = 128;

// How many output tiles CUTLASS's stream-K scheduler cuts along K. It spreads the last full wave and the part
// wave after it evenly over the CTAs of one wave and runs the earlier waves data-parallel; without a part
// wave, or with at most kMinKTiles K tiles, it cuts nothing.
int64_t split_tiles(const KernelSpec& s, const Problem& p, int swizzle, const Device& device) {
  const int64_t cluster = s.cluster.m * s.cluster.n;
  const int64_t wave = device.sm_count / cluster * cluster;
  const int64_t tiles = output_tiles(s, p, swizzle);
  if (wave == 0 || tiles % wave == 0 || ceil_div(p.k, s.tile.k) <= kMinKTiles) return 0;
  const int64_t full_waves = tiles / wave;
  return full_waves > 1 ? tiles - (full_waves - 1) * wave : tiles;
}

// fp32 partials of the split tiles, then their barriers. gemm_3x.cuh refuses to run where CUTLASS asks for more.
int64_t stream_k_workspace_size(const KernelSpec& s, const Problem& p, const Plan& plan, const Device& device) {
  const int64_t tiles = split_tiles(s, p, plan.swizzle, device);
  const int64_t partial_bytes = int64_t{s.tile.m} * s.tile.n * size_of(DType::f32);
  return round_up(tiles * partial_bytes, kL2Line) + round_up(tiles * kBarrierBytes, kL2Line);
}

std::string check_stream_k(const KernelSpec& s, const Problem& p, const Device& device) {
  if (split_tiles(s, p, 1, device) > 0) return {};
  if (ceil_div(p.k, s.tile.k) <= kMinKTiles) {
    return "cuts K into pieces of at least " + std::to_string(kMinKTiles * s.tile.k) + ", and K is " +
           std::to_string(p.k) + ": use data_parallel";
  }
  return "has nothing to balance, because the output tiles fill whole waves of " + std::to_string(device.sm_count) +
         " SMs: use data_parallel";
}

// ---- operands ----

std::string check_extents(const KernelSpec& s, const Problem& p) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  if (p.m > kMax || p.n > kMax || p.k > kMax || p.batch > kMax) {
    return "takes M, N, K and batch below 2^31, got " + std::to_string(p.m) + ", " + std::to_string(p.n) + ", " +
           std::to_string(p.k) + " and " + std::to_string(p.batch);
  }
  if (output_tiles(s, p, 8) > kMax) return "takes less than 2^31 output tiles";
  if (p.k == 0) return "reads A and B through TMA, which needs K of at least 1; here K or alpha is 0";
  return {};
}

std::string check_operand(const char* name, const Matrix& x, int64_t contiguous_extent, const char* extent_name) {
  const std::string who(name);
  if (vector_bytes(x) < kTmaBytes) {
    return "needs " + who + "'s address and strides to be multiples of 16 bytes, they are multiples of " +
           std::to_string(vector_bytes(x));
  }
  const int64_t elements = kTmaBytes / size_of(x.dtype);
  if (contiguous_extent % elements != 0) {
    return "needs " + std::string(extent_name) + " to be a multiple of " + std::to_string(elements) + " for " + who +
           ", got " + std::to_string(contiguous_extent);
  }
  // A stride of 0 is tried and right for the batch, not for rows.
  if (x.leading_dimension() == 0) return "takes no " + who + " that is broadcast along its rows or columns";
  const int64_t limit = kMaxStrideBytes / size_of(x.dtype);
  if (x.leading_dimension() >= limit || x.batch_stride >= limit) {
    return "takes strides of " + who + " below 2^40 bytes";
  }
  return {};
}

std::string check_c_and_d(const Problem& p) {
  if (p.d.major != Major::n) return "writes D row-major (N contiguous)";
  if (std::string r = check_operand("D", p.d, p.n, "N"); !r.empty()) return r;
  if (!p.has_c()) return {};
  if (p.c.dtype != p.d.dtype) {
    return "reads C in D's dtype " + std::string(name(p.d.dtype)) + ", got " + std::string(name(p.c.dtype));
  }
  if (p.c.major != Major::n) return "reads C row-major (N contiguous) and not broadcast along N";
  return check_operand("C", p.c, p.n, "N");
}

std::string check_bias(const Problem& p) {
  if (!p.has_bias()) return {};
  if (p.bias_dtype != p.d.dtype) {
    return "reads bias in D's dtype " + std::string(name(p.d.dtype)) + ", got " + std::string(name(p.bias_dtype));
  }
  // Elements are read one by one, so that the element's own alignment is enough.
  if (p.bias_stride != 1 && p.n > 1) return "reads a contiguous bias, got stride " + std::to_string(p.bias_stride);
  return {};
}

std::string supports_3x(const KernelSpec& s, const Problem& p, const Device& device) {
  if (std::string r = supports_common(s, p, device); !r.empty()) return r;
  if (std::string r = check_extents(s, p); !r.empty()) return r;
  const bool a_k = s.major_a == Major::k;
  if (std::string r = check_operand("A", p.a, a_k ? p.k : p.m, a_k ? "K" : "M"); !r.empty()) return r;
  const bool b_k = s.major_b == Major::k;
  if (std::string r = check_operand("B", p.b, b_k ? p.k : p.n, b_k ? "K" : "N"); !r.empty()) return r;
  if (std::string r = check_c_and_d(p); !r.empty()) return r;
  if (std::string r = check_bias(p); !r.empty()) return r;
  return s.stream_k ? check_stream_k(s, p, device) : std::string();
}

std::string supports_sm100(const KernelSpec& s, const Problem& p, const Device& device) {
  if (std::string r = supports_3x(s, p, device); !r.empty()) return r;
  // Tiles of the raster's minor dimension lie along y, whichever that is.
  const int64_t tiles = std::max(ceil_div(p.m, s.tile.m) * s.cluster.m, ceil_div(p.n, s.tile.n) * s.cluster.n);
  if (p.batch > kMaxGridYz || tiles > kMaxGridYz) {
    return "takes at most 65535 batches and 65535 tiles along M and N";
  }
  return {};
}

KernelSpec spec_3x(const char* name, const Row& row) {
  KernelSpec s;
  s.name = name;
  s.family = "cutlass";
  s.dtype_a = s.dtype_b = s.dtype_d = row.element;
  s.major_a = row.major_a;
  s.major_b = row.major_b;
  s.tile = row.tile;
  s.cluster = row.cluster;
  s.stages = row.stages;
  s.smem_bytes = row.smem_bytes;
  s.priority = row.priority;
  s.swap_ab = row.operands == OperandOrder::swap_ab;
  s.data_parallel = row.schedule == Schedule::data_parallel;
  s.stream_k = row.schedule == Schedule::stream_k;
  if (s.stream_k) s.workspace_size = stream_k_workspace_size;
  return s;
}

}  // namespace

KernelSpec sm90_spec(const char* name, const Row& row) {
  KernelSpec s = spec_3x(name, row);
  s.min_capability = s.max_capability = 90;
  s.mma = "HGMMA";
  // Of no class of own kernels: its epilogue is CUTLASS's, and its stream-K cuts K by the number of tiles.
  s.numerics = NumericsClass::library;
  s.threads = 384;  // a producer warp group and two math warp groups
  s.supports = supports_3x;
  return s;
}

KernelSpec sm100_spec(const char* name, const Row& row) {
  KernelSpec s = spec_3x(name, row);
  s.min_capability = s.max_capability = 100;
  s.mma = "UTCHMMA";
  s.numerics = NumericsClass::tcgen05;
  s.threads = 256;  // warps for MMA, scheduling, loads and C, and four for the epilogue
  s.supports = supports_sm100;
  return s;
}

}  // namespace gemmx::cutlass
