// Specs of the cublaslt family (instances.inc). Host-only, compiled in every build, and without a call into
// the library: the rules are those that cuBLASLt documents, narrowed to what is known to work, because a
// problem that passes here and finds no algorithm later would fail the user's call.
#pragma once

#include "core/kernel_spec.h"

namespace gemmx::cublaslt {

// The most that an algorithm may take: what torch gives cuBLASLt on Hopper. Its exact need is known when the library
// was asked on the device, in prepare().
inline constexpr int64_t kWorkspaceBytes = 32 << 20;

std::string supports_ieee(const KernelSpec& spec, const Problem& problem, const Device& device);
std::string supports_tf32(const KernelSpec& spec, const Problem& problem, const Device& device);
int64_t workspace_size(const KernelSpec& spec, const Problem& problem, const Plan& plan, const Device& device);

constexpr KernelSpec make_spec(const char* name, DType element, DType dtype_d, Precision precision) {
  KernelSpec s;
  s.name = name;
  s.family = "cublaslt";
  s.min_capability = 80;
  s.dtype_a = element;
  s.dtype_b = element;
  s.dtype_d = dtype_d;
  s.numerics = NumericsClass::library;
  s.priority = 30;
  s.supports = precision == Precision::tf32 ? supports_tf32 : supports_ieee;
  s.workspace_size = workspace_size;
  return s;
}

}  // namespace gemmx::cublaslt

#define GEMMX_CUBLASLT_SPEC(NAME, ELEMENT, DTYPE_D, PRECISION) \
  ::gemmx::cublaslt::make_spec(#NAME, ::gemmx::DType::ELEMENT, ::gemmx::DType::DTYPE_D, ::gemmx::Precision::PRECISION)
