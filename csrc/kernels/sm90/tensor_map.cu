#include "kernels/sm90/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace gemmx::sm90 {
namespace {

void* driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
  if (status != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    throw std::runtime_error("the CUDA driver has no " + std::string(name) + ": it must be 525 or newer");
  }
  return function;
}

CUtensorMapDataType data_type(DType dtype) {
  switch (dtype) {
    case DType::bf16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::f16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::f32: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    default: throw std::logic_error("no TMA data type for " + std::string(name(dtype)));
  }
}

CUtensorMapSwizzle swizzle_of(int row_bytes) {
  switch (row_bytes) {
    case 128: return CU_TENSOR_MAP_SWIZZLE_128B;
    case 64: return CU_TENSOR_MAP_SWIZZLE_64B;
    case 32: return CU_TENSOR_MAP_SWIZZLE_32B;
    default: throw std::logic_error("no TMA swizzle for rows of " + std::to_string(row_bytes) + " bytes");
  }
}

}  // namespace

CUtensorMap encode_tensor_map(const char* kernel, const Matrix& x, int64_t inner_extent, int64_t outer_extent,
                              int64_t batch, Box box) {
  static const auto encode =
      reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(driver_function("cuTensorMapEncodeTiled"));
  const int bytes = size_of(x.dtype);
  const auto stride = [&](int64_t elements) { return static_cast<cuuint64_t>(elements) * bytes; };
  // One batch, or one for all: the stride is never used, but must be legal.
  const int64_t batches = x.batch_stride == 0 ? 1 : batch;
  const cuuint64_t extents[3] = {static_cast<cuuint64_t>(inner_extent), static_cast<cuuint64_t>(outer_extent),
                                 static_cast<cuuint64_t>(batches)};
  const cuuint64_t strides[2] = {stride(x.leading_dimension()), x.batch_stride == 0 ? 16 : stride(x.batch_stride)};
  const cuuint32_t boxes[3] = {static_cast<cuuint32_t>(box.inner), static_cast<cuuint32_t>(box.rows), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  auto* const placeholder = reinterpret_cast<void*>(uintptr_t{4096});
  CUtensorMap map;
  const CUresult status =
      encode(&map, data_type(x.dtype), 3, placeholder, extents, strides, boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             swizzle_of(box.inner * bytes), CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw std::runtime_error(std::string(kernel) + ": the driver refused a TMA descriptor, " +
                             std::to_string(inner_extent) + "x" + std::to_string(outer_extent) + "x" +
                             std::to_string(batches) + ", CUresult " + std::to_string(status));
  }
  return map;
}

void set_address(const char* kernel, CUtensorMap& map, const void* address) {
  static const auto replace =
      reinterpret_cast<PFN_cuTensorMapReplaceAddress_v12000>(driver_function("cuTensorMapReplaceAddress"));
  if (replace(&map, const_cast<void*>(address)) != CUDA_SUCCESS) {
    throw std::runtime_error(std::string(kernel) + ": the driver refused an operand's address for TMA");
  }
}

}  // namespace gemmx::sm90
