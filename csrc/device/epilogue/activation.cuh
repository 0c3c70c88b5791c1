// Activations on fp32 values, chosen at run time: the branch is uniform over the grid and costs less than
// one kernel per activation costs in build time and library size.
//
// Every form keeps the bound of docs/design.md: |error| <= 2^-21 * (|z| + |act(z)|) + one rounding of D.
// ex2.approx has a relative error of 2^-22 and the rounding of its argument adds |z| * 2^-24 to that, so a
// sigmoid built on it holds; tanh.approx (2^-11) does not, and 1 - 2/(e^2z + 1) cancels near 0, so tanh is
// tanhf. A NaN stays NaN in all of them: min/max forms would drop it, so relu and clamp compare.
//
// No predicates and few instructions: a warp of an epilogue is alone on its scheduler, so that what counts is how many
// values' chains are in flight; libdevice's erff, 25 instructions with two predicates, is computed value by value.
#pragma once

#include "core/types.h"
#include "device/ptx/approximate.cuh"

namespace gemmx::device {

__device__ __forceinline__ float exponential(float x) { return ptx::exp2_approx(1.4426950408889634f * x); }

// 1 / (1 + e^-z). e^-z overflows to inf for z < -88.7, and 1 / inf = 0 is right.
__device__ __forceinline__ float sigmoid(float z) { return ptx::reciprocal_approx(1.0f + exponential(-z)); }

// The standard normal distribution beyond |z|: Phi(-|z|) = e^(-z^2/2) P(t), t = 1 / (1 + 0.33 |z|), with the form of
// Abramowitz and Stegun, 7.1.26, and a P of degree 5 without a constant term that was fitted for it: the least maximum
// of |e^(-z^2/2) (P(t) - exact)| over 0 <= |z| <= 12, which is 6.6e-8 (2^-21 is 4.8e-7). A |z| beyond 16 counts as 16,
// where the tail is 0, so that an infinity does not meet a zero.
struct NormalTail {
  float distance;  // min(|z|, 16), of a NaN 16
  float density;   // e^(-distance^2/2)
  float mass;      // Phi(-distance)

  __device__ explicit __forceinline__ NormalTail(float z) {
    distance = fminf(fabsf(z), 16.0f);
    const float t = ptx::reciprocal_approx(fmaf(0.33f, distance, 1.0f));
    density = ptx::exp2_approx(-0.72134752044448170f * (distance * distance));
    float p = -0.11067702f;
    p = fmaf(p, t, 0.37929615f);
    p = fmaf(p, t, -0.09625486f);
    p = fmaf(p, t, 0.2062388f);
    p = fmaf(p, t, 0.12139695f);
    mass = p * t * density;
  }
};

// z Phi(z) = max(z, 0) - |z| Phi(-|z|): nothing cancels for z < 0.
__device__ __forceinline__ float gelu(float z) {
  const NormalTail tail(z);
  const float positive = fmaf(0.5f, fabsf(z), 0.5f * z);  // of a NaN a NaN
  return fmaf(-tail.distance, tail.mass, positive);
}

__device__ __forceinline__ float activate(Activation activation, float z, float arg0, float arg1) {
  switch (activation) {
    case Activation::none: return z;
    case Activation::relu: return z < 0.0f ? 0.0f : z;
    case Activation::gelu: return gelu(z);
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
