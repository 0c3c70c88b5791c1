// The epilogue of one warp of a wgmma kernel that gates, or that keeps the pre-activation Z:
//
//   aux         Z = alpha * acc + bias, stored;  D = act(Z)
//   gated       D = act(Z gate) * Z up, of the unrounded Z
//   gated, aux  both
//   custom      D = f(Z), f a function that the kernel is built with (docs/custom_epilogue.md)
//
// A warp has gate and up of an element of D in one lane's accumulators: half of the tile's columns are gate, half are
// the same columns of up (with swapped operands: rows). So nothing is exchanged: Z replaces the accumulators, D
// replaces Z, and both leave by the stores of other kernels with an epilogue that has nothing left to do. Rounding
// steps are those of linear_combination.cuh; the gate adds one product, rounded in fp32.
//
// C is not taken: its loads would come twice, for Z and for D.
#pragma once

#include <type_traits>

#include "device/epilogue/box_store.cuh"
#include "device/epilogue/transposed_store.cuh"

namespace gemmx::device {

// Stores values that are finished, to a matrix of e's layout.
__device__ __forceinline__ EpilogueParams finished(const EpilogueParams& e) {
  EpilogueParams f = e;
  f.c = nullptr;
  f.bias = nullptr;
  f.activation = Activation::none;
  f.alpha = 1.0f;
  return f;
}

// z = act(z). silu, which most gates take, all values at once: five instructions each. The others 16 values at a time:
// the loop is rolled, so that the code of nine activations exists once, and since registers have no run-time index,
// every step's copies are a branch.
template <int kCount>
__device__ __forceinline__ void activate_in_place(float (&z)[kCount], const EpilogueParams& e) {
  constexpr int kStep = kCount % 16 == 0 ? 16 : kCount % 8 == 0 ? 8 : 4;
  static_assert(kCount % kStep == 0, "steps are whole");
  if (e.activation == Activation::none) return;
  if (e.activation == Activation::silu) {
    activate_each<Activation::silu>(z, e);
    return;
  }
#pragma unroll 1
  for (int step = 0; step < kCount / kStep; ++step) {
    float part[kStep];
#pragma unroll
    for (int i = 0; i < kCount / kStep; ++i) {
      if (step == i) {
#pragma unroll
        for (int j = 0; j < kStep; ++j) part[j] = z[i * kStep + j];
      }
    }
    activate_all(part, e);
#pragma unroll
    for (int i = 0; i < kCount / kStep; ++i) {
      if (step == i) {
#pragma unroll
        for (int j = 0; j < kStep; ++j) z[i * kStep + j] = part[j];
      }
    }
  }
}

// The activation that the call names, in place of a function that a kernel is built with.
struct ActivationOfCall {};

// z = f(z). A function is a class with `__device__ float operator()(float z) const`.
template <class Function, int kCount>
__device__ __forceinline__ void apply(float (&z)[kCount], const EpilogueParams& e) {
  if constexpr (std::is_same_v<Function, ActivationOfCall>) {
    activate_in_place(z, e);
  } else {
#pragma unroll
    for (float& value : z) value = Function{}(value);
  }
}

// Gate times up, the gate activated: into gate.
template <class Function, int kCount>
__device__ __forceinline__ void apply_gate(float (&gate)[kCount], const float (&up)[kCount], const EpilogueParams& e) {
  apply<Function>(gate, e);
#pragma unroll
  for (int i = 0; i < kCount; ++i) gate[i] = __fmul_rn(gate[i], up[i]);
}

// kN columns of D as the kernel computes it, from columns [0, kN) of the accumulators or, gated, from [0, 2 kN).
template <int kN, bool kGated, bool kAux, class Function>
struct FormStore {
  static constexpr int kValues = kN / 2;  // of a lane in kN columns

  // Where a matrix goes: its layout, and its TMA descriptor or nullptr where it is written by rows.
  struct Target {
    const EpilogueParams& e;
    const void* tensor_map;
  };

