// What the general epilogue (linear_combination.cuh) needs of a call.
#pragma once

#include "core/problem.h"

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
  int d_vector = 1;       // neighbours of a row of D (4, 2, 1) that one store may write
  bool c_vector = false;  // 4 neighbours of a row of C are one aligned load
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
  const int d_elements = p.d.major == Major::n ? vector_bytes(p.d) / size_of(p.d.dtype) : 1;
  e.d_vector = d_elements >= 4 ? 4 : d_elements >= 2 ? 2 : 1;
  e.c_vector = p.has_c() && p.c.major == Major::n && p.c.col_stride == 1 && vector_bytes(p.c) >= 4 * size_of(p.c.dtype);
  return e;
}

// fp32 partials (planes, M, N) of split-K in the workspace: alpha 1, nothing added.
inline EpilogueParams make_partial_params(const Problem& p, void* workspace) {
  EpilogueParams e;
  e.d = workspace;
  e.m = p.m;
  e.n = p.n;
  e.d_row_stride = p.n;
  e.d_col_stride = 1;
  e.d_batch_stride = p.m * p.n;
  e.d_dtype = DType::f32;
  e.d_vector = p.n % 4 == 0 ? 4 : p.n % 2 == 0 ? 2 : 1;
  return e;
}

}  // namespace gemmx::device
