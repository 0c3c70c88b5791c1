#include "kernels/sm90/specs.h"

#include <algorithm>
#include <limits>

#include "core/splits.h"
#include "device/scheduler/k_cuts.cuh"
#include "device/scheduler/stream_k.cuh"
#include "device/scheduler/tile_scheduler.cuh"
#include "kernels/sm90/pack.cuh"

namespace gemmx::sm90 {
namespace {

constexpr int kElementBytes = 2;
// TMA reads rows that start at multiples of 16 bytes, with strides below 2^40 bytes.
constexpr int kTmaBytes = 16;
constexpr int64_t kMaxStrideBytes = int64_t{1} << 40;

// Gate and up of Z or of its gradient: matrices of n columns, `n` elements apart, as two batches of one tensor.
bool moves_by_tma(const Matrix& z, int64_t n) {
  return size_of(z.dtype) == kElementBytes && z.major == Major::n && z.col_stride == 1 && tma_reads(z) &&
         n * kElementBytes % kTmaBytes == 0;
}

std::string check_extents(const KernelSpec& s, const Problem& p, int sm_count) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max() - 1024;  // coordinates of a tail tile stay in 32 bits
  if (p.m > kMax || p.n > kMax || p.k > kMax || p.batch > kMax) {
    return "takes M, N, K and batch below 2^31 - 1024, got " + std::to_string(p.m) + ", " + std::to_string(p.n) + ", " +
           std::to_string(p.k) + " and " + std::to_string(p.batch);
  }
  if (p.k == 0) return "reads A and B through TMA, which needs K of at least 1; here K or alpha is 0";
  const bool in_one_cta = p.schedule == Schedule::data_parallel;  // where splits are its own
  const int64_t splits = in_one_cta ? 1 : std::max<int64_t>(p.splits, 1);
  if (in_one_cta && p.splits > kMaxCutsOfCta) {
    return "adds up at most " + std::to_string(kMaxCutsOfCta) + " cuts of K in a CTA, got " + std::to_string(p.splits);
  }
  const bool plain = s.split_k;  // no other form has splits
  const bool whole_words = p.n * size_of(p.d.dtype) % kTmaBytes == 0 && vector_bytes(p.d) >= kTmaBytes &&
                           p.d.leading_dimension() < kMaxStrideBytes / size_of(p.d.dtype);
  if (!plain && !s.swap_ab && (p.d.major != Major::n || (p.d.dtype == DType::f32 && !whole_words))) {
    return "writes D and the pre-activation by whole rows, float32 ones in aligned words of 16 bytes, got N=" +
           std::to_string(p.n) + " of " + std::string(name(p.d.dtype)) + ", rows " + std::to_string(p.d.row_stride) +
           " elements apart";
  }
  if (s.gated && s.major_b == Major::n && p.n * kElementBytes % kTmaBytes != 0) {
    return "reads gate and up at columns that TMA takes in multiples of 8, got N=" + std::to_string(p.n);
  }
  if (!plain && !s.gate_gradient && p.has_c()) return "takes no C: only plain kernels do";
  if (s.gate_gradient && !(moves_by_tma(p.c, p.n) && moves_by_tma(p.d, p.n))) {
    return "reads Z and writes its gradient by TMA, 16-bit rows and halves that start on 16 bytes, got N=" +
           std::to_string(p.n) + ", Z's rows " + std::to_string(p.c.row_stride) + " elements apart";
  }
  const auto [m, n] = s.swap_ab ? std::pair{p.b_columns(), p.m} : std::pair{p.m, p.b_columns()};
  // A cluster's CTAs count too.
  if (device::cta_count(m, n, p.batch, splits * s.cluster.m * s.cluster.n, s.tile.m, s.tile.n) > device::kMaxGridX) {
    return "takes less than 2^31 output tiles";
  }
  if (p.schedule == Schedule::stream_k && !device::stream_k_counts(ceil_div(p.k, s.tile.k), sm_count)) {
    return "cuts tiles for stream_k in less than 2^32 parts of K, got K=" + std::to_string(p.k) + " on " +
           std::to_string(sm_count) + " SMs";
  }
  const int64_t limit = max_splits(p.k, kElementBytes);
  if (p.splits > device::kMaxSplits) {
    return "cuts K in at most " + std::to_string(device::kMaxSplits) + " parts, got splits=" + std::to_string(p.splits);
  }
  if (p.splits > limit) {
    return "splits is " + std::to_string(p.splits) + ", but K=" + std::to_string(p.k) + " can be cut into at most " +
           std::to_string(limit) + " (one per " + std::to_string(cut_unit(kElementBytes)) + " elements)";
  }
  return {};
}

constexpr int64_t round_up_256(int64_t bytes) { return ceil_div(bytes, 256) * 256; }

// Bytes of a packed copy; 0 where none is needed. `k_major`: how the kernel reads it.
int64_t packed_bytes_of(const Matrix& x, bool k_major, int64_t extent_mn, const Problem& p) {
  if (tma_reads(x)) return 0;
  const int64_t rows = k_major ? extent_mn : p.k;
  const int64_t length = k_major ? p.k : extent_mn;
  return round_up_256((x.batch_stride == 0 ? 1 : p.batch) * rows * pack_pitch(length) * kElementBytes);
}

}  // namespace

