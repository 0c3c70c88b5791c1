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

#include "device/epilogue/activation.cuh"
#include "device/epilogue/params.cuh"

namespace gemmx::device {

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
    case DType::f16: *reinterpret_cast<__half2*>(static_cast<__half*>(e.d) + index) = __floats2half2_rn(v0, v1); break;
    default: *reinterpret_cast<float2*>(static_cast<float*>(e.d) + index) = make_float2(v0, v1); break;
  }
}

}  // namespace gemmx::device
