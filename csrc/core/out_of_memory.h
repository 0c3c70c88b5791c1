// What an op throws when torch's allocator has no memory for it.
//
// torch's C interface says only that an allocation failed. Callers wait for torch.OutOfMemoryError, which is a Python
// class: `_C` sets a function that throws an exception of C++ which becomes that class in Python.
#pragma once

#include <string>

#include "core/types.h"

namespace gemmx {

// Throws, always. Its exception is a std::runtime_error, for callers without Python.
using ThrowOutOfMemory = void (*)(const std::string& message);

// nullptr: std::runtime_error itself.
GEMMX_API void set_out_of_memory(ThrowOutOfMemory);

// An allocation of `bytes` for `what` failed on the CUDA device. Where the device is broken by an earlier fault that
// is what the sentence says, and the exception is a std::runtime_error.
[[noreturn]] GEMMX_API void throw_allocation_failed(const char* what, int64_t bytes, int device_index);

}  // namespace gemmx
