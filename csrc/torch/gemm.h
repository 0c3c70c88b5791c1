// The CUDA implementations of the ops in library.cpp, in the order of their schemas.
#pragma once

#include <optional>
#include <string>
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

// Handles: the op owns what it is given, torch what is returned.
ReturnedTensor gemm(AtenTensorHandle a, AtenTensorHandle b, OptionalHandle c, OptionalHandle bias,
                    OptionalHandle scale_a, OptionalHandle scale_b, OptionalHandle scale_d, double alpha, double beta,
                    const OptionalString& activation, const OptionalDoubles& activation_args,
                    const OptionalDType& out_dtype, const OptionalString& precision, const OptionalString& numerics,
                    const OptionalString& schedule, int64_t splits, const OptionalString& kernel);

void gemm_out(AtenTensorHandle a, AtenTensorHandle b, OptionalHandle c, OptionalHandle bias, OptionalHandle scale_a,
              OptionalHandle scale_b, OptionalHandle scale_d, double alpha, double beta,
              const OptionalString& activation, const OptionalDoubles& activation_args, const OptionalString& precision,
              const OptionalString& numerics, const OptionalString& schedule, int64_t splits,
              const OptionalString& kernel, AtenTensorHandle out);

}  // namespace gemmx::torch_ops
