// `_C.testing`: the index functions of csrc/device, compiled for the host, for the property tests.
#pragma once

#include <pybind11/pybind11.h>

namespace gemmx::bindings {

void bind_testing(pybind11::module_& m);

}  // namespace gemmx::bindings
