// What a kernel makes of its accumulators Z = alpha * A @ B + bias: a column of the families' rows.
#pragma once

#include <cstdint>

namespace gemmx {

enum class Form : uint8_t {
  plain,          // D
  aux,            // D and the pre-activation Z
  gated,          // D from gate and up: half of the tile's columns are gate, half the same columns of up
  gated_aux,      // both
  custom,         // D from a function that the kernel is built with
  gate_gradient,  // the backward of a gate: the product is dH, D is dZ of gate and up (gate_gradient_store.cuh)
};
constexpr bool is_gated(Form f) { return f == Form::gated || f == Form::gated_aux; }
constexpr bool is_aux(Form f) { return f == Form::aux || f == Form::gated_aux; }

}  // namespace gemmx
