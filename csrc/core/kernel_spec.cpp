#include "core/kernel_spec.h"

#include "core/numerics.h"

namespace gemmx {
namespace {

std::string capability_string(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

std::string check_capability(const KernelSpec& s, const Device& device) {
  if (device.capability >= s.min_capability && device.capability <= s.max_capability) return {};
  const std::string needs = s.max_capability == s.min_capability ? "exactly " + capability_string(s.min_capability)
                                                                 : "at least " + capability_string(s.min_capability);
  return "needs compute capability " + needs + ", the device has " + capability_string(device.capability);
}

std::string check_dtypes(const KernelSpec& s, const Problem& p) {
  if (p.a.dtype != s.dtype_a || p.b.dtype != s.dtype_b) {
    return "takes A " + std::string(name(s.dtype_a)) + " and B " + std::string(name(s.dtype_b)) + ", got " +
           std::string(name(p.a.dtype)) + " and " + std::string(name(p.b.dtype));
  }
  if (s.dtype_d != DType::none && p.d.dtype != s.dtype_d) {
    return "writes D as " + std::string(name(s.dtype_d)) + ", asked for " + std::string(name(p.d.dtype));
  }
  return {};
}

std::string check_majors(const KernelSpec& s, const Problem& p) {
  if (s.major_a != Major::none && p.a.major != s.major_a) {
    return "takes A " + std::string(name(s.major_a)) + "-major, got " + std::string(name(p.a.major));
  }
  if (s.major_b != Major::none && p.b.major != s.major_b) {
    return "takes B " + std::string(name(s.major_b)) + "-major, got " + std::string(name(p.b.major));
  }
  return {};
}

// Kernels that gate or write Z do it always: a branch in every epilogue would cost the others.
std::string check_form(const KernelSpec& s, const Problem& p) {
  if (s.gated != p.gated) return s.gated ? "computes gemm_gated only" : "does not compute gemm_gated";
  if (s.aux != p.aux)
    return s.aux ? "writes the pre-activation, which is not asked for" : "does not write the pre-activation";
  if (s.gate_gradient != p.gate_gradient) {
    return s.gate_gradient ? "computes the gradient of a gate only" : "does not compute the gradient of a gate";
  }
  return {};
}

std::string check_schedule(const KernelSpec& s, const Problem& p) {
  if (p.schedule == Schedule::data_parallel && !s.data_parallel) return "has no data_parallel schedule";
  if (p.schedule == Schedule::stream_k && !s.stream_k) return "has no stream_k schedule";
  const bool in_one_cta = p.schedule == Schedule::data_parallel && p.numerics == Numerics::batch_invariant;
  const bool cuts = p.schedule == Schedule::split_k || (p.splits > 1 && !(in_one_cta && adds_cuts_itself(s)));
  if (cuts && !s.split_k) return "has no split_k schedule";
  return {};
}

}  // namespace

std::string_view name(NumericsClass x) {
  switch (x) {
    case NumericsClass::library: return "library";
    case NumericsClass::simt: return "simt";
    case NumericsClass::mma_sync: return "mma_sync";
    case NumericsClass::wgmma: return "wgmma";
    case NumericsClass::tcgen05: return "tcgen05";
  }
  return "?";
}

std::string supports_common(const KernelSpec& s, const Problem& p, const Device& device) {
  // Never launched; and the arithmetic of the families may divide by a size.
  if (p.m <= 0 || p.n <= 0 || p.batch <= 0) return "computes no D that is empty";
  if (std::string r = check_capability(s, device); !r.empty()) return r;
  if (std::string r = check_form(s, p); !r.empty()) return r;
  if (std::string r = check_dtypes(s, p); !r.empty()) return r;
  // With K = 0 nothing is read of A and B, so that their majors decide nothing.
  if (p.k > 0) {
    if (std::string r = check_majors(s, p); !r.empty()) return r;
  }
  if (s.smem_bytes > device.smem_per_block) {
    return "needs " + std::to_string(s.smem_bytes) + " bytes of shared memory, a block of the device has " +
           std::to_string(device.smem_per_block);
  }
  if (std::string r = check_schedule(s, p); !r.empty()) return r;
  return check_batch_invariant(s, p, device);
}

}  // namespace gemmx
