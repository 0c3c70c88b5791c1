// What an epilogue needs of a call. Apart from the code that runs it, because the headers of fp16 and bf16
// cost a second per file and target, which kernels that convert by ptx/convert.cuh do not need.
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

}  // namespace gemmx::device
