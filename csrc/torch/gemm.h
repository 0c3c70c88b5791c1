// The CUDA implementations of the ops in library.cpp, in the order of their schemas.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "torch/tensor.h"

namespace gemmx::torch_ops {

using OptionalTensor = std::optional<Tensor>;
using OptionalString = std::optional<std::string>;
using OptionalDoubles = std::optional<std::vector<double>>;
using OptionalDType = std::optional<torch::headeronly::ScalarType>;

Tensor gemm(const Tensor& a, const Tensor& b, const OptionalTensor& c, const OptionalTensor& bias,
            const OptionalTensor& scale_a, const OptionalTensor& scale_b, const OptionalTensor& scale_d, double alpha,
            double beta, const OptionalString& activation, const OptionalDoubles& activation_args,
            const OptionalDType& out_dtype, const OptionalString& precision, const OptionalString& numerics,
            const OptionalString& schedule, int64_t splits, const OptionalString& kernel);

void gemm_out(const Tensor& a, const Tensor& b, const OptionalTensor& c, const OptionalTensor& bias,
              const OptionalTensor& scale_a, const OptionalTensor& scale_b, const OptionalTensor& scale_d, double alpha,
              double beta, const OptionalString& activation, const OptionalDoubles& activation_args,
              const OptionalString& precision, const OptionalString& numerics, const OptionalString& schedule,
              int64_t splits, const OptionalString& kernel, const Tensor& out);

}  // namespace gemmx::torch_ops
