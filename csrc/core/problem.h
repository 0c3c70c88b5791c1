// Problem: everything that selection and compilation of a plan may depend on, and nothing else.
//
//   D = act(Z),  Z = alpha * A @ B + beta * C + bias     A (batch, M, K)  B (batch, K, N)  C, D, Z (batch, M, N)
//   gated:  D = act(Z gate) * Z up,  B (K, 2 N) and Z (M, 2 N) are gate | up, concatenated; no C, one batch
//   gate_gradient:  D = dH * Z up * act'(Z gate) | dH * act(Z gate),  dH = alpha * A @ B  (M, N),  C is Z and is read;
//     C and D (M, 2 N) are gate | up, concatenated; no bias, one batch
//
// Plain data without pointers or values; with the device it is the key of the plan cache.
// Operands: the pointers and values of one call. Never part of a key.
#pragma once

#include <cstring>
#include <string>
#include <type_traits>

#include "core/types.h"

namespace gemmx {

// The layout of one operand. Strides are in elements. They are canonical (checks.h makes them so):
// a dimension of size 1 or 0 has the stride that makes the operand packed and 16-byte aligned, the batch
// stride is 0 when there is one batch or when the operand is shared by all batches. So no kernel has to
// know that "a stride of a size-1 dimension decides nothing".
struct Matrix {
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  int64_t batch_stride = 0;
  DType dtype = DType::none;
  Major major = Major::none;
  uint8_t pointer_align = 16;  // largest power of two, at most 16, that divides the address (bytes)
  uint8_t reserved[5] = {};

  // Distance between neighbouring rows of the major dimension; only where major is not none.
  int64_t leading_dimension() const { return col_stride == 1 ? row_stride : col_stride; }
  bool present() const { return dtype != DType::none; }
};

struct Problem {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;  // 0 also when alpha is 0: then A and B are not read
  int64_t batch = 1;
  Matrix a;
  Matrix b;
  Matrix c;  // dtype none when there is no C or beta is 0: then C is not read. Strides 0 where it broadcasts
  Matrix d;
  int64_t bias_stride = 0;
  int32_t splits = 0;   // requested; 0: the selector decides
  int32_t kernel = -1;  // requested index into the registry; -1: the selector decides
  DType bias_dtype = DType::none;
  uint8_t bias_align = 16;
  ScalarClass alpha = ScalarClass::one;
  ScalarClass beta = ScalarClass::zero;
  Activation activation = Activation::none;
  Precision precision = Precision::ieee;
  Numerics numerics = Numerics::deterministic;
  Schedule schedule = Schedule::automatic;
  bool accumulate_in_place = false;  // D is exactly C
  bool gated = false;                // n counts D's columns; B and bias have 2 n
  bool aux = false;                  // Z is written too: packed rows, D's dtype
  bool gate_gradient = false;        // n counts the columns of A @ B; C, which is Z, and D have 2 n
  uint8_t reserved[4] = {};

  bool has_c() const { return c.present(); }
  bool has_bias() const { return bias_dtype != DType::none; }
  int64_t b_columns() const { return gated ? 2 * n : n; }
  int64_t d_columns() const { return gate_gradient ? 2 * n : n; }
  friend bool operator==(const Problem& x, const Problem& y) { return std::memcmp(&x, &y, sizeof(Problem)) == 0; }
};
static_assert(std::has_unique_object_representations_v<Problem>,
              "Problem is hashed and compared by its bytes, so it must have no padding: name every gap `reserved`");

// The widest access, in bytes (16, 8, 4, 2, 1), that is aligned at the start of every row of the major
// dimension of every batch. sizeof(element) when no dimension has stride 1.
GEMMX_API int vector_bytes(const Matrix& x);

GEMMX_API uint64_t hash(const Problem& p);
// One line, the same for the same Problem: "M=1 N=4096 K=4096 bf16 kk -> bf16, bias, silu".
GEMMX_API std::string to_string(const Problem& p);

// Pointers and values of one call.
struct Operands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;
  const void* bias = nullptr;
  void* d = nullptr;
  void* z = nullptr;  // where the Problem has aux
  float alpha = 1.0f;
  float beta = 0.0f;
  float activation_args[2] = {0.0f, 0.0f};
};

}  // namespace gemmx
