// The parts of the pybind11 module `_C`: the selector's and the tests' view of csrc/core.
// Never include torch's headers here: pybind11 and the stable ABI do not go together in one file.
#pragma once

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <stdexcept>
#include <string>

namespace gemmx::bindings {

namespace py = pybind11;

void bind_problem(py::module_& m);   // Matrix, Problem, Plan, Device
void bind_checks(py::module_& m);    // TensorDesc, check_gemm
void bind_registry(py::module_& m);  // KernelSpec, kernels, supports, selector, plan cache, counters
void bind_bench(py::module_& m);     // lt_baseline, stream_read

// Enums are strings in Python. Throws ValueError with the name of the field.
template <typename E>
E parse(std::optional<E> parsed, const char* field, const std::string& text) {
  if (!parsed) throw std::invalid_argument(std::string(field) + ": got '" + text + "', which is none of its names");
  return *parsed;
}

}  // namespace gemmx::bindings