bool tma_reads(const Matrix& x) {
  const int64_t limit = kMaxStrideBytes / size_of(x.dtype);
  return x.major != Major::none && vector_bytes(x) >= kTmaBytes && x.leading_dimension() > 0 &&
         x.leading_dimension() < limit && x.batch_stride < limit;
}

PackedBytes packed_bytes(const KernelSpec& s, const Problem& p) {
  return {packed_bytes_of(p.a, s.major_a == Major::k, p.m, p),
          packed_bytes_of(p.b, s.major_b == Major::k, p.b_columns(), p)};
}

std::string supports(const KernelSpec& s, const Problem& p, const Device& device) {
  // An operand with no unit stride is packed, whatever the major.
  Problem as_majors = p;
  if (p.a.major == Major::none) as_majors.a.major = s.major_a;
  if (p.b.major == Major::none) as_majors.b.major = s.major_b;
  if (std::string r = supports_common(s, as_majors, device); !r.empty()) return r;
  return check_extents(s, p, device.sm_count);
}

std::string supports_custom(const KernelSpec& s, const Problem& p, const Device& device) {
  if (p.activation != Activation::none) return "applies the function that it was built with: activation must be none";
  return supports(s, p, device);
}

// Packed operands, then fp32 partials: [split][batch][M][N], which are not needed where the device runs all clusters
// of splits at once, or stream-K's partial tiles with as many workers as the device has room for; it may run fewer. Or
// the sums of cuts that a CTA adds up itself.
int64_t workspace_size(const KernelSpec& s, const Problem& p, const Plan& plan, const Device& device) {
  const PackedBytes packed = packed_bytes(s, p);
  int64_t partials = 0;
  if (plan.schedule == Schedule::stream_k) {
    const int64_t ctas = s.cluster.m * s.cluster.n;
    const auto [m, n] = s.swap_ab ? std::pair{p.n, p.m} : std::pair{p.m, p.n};
    const int64_t tiles = device::cta_count(m, n, p.batch, 1, s.tile.m * s.cluster.m, s.tile.n * s.cluster.n);
    const int64_t workers = std::max<int64_t>(device.sm_count / ctas, 1);
    partials = (workers + std::min(tiles, workers)) * ctas * s.tile.m * s.tile.n;
  } else if (plan.splits > 1 && plan.schedule == Schedule::data_parallel) {
    // Of two consumers, each with a tile at the most, in every CTA that runs; fewer of them where it is in registers.
    partials = s.swap_ab ? 0 : int64_t{device.sm_count} * kConsumerWarpgroups * s.tile.m * s.tile.n;
  } else if (plan.splits > 1) {
    partials = int64_t{plan.splits} * p.batch * p.m * p.n;
  }
  return packed.a + packed.b + partials * size_of(DType::f32);
}

}  // namespace gemmx::sm90
