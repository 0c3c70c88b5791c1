// The epilogue of every CUTLASS 3.x kernel here: D = act(alpha * acc + beta * C + bias), computed in fp32 and
// rounded once to D. CUTLASS evaluates it as beta * C + (alpha * acc + bias), each a fused multiply-add.
//
// C is read only where beta is not 0, bias only where its pointer is not null. The activation is a run-time value.
#pragma once

#include "cutlass/array.h"
#include "cutlass/epilogue/fusion/operations.hpp"

#include "core/problem.h"
#include "device/epilogue/activation.cuh"
#include "kernels/cutlass/specs.h"

namespace gemmx::cutlass {

struct ActivationArguments {
  Activation activation = Activation::none;
  float arg0 = 0.0f, arg1 = 0.0f;
};

// What CUTLASS calls an activation function: T is an Array<float, n> of one thread's neighbouring values.
// The branch is taken once per fragment, not once per element.
template <class T>
struct RuntimeActivation {
  using Arguments = ActivationArguments;

  __device__ __forceinline__ T operator()(const T& z, const Arguments& args) const {
    switch (args.activation) {
      case Activation::none: return z;
      case Activation::relu: return apply<Activation::relu>(z, args);
      case Activation::gelu: return apply<Activation::gelu>(z, args);
      case Activation::gelu_tanh: return apply<Activation::gelu_tanh>(z, args);
      case Activation::silu: return apply<Activation::silu>(z, args);
      case Activation::sigmoid: return apply<Activation::sigmoid>(z, args);
      case Activation::tanh: return apply<Activation::tanh>(z, args);
      case Activation::hardswish: return apply<Activation::hardswish>(z, args);
      case Activation::leaky_relu: return apply<Activation::leaky_relu>(z, args);
      case Activation::clamp: return apply<Activation::clamp>(z, args);
    }
    return z;
  }

 private:
  template <Activation kActivation>
  __device__ __forceinline__ static T apply(const T& z, const Arguments& args) {
    T out;
#pragma unroll
    for (int i = 0; i < T::kElements; ++i) out[i] = device::activate(kActivation, z[i], args.arg0, args.arg1);
    return out;
  }
};

template <>
struct RuntimeActivation<float> {  // CUTLASS takes the type of the arguments from the scalar form
  using Arguments = ActivationArguments;
};

// Bias is one value per column of D; with swapped operands the kernel's rows are D's columns.
// Alignment 1: bias is read element by element, so that any slice of a vector is legal.
template <class Element, OperandOrder kOperands>
struct LinearCombinationActivation {
  using Operation = ::cutlass::epilogue::fusion::LinCombPerColBiasEltAct<RuntimeActivation, Element, float, Element,
                                                                         Element, float, 1>;
};
template <class Element>
struct LinearCombinationActivation<Element, OperandOrder::swap_ab> {
  using Operation = ::cutlass::epilogue::fusion::LinCombPerRowBiasEltAct<RuntimeActivation, Element, float, Element,
                                                                         Element, float, 1>;
};

// Arguments of the fusion operation for one call.
template <class FusionArguments>
FusionArguments fusion_arguments(const Problem& p, const Operands& o) {
  FusionArguments args{};
  args.alpha = o.alpha;
  args.beta = p.has_c() ? o.beta : 0.0f;
  args.bias_ptr = p.has_bias() ? static_cast<decltype(args.bias_ptr)>(o.bias) : nullptr;
  args.activation = {p.activation, o.activation_args[0], o.activation_args[1]};
  return args;
}

}  // namespace gemmx::cutlass
