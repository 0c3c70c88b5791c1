// Derivatives of the activations, in fp32: g * act'(z), as the backward ops apply them.
//
// Where act' is 0 or 1 by a comparison g is kept or dropped and not multiplied, so that an infinite g gives no NaN
// beside it; at the kinks the values are torch's. act' is built from the functions of activation.cuh, none of which
// cancels near 0.
#pragma once

#include "device/epilogue/activation.cuh"

namespace gemmx::device {

// From y = act(z), of the activations whose derivative y alone tells. relu, and leaky_relu of a slope that is not
// negative, keep the sign of z, so that z serves as well as y.
template <Activation kActivation>
__device__ __forceinline__ float gradient_of_result(float g, float y, float arg0) {
  static_assert(kActivation == Activation::relu || kActivation == Activation::leaky_relu ||
                    kActivation == Activation::sigmoid || kActivation == Activation::tanh,
                "the derivative of the other activations is not a function of their result");
  switch (kActivation) {
    case Activation::relu: return y <= 0.0f ? 0.0f : g;  // relu'(0) = 0; a NaN lets g pass, as torch does
    case Activation::leaky_relu: return y > 0.0f ? g : g * arg0;
    case Activation::sigmoid: return g * (y * (1.0f - y));
    default: return g * (1.0f - y * y);  // tanh' = 1 - tanh^2
  }
}

// From z.
template <Activation kActivation>
__device__ __forceinline__ float gradient_of_input(float g, float z, float arg0, float arg1) {
  if constexpr (kActivation == Activation::relu || kActivation == Activation::leaky_relu) {
    return gradient_of_result<kActivation>(g, z, arg0);
  } else if constexpr (kActivation == Activation::sigmoid || kActivation == Activation::tanh) {
    return gradient_of_result<kActivation>(g, activate(kActivation, z, arg0, arg1), arg0);
  } else if constexpr (kActivation == Activation::gelu) {
    // (z Phi(z))' = Phi(z) + z phi(z), phi(z) = e^(-z^2/2) / sqrt(2 pi)
    const NormalTail tail(z);
    const float cdf = z < 0.0f ? tail.mass : 1.0f - tail.mass;
    return g * (cdf + z * (0.39894228040143268f * tail.density));
  } else if constexpr (kActivation == Activation::gelu_tanh) {
    // (z s(v))' = s + z s (1 - s) v', v = 2 sqrt(2/pi) (z + 0.044715 z^3), s the sigmoid
    const float square = z * z;
    const float s = sigmoid(1.5957691216057308f * (z + 0.044715f * square * z));
    const float slope = 1.5957691216057308f * (1.0f + 0.134145f * square);
    return g * (s + z * (s * (1.0f - s)) * slope);
  } else if constexpr (kActivation == Activation::silu) {
    // (z s(z))' = s + z s (1 - s)
    const float s = sigmoid(z);
    return g * (s * (1.0f + z * (1.0f - s)));
  } else if constexpr (kActivation == Activation::hardswish) {
    // z (z + 3) / 6 between its ends, where torch takes the flat and the straight piece
    return z <= -3.0f ? 0.0f : z >= 3.0f ? g : g * (z * (1.0f / 3.0f) + 0.5f);
  } else if constexpr (kActivation == Activation::clamp) {
    return z >= arg0 && z <= arg1 ? g : 0.0f;  // 1 at both ends, as torch up to 2.11 has it; a NaN gives 0
  } else {
    static_assert(kActivation == Activation::none, "an activation without a derivative");
    return g;
  }
}

// From what a forward call saved: y of sigmoid and tanh, z or y of relu and leaky_relu, z of the others.
template <Activation kActivation>
__device__ __forceinline__ float gradient_of_saved(float g, float saved, float arg0, float arg1) {
  if constexpr (kActivation == Activation::sigmoid || kActivation == Activation::tanh) {
    return gradient_of_result<kActivation>(g, saved, arg0);
  } else {
    return gradient_of_input<kActivation>(g, saved, arg0, arg1);
  }
}

template <Activation kActivation>
struct ActivationTag {
  static constexpr Activation value = kActivation;
};

// Calls f(ActivationTag<activation>()): one branch, uniform over the grid, for all values that f computes.
template <class F>
__device__ __forceinline__ void with_activation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::none: f(ActivationTag<Activation::none>()); break;
    case Activation::relu: f(ActivationTag<Activation::relu>()); break;
    case Activation::gelu: f(ActivationTag<Activation::gelu>()); break;
    case Activation::gelu_tanh: f(ActivationTag<Activation::gelu_tanh>()); break;
    case Activation::silu: f(ActivationTag<Activation::silu>()); break;
    case Activation::sigmoid: f(ActivationTag<Activation::sigmoid>()); break;
    case Activation::tanh: f(ActivationTag<Activation::tanh>()); break;
    case Activation::hardswish: f(ActivationTag<Activation::hardswish>()); break;
    case Activation::leaky_relu: f(ActivationTag<Activation::leaky_relu>()); break;
    case Activation::clamp: f(ActivationTag<Activation::clamp>()); break;
  }
}

}  // namespace gemmx::device
