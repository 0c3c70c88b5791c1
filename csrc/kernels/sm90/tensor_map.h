// CUtensorMap descriptors of operands and of D, encoded and patched through the driver.
//
// The driver's functions are looked up at run time, so that the library loads without libcuda.so.
#pragma once

#include <cuda.h>

#include "core/problem.h"

namespace gemmx::sm90 {

// A box of a 3-D tensor: `inner` contiguous elements of `rows` rows of one batch.
struct Box {
  int inner, rows;
};

// Descriptor of x (inner_extent x outer_extent x batch) around a placeholder address: 128-byte boxes are swizzled by
// 128 bytes, narrower ones by their width; outside reads zeros. Throws std::runtime_error naming `kernel`.
CUtensorMap encode_tensor_map(const char* kernel, const Matrix& x, int64_t inner_extent, int64_t outer_extent,
                              int64_t batch, Box box);

// The same layout at another address.
void set_address(const char* kernel, CUtensorMap& map, const void* address);

}  // namespace gemmx::sm90
