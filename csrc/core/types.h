// The words of a GEMM problem: element types, majors, activations, schedules.
//
// Everything here is plain data with a printable name. Enumerators are stored in one byte, because they
// are part of Problem, the key of the plan cache (problem.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#if defined(_WIN32)
#error "gemmx builds on Linux only"
#endif
// Symbols that other shared objects (the pybind11 module) link against.
#define GEMMX_API __attribute__((visibility("default")))

namespace gemmx {

// Element types by torch's names. Types that no kernel takes are listed so that an error can name them.
enum class DType : uint8_t {
  none,  // the operand is absent
  f32,
  f16,
  bf16,
  f64,
  e4m3,
  e5m2,
  u8,
  i8,
  i16,
  i32,
  i64,
  boolean,
  complex64,
  other,
};

// Which dimension of an operand has stride 1.
// A (M, K): k (row-major) or m. B (K, N): k (a transposed weight) or n (row-major).
// C and D (M, N): n (row-major) or m. `none`: neither dimension has stride 1.
enum class Major : uint8_t { none, k, m, n };

// alpha and beta enter a Problem only by what they allow to be skipped.
enum class ScalarClass : uint8_t { zero, one, other };

enum class Activation : uint8_t {
  none,
  relu,
  gelu,       // x * Phi(x), the erf form
  gelu_tanh,  // the tanh approximation of gelu
  silu,
  sigmoid,
  tanh,
  hardswish,
  leaky_relu,  // args: slope
  clamp,       // args: lo, hi
};
inline constexpr int kActivationCount = 10;

// How the output tiles and the K loop are spread over the SMs.
enum class Schedule : uint8_t { automatic, data_parallel, split_k, stream_k };

// Arithmetic of fp32 products.
enum class Precision : uint8_t { ieee, tf32, tf32x3 };

enum class Numerics : uint8_t { deterministic, batch_invariant };

// Order in which a CTA's linear index walks the output tiles.
enum class RasterOrder : uint8_t { along_m, along_n };

GEMMX_API std::string_view name(DType);
GEMMX_API std::string_view name(Major);
GEMMX_API std::string_view name(ScalarClass);
GEMMX_API std::string_view name(Activation);
GEMMX_API std::string_view name(Schedule);
GEMMX_API std::string_view name(Precision);
GEMMX_API std::string_view name(Numerics);
GEMMX_API std::string_view name(RasterOrder);

// nullopt when the text is no name of that type.
GEMMX_API std::optional<DType> parse_dtype(std::string_view);
GEMMX_API std::optional<Activation> parse_activation(std::string_view);
GEMMX_API std::optional<Schedule> parse_schedule(std::string_view);
GEMMX_API std::optional<Precision> parse_precision(std::string_view);
GEMMX_API std::optional<Numerics> parse_numerics(std::string_view);
GEMMX_API std::optional<RasterOrder> parse_raster_order(std::string_view);

constexpr int size_of(DType t) {
  switch (t) {
    case DType::none: return 0;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16:
    case DType::i16: return 2;
    case DType::f64:
    case DType::i64:
    case DType::complex64: return 8;
    default: return 1;
  }
}

constexpr ScalarClass classify(double x) {
  return x == 0.0 ? ScalarClass::zero : x == 1.0 ? ScalarClass::one : ScalarClass::other;
}

}  // namespace gemmx
