// The CUDA implementations of the ops in library.cpp, in the order of their schemas.
#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "torch/tensor.h"

// The op namespace; another name (and NAMESPACE of python/gemmx/_library.py) lets a copy of the library live in the
// same process.
#ifndef GEMMX_NAMESPACE
#define GEMMX_NAMESPACE gemmx
#endif

namespace gemmx::torch_ops {

using OptionalHandle = std::optional<AtenTensorHandle>;
using OptionalString = std::optional<std::string>;
using OptionalDoubles = std::optional<std::vector<double>>;
using OptionalDType = std::optional<torch::headeronly::ScalarType>;

// What an op returns. A type of this namespace, because TORCH_BOX's unqualified from() is ambiguous for torch's own.
struct ReturnedTensor {
  AtenTensorHandle handle;
};

using ReturnedPair = std::tuple<ReturnedTensor, ReturnedTensor>;

// Handles: the op owns what it is given, torch what is returned.
#define GEMMX_GEMM_PARAMETERS                                                                                      \
  AtenTensorHandle a, AtenTensorHandle b, OptionalHandle c, OptionalHandle bias, OptionalHandle scale_a,           \
      OptionalHandle scale_b, OptionalHandle scale_d, double alpha, double beta, const OptionalString &activation, \
      const OptionalDoubles &activation_args, const OptionalDType &out_dtype, const OptionalString &precision,     \
      const OptionalString &numerics, const OptionalString &schedule, int64_t splits, const OptionalString &kernel
#define GEMMX_GATED_PARAMETERS                                                                                 \
  AtenTensorHandle a, AtenTensorHandle b, OptionalHandle bias, OptionalHandle scale_a, OptionalHandle scale_b, \
      double alpha, const OptionalString &activation, const OptionalDoubles &activation_args,                  \
      const OptionalDType &out_dtype, const OptionalString &precision, const OptionalString &numerics,         \
      const OptionalString &schedule, int64_t splits, const OptionalString &kernel

ReturnedTensor gemm(GEMMX_GEMM_PARAMETERS);
ReturnedPair gemm_aux(GEMMX_GEMM_PARAMETERS);  // D, Z
ReturnedTensor gemm_gated(GEMMX_GATED_PARAMETERS);
ReturnedPair gemm_gated_aux(GEMMX_GATED_PARAMETERS);  // D, Z

void gemm_out(AtenTensorHandle a, AtenTensorHandle b, OptionalHandle c, OptionalHandle bias, OptionalHandle scale_a,
              OptionalHandle scale_b, OptionalHandle scale_d, double alpha, double beta,
              const OptionalString& activation, const OptionalDoubles& activation_args, const OptionalString& precision,
              const OptionalString& numerics, const OptionalString& schedule, int64_t splits,
              const OptionalString& kernel, AtenTensorHandle out);

// dZ, and the column sums of dZ or an empty tensor.
ReturnedPair activation_backward(AtenTensorHandle grad, AtenTensorHandle saved, const std::string& activation,
                                 const OptionalDoubles& activation_args, bool bias_grad);
ReturnedPair gated_backward(AtenTensorHandle grad, AtenTensorHandle z, const std::string& activation,
                            const OptionalDoubles& activation_args, bool bias_grad);

// dZ (M, 2 N) of the gate behind which `grad` (M, K) went through b (K, N).
ReturnedTensor gated_dgrad(AtenTensorHandle grad, AtenTensorHandle b, AtenTensorHandle z, double alpha,
                           const OptionalString& activation, const OptionalDoubles& activation_args,
                           const OptionalString& precision, const OptionalString& kernel);

}  // namespace gemmx::torch_ops
