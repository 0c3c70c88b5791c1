// Activations on fp32 values, chosen at run time: the branch is uniform over the grid and costs less than
// one kernel per activation costs in build time and library size.
//
// Every form keeps the bound of docs/design.md: |error| <= 2^-21 * (|z| + |act(z)|) + one rounding of D.
// ex2.approx has a relative error of 2^-22 and the rounding of its argument adds |z| * 2^-24 to that, so a
// sigmoid built on it holds; tanh.approx (2^-11) does not, and 1 - 2/(e^2z + 1) cancels near 0, so tanh is
// tanhf. A NaN stays NaN in all of them: min/max forms would drop it, so relu and clamp compare.
#pragma once

#include "core/types.h"

namespace gemmx::device {

__device__ __forceinline__ float sigmoid(float z) {
  // 1 / (1 + e^-z). __expf overflows to inf for z < -88.7, and 1 / inf = 0 is right.
  return __fdividef(1.0f, 1.0f + __expf(-z));
}

__device__ __forceinline__ float activate(Activation activation, float z, float arg0, float arg1) {
  switch (activation) {
    case Activation::none: return z;
    case Activation::relu: return z < 0.0f ? 0.0f : z;
    case Activation::gelu: return 0.5f * z * (1.0f + erff(z * 0.70710678118654752f));
    case Activation::gelu_tanh: {
      // 0.5 z (1 + tanh(u)) = z * sigmoid(2u), u = sqrt(2/pi) (z + 0.044715 z^3)
      const float u2 = 1.5957691216057308f * (z + 0.044715f * z * z * z);
      return z * sigmoid(u2);
    }
    case Activation::silu: return z * sigmoid(z);
    case Activation::sigmoid: return sigmoid(z);
    case Activation::tanh: return tanhf(z);
    case Activation::hardswish: {
      const float gate = z + 3.0f;
      return z * (gate < 0.0f ? 0.0f : gate > 6.0f ? 6.0f : gate) * (1.0f / 6.0f);
    }
    case Activation::leaky_relu: return z < 0.0f ? z * arg0 : z;
    case Activation::clamp: return z < arg0 ? arg0 : z > arg1 ? arg1 : z;
  }
  return z;
}

}  // namespace gemmx::device
