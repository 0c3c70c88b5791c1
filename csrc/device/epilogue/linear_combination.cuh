// The general epilogue: D = act(alpha * acc + beta * C + bias), one rounding to D's type.
//
// The types of C, D and bias are run-time values: a branch that is uniform over the grid, so that one
// mainloop serves every combination. A mainloop hands its accumulators over as (m, n, value) in fp32 and
// knows nothing of the epilogue.
//
// silu of -inf: z * sigmoid(z) is -inf * 0 = NaN, where the limit is -0. torch gives NaN too.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/problem.h"
#include "device/epilogue/activation.cuh"

namespace gemmx::device {

struct EpilogueParams {
  void* d = nullptr;
  const void* c = nullptr;     // nullptr: no C
  const void* bias = nullptr;  // nullptr: no bias; (N,)
  int64_t m = 0, n = 0;
  int64_t d_row_stride = 0, d_col_stride = 0, d_batch_stride = 0;  // elements
  int64_t c_row_stride = 0, c_col_stride = 0, c_batch_stride = 0;
  int64_t bias_stride = 0;
  DType d_dtype = DType::none, c_dtype = DType::none, bias_dtype = DType::none;
  Activation activation = Activation::none;
  float alpha = 1.0f, beta = 0.0f;
  float arg0 = 0.0f, arg1 = 0.0f;
  // Two neighbours of a row that start at an even n can be stored as one 2-element vector.
  bool d_pairs = false;
};

inline EpilogueParams make_epilogue_params(const Problem& p, const Operands& o) {
  EpilogueParams e;
  e.d = o.d;
  e.c = p.has_c() ? o.c : nullptr;
  e.bias = p.has_bias() ? o.bias : nullptr;
  e.m = p.m;
  e.n = p.n;
  e.d_row_stride = p.d.row_stride;
  e.d_col_stride = p.d.col_stride;
  e.d_batch_stride = p.d.batch_stride;
  e.c_row_stride = p.c.row_stride;
  e.c_col_stride = p.c.col_stride;
  e.c_batch_stride = p.c.batch_stride;
  e.bias_stride = p.bias_stride;
  e.d_dtype = p.d.dtype;
  e.c_dtype = p.c.dtype;
  e.bias_dtype = p.bias_dtype;
  e.activation = p.activation;
  e.alpha = o.alpha;
  e.beta = o.beta;
  e.arg0 = o.activation_args[0];
  e.arg1 = o.activation_args[1];
  e.d_pairs = p.d.major == Major::n && vector_bytes(p.d) >= 2 * size_of(p.d.dtype);
  return e;
}

__device__ __forceinline__ float load_as_float(const void* base, int64_t index, DType dtype) {
  switch (dtype) {
    case DType::bf16: return __bfloat162float(static_cast<const __nv_bfloat16*>(base)[index]);
    case DType::f16: return __half2float(static_cast<const __half*>(base)[index]);
    default: return static_cast<const float*>(base)[index];
  }
}

__device__ __forceinline__ void store_from_float(void* base, int64_t index, DType dtype, float value) {
  switch (dtype) {
    case DType::bf16: static_cast<__nv_bfloat16*>(base)[index] = __float2bfloat16_rn(value); break;
    case DType::f16: static_cast<__half*>(base)[index] = __float2half_rn(value); break;
    default: static_cast<float*>(base)[index] = value; break;
  }
}

// The value of D at (m, n) before rounding. The caller has checked m < M and n < N.
__device__ __forceinline__ float epilogue_value(const EpilogueParams& e, int64_t batch, int64_t m, int64_t n,
                                                float acc) {
  float z = e.alpha * acc;
  if (e.c != nullptr) {
    const int64_t index = batch * e.c_batch_stride + m * e.c_row_stride + n * e.c_col_stride;
    z += e.beta * load_as_float(e.c, index, e.c_dtype);
  }
  if (e.bias != nullptr) z += load_as_float(e.bias, n * e.bias_stride, e.bias_dtype);
  return activate(e.activation, z, e.arg0, e.arg1);
}

__device__ __forceinline__ void epilogue_store(const EpilogueParams& e, int64_t batch, int64_t m, int64_t n,
                                               float acc) {
  if (m >= e.m || n >= e.n) return;
  const int64_t index = batch * e.d_batch_stride + m * e.d_row_stride + n * e.d_col_stride;
  store_from_float(e.d, index, e.d_dtype, epilogue_value(e, batch, m, n, acc));
}

// Columns n and n + 1 of one row, n even: one vector store where D's layout allows it.
__device__ __forceinline__ void epilogue_store_pair(const EpilogueParams& e, int64_t batch, int64_t m, int64_t n,
                                                    float acc0, float acc1) {
  if (!e.d_pairs || n + 1 >= e.n) {
    epilogue_store(e, batch, m, n, acc0);
    epilogue_store(e, batch, m, n + 1, acc1);
    return;
  }
  if (m >= e.m) return;
  const float v0 = epilogue_value(e, batch, m, n, acc0);
  const float v1 = epilogue_value(e, batch, m, n + 1, acc1);
  const int64_t index = batch * e.d_batch_stride + m * e.d_row_stride + n;
  switch (e.d_dtype) {
    case DType::bf16:
      *reinterpret_cast<__nv_bfloat162*>(static_cast<__nv_bfloat16*>(e.d) + index) = __floats2bfloat162_rn(v0, v1);
      break;
    case DType::f16:
      *reinterpret_cast<__half2*>(static_cast<__half*>(e.d) + index) = __floats2half2_rn(v0, v1);
      break;
    default: *reinterpret_cast<float2*>(static_cast<float*>(e.d) + index) = make_float2(v0, v1); break;
  }
}

}  // namespace gemmx::device