  // (m, n): the warp's first row and column in D; e: the call's epilogue; z: only with kAux. smem_buffers as
  // for box_store.cuh. acc as wgmma leaves it.
  __device__ static __forceinline__ void run(const EpilogueParams& e, const Target& d, const Target& z, int batch,
                                             int m, int n, const float (&acc)[(kGated ? 2 : 1) * kValues],
                                             uint32_t smem_buffers, int lane, uint32_t& boxes) {
    float gate[kValues];
    pre_activation(e, 0, n, acc, lane, gate);
    if constexpr (kGated) {
      float up[kValues];
      pre_activation(e, 1, n, acc, lane, up);
      if constexpr (kAux) {
        store(z, 0, m, n, gate, smem_buffers, lane, boxes);
        store(z, 1, m, n, up, smem_buffers, lane, boxes);
      }
      apply_gate<Function>(gate, up, e);
    } else {
      if constexpr (kAux) store(z, batch, m, n, gate, smem_buffers, lane, boxes);
      apply<Function>(gate, e);
    }
    store(d, batch, m, n, gate, smem_buffers, lane, boxes);
  }

 private:
  // alpha and bias of half `half` of the accumulators (0: gate or all there is, 1: up).
  __device__ static __forceinline__ void pre_activation(const EpilogueParams& e, int half, int n,
                                                        const float (&acc)[(kGated ? 2 : 1) * kValues], int lane,
                                                        float (&z)[kValues]) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) z[i] = __fmul_rn(e.alpha, acc[half * kValues + i]);
    if (e.bias == nullptr) return;
    const int64_t first = half * e.n;
#pragma unroll
    for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t column = n + 8 * j + lane % 4 * 2 + i;
        const float bias = column < e.n ? load_element(e.bias, (first + column) * e.bias_stride, e.bias_dtype) : 0.0f;
        z[4 * j + i] = __fadd_rn(z[4 * j + i], bias);
        z[4 * j + 2 + i] = __fadd_rn(z[4 * j + 2 + i], bias);
      }
    }
  }

  __device__ static __forceinline__ void store(const Target& to, int batch, int m, int n, const float (&x)[kValues],
                                               uint32_t smem_buffers, int lane, uint32_t& boxes) {
    const EpilogueParams e = finished(to.e);
    BoxStore<kN>::run(e, to.tensor_map, batch, m, n, x, smem_buffers, lane, boxes, BoxStore<kN>::path_of(e));
  }
};

// The same with swapped operands, gated: kN rows of D, 16 columns from n on; gate and up are accumulators of their own.
template <DType kType, int kN, bool kAux, class Function>
struct TransposedGatedStore {
  static constexpr int kValues = kN / 2;
  using Store = TransposedStore<kN>;

  // (m, n): the warp's first row and column in D; columns from n_end on are not the tile's.
  __device__ static __forceinline__ void run(const EpilogueParams& e, const EpilogueParams& z_layout, int n_end, int m,
                                             int n, const float (&gate_acc)[kValues], const float (&up_acc)[kValues],
                                             int lane) {
    float gate[kValues], up[kValues];
    pre_activation(e, 0, n, gate_acc, lane, gate);
    pre_activation(e, 1, n, up_acc, lane, up);
    if constexpr (kAux) {
      store(finished(z_layout), 0, n_end, m, n, gate, lane);
      store(finished(z_layout), 1, n_end, m, n, up, lane);
    }
    apply_gate<Function>(gate, up, e);
    store(finished(e), 0, n_end, m, n, gate, lane);
  }

 private:
  __device__ static __forceinline__ void store(const EpilogueParams& e, int batch, int n_end, int m, int n,
                                               const float (&x)[kValues], int lane) {
    if (Store::template is_plain<kType>(e)) {
      Store::template run_plain<kType>(e, batch, m, n, n_end, x, lane);
    } else {
      Store::run(e, batch, m, n, n_end, x, lane);
    }
  }

  __device__ static __forceinline__ void pre_activation(const EpilogueParams& e, int half, int n,
                                                        const float (&acc)[kValues], int lane, float (&z)[kValues]) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) z[i] = __fmul_rn(e.alpha, acc[i]);
    if (e.bias == nullptr) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int64_t column = n + lane / 4 + 8 * i;
      const float bias =
          column < e.n ? load_element(e.bias, (half * e.n + column) * e.bias_stride, e.bias_dtype) : 0.0f;
#pragma unroll
      for (int j = 0; j < kValues / 4; ++j) {
        z[4 * j + 2 * i] = __fadd_rn(z[4 * j + 2 * i], bias);
        z[4 * j + 2 * i + 1] = __fadd_rn(z[4 * j + 2 * i + 1], bias);
      }
    }
  }
};

}  // namespace gemmx::device
