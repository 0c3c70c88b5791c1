// The one place that decides whether a call is right. The CUDA op, the CPU reference and the fakes (through
// `_C`) all come here, so a wrong call gets the same sentence everywhere, before any launch.
//
// Plain descriptors in, Problem out. std::invalid_argument (ValueError in Python) for a wrong argument,
// std::runtime_error (RuntimeError) for what is right but not built or not supported here.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "core/problem.h"

namespace gemmx {

enum class DeviceType : uint8_t { cpu, cuda, meta, other };

inline constexpr int kMaxDims = 8;

// A tensor as the checks see it.
struct TensorDesc {
  DType dtype = DType::none;  // none: the tensor was not given
  DeviceType device_type = DeviceType::cpu;
  int device_index = 0;
  int ndim = 0;  // at most kMaxDims
  std::array<int64_t, kMaxDims> sizes{};
  std::array<int64_t, kMaxDims> strides{};  // in elements
  uintptr_t data = 0;                       // address of the first element; 0: unknown (a fake), so that
                                            // alignment counts as 16 and aliasing is not checked
  bool present() const { return dtype != DType::none; }
};

// The arguments of gemm, gemm_out, gemm_gated and their forms with aux, in the order of the schemas, and of
// _gated_dgrad, whose z is c. An empty string is None.
struct GemmArgs {
  TensorDesc a, b, c, bias, scale_a, scale_b, scale_d;
  TensorDesc out;  // gemm_out only
  bool has_out = false;
  bool gated = false;          // gemm_gated
  bool aux = false;            // gemm_aux, gemm_gated_aux
  bool gate_gradient = false;  // _gated_dgrad
  double alpha = 1.0;
  double beta = 1.0;
  std::string_view activation;
  std::span<const double> activation_args;
  DType out_dtype = DType::none;
  std::string_view precision;
  std::string_view numerics;
  std::string_view schedule;
  int64_t splits = 0;
  std::string_view kernel;
};

// The checked call. `problem` is complete except that without `out` D is taken as contiguous and 16-byte
// aligned, as torch's allocator gives it.
struct CheckedGemm {
  Problem problem;
  int d_ndim = 2;
  std::array<int64_t, 3> d_sizes{};  // (M, N) or (batch, M, N): the shape of D as the caller sees it
  DType d_dtype = DType::none;
  float alpha = 1.0f;
  float beta = 0.0f;
  float activation_args[2] = {0.0f, 0.0f};
  // The shape of Z is D's with this many columns.
  int64_t z_columns() const { return problem.b_columns(); }
  bool empty() const { return problem.m == 0 || problem.n == 0 || problem.batch == 0; }
};

GEMMX_API CheckedGemm check_gemm(const GemmArgs& args);

// The arguments of activation_backward, or with `gated` of gated_backward, whose saved tensor is Z (M, 2 N).
struct BackwardArgs {
  TensorDesc grad, saved;
  bool gated = false;
  std::string_view activation;
  std::span<const double> activation_args;
};

// A (batch, rows, columns) tensor that a backward op reads; strides in elements.
struct RowsDesc {
  const void* data = nullptr;
  int64_t batch_stride = 0, row_stride = 0, col_stride = 1;
};

// The checked call of a backward op. dZ is packed, (M, N) or (batch, M, N), gated with 2 n columns.
struct CheckedBackward {
  int64_t batch = 1, m = 0, n = 0;  // n counts grad's columns; the batch is folded into m where the strides allow it
  RowsDesc grad, saved;
  DType dtype = DType::none;  // of grad, saved and dZ
  Activation activation = Activation::none;
  float activation_args[2] = {0.0f, 0.0f};
  bool gated = false;
  int ndim = 2;
  std::array<int64_t, 3> dz_sizes{};
  int64_t columns() const { return gated ? 2 * n : n; }
  bool empty() const { return batch == 0 || m == 0 || n == 0; }
};

GEMMX_API CheckedBackward check_activation_backward(const BackwardArgs& args);

// "(3, 4)" — for messages.
GEMMX_API std::string shape_string(const TensorDesc& t);

}  // namespace gemmx
