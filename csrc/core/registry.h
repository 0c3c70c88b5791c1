// The registry: all KernelSpecs, in a fixed order, and the Kernels that this library was built with.
//
// There are no static registrars (they vanish from static archives and hide the list): registry.cpp includes
// every family's instances.inc, and names run functions of the families that CMake says are built.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/kernel_spec.h"

namespace gemmx {

GEMMX_API std::span<const KernelSpec> kernel_specs();
// Whether the kernel applies a function that it was built with (docs/custom_epilogue.md): what it writes is no Z, and
// the product's gradient is not its own.
GEMMX_API bool has_custom_function(const KernelSpec&);
// -1 when there is no kernel of that name.
GEMMX_API int find_kernel(std::string_view name);
// nullptr when the library was built without the kernel.
GEMMX_API const Kernel* kernel(int index);
// True when code for this capability is in the library.
GEMMX_API bool built_for(int index, int capability);
// Empty when the kernel can run here: spec.supports() and built.
GEMMX_API std::string supports(int index, const Problem&, const Device&);
GEMMX_API int64_t workspace_size(int index, const Problem&, const Plan&, const Device&);

// Launches of each kernel since the start or the last reset, in the order of kernel_specs().
GEMMX_API std::vector<uint64_t> launch_counts();
GEMMX_API void reset_launch_counts();
void count_launch(int index);

}  // namespace gemmx
