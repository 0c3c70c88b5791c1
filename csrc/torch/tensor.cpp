#include "torch/tensor.h"

#include <array>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/build_info.h"
#include "core/out_of_memory.h"

namespace gemmx::torch_ops {
namespace {

// torch's dtype numbers are asked for once; they are not part of the stable ABI.
DType dtype_of_code(int32_t code) {
  static const auto table = [] {
    std::array<DType, 64> t;
    t.fill(DType::other);
    const auto set = [&t](int32_t c, DType d) { t.at(static_cast<size_t>(c)) = d; };
    set(aoti_torch_dtype_float32(), DType::f32);
    set(aoti_torch_dtype_float16(), DType::f16);
    set(aoti_torch_dtype_bfloat16(), DType::bf16);
    set(aoti_torch_dtype_float64(), DType::f64);
    set(aoti_torch_dtype_float8_e4m3fn(), DType::e4m3);
    set(aoti_torch_dtype_float8_e5m2(), DType::e5m2);
    set(aoti_torch_dtype_uint8(), DType::u8);
    set(aoti_torch_dtype_int8(), DType::i8);
    set(aoti_torch_dtype_int16(), DType::i16);
    set(aoti_torch_dtype_int32(), DType::i32);
    set(aoti_torch_dtype_int64(), DType::i64);
    set(aoti_torch_dtype_bool(), DType::boolean);
    set(aoti_torch_dtype_complex64(), DType::complex64);
    return t;
  }();
  return code >= 0 && code < static_cast<int32_t>(table.size()) ? table[code] : DType::other;
}

int32_t code_of_dtype(DType dtype) {
  switch (dtype) {
    case DType::f32: return aoti_torch_dtype_float32();
    case DType::f16: return aoti_torch_dtype_float16();
    case DType::bf16: return aoti_torch_dtype_bfloat16();
    case DType::u8: return aoti_torch_dtype_uint8();
    default: throw std::runtime_error("gemmx allocates no tensors of dtype " + std::string(name(dtype)));
  }
}

}  // namespace

void check_torch(AOTITorchError status, const char* what) {
  if (status != AOTI_TORCH_SUCCESS) throw std::runtime_error(std::string(what) + " failed inside torch");
}

DType from_torch(torch::headeronly::ScalarType type) {
  using torch::headeronly::ScalarType;
  switch (type) {
    case ScalarType::Float: return DType::f32;
    case ScalarType::Half: return DType::f16;
    case ScalarType::BFloat16: return DType::bf16;
    case ScalarType::Double: return DType::f64;
    case ScalarType::Float8_e4m3fn: return DType::e4m3;
    case ScalarType::Float8_e5m2: return DType::e5m2;
    case ScalarType::Byte: return DType::u8;
    case ScalarType::Char: return DType::i8;
    case ScalarType::Short: return DType::i16;
    case ScalarType::Int: return DType::i32;
    case ScalarType::Long: return DType::i64;
    case ScalarType::Bool: return DType::boolean;
    case ScalarType::ComplexFloat: return DType::complex64;
    default: return DType::other;
  }
}

TensorDesc describe(AtenTensorHandle handle) {
  TensorDesc t;
  if (handle == nullptr) return t;
  int32_t code = 0, device_type = 0, device_index = 0;
  int64_t ndim = 0;
  int64_t *sizes = nullptr, *strides = nullptr;
  void* data = nullptr;
  check_torch(aoti_torch_get_dtype(handle, &code), "reading a dtype");
  check_torch(aoti_torch_get_device_type(handle, &device_type), "reading a device");
  check_torch(aoti_torch_get_device_index(handle, &device_index), "reading a device");
  check_torch(aoti_torch_get_dim(handle, &ndim), "reading a shape");
  check_torch(aoti_torch_get_sizes(handle, &sizes), "reading a shape");
  check_torch(aoti_torch_get_strides(handle, &strides), "reading strides");
  check_torch(aoti_torch_get_data_ptr(handle, &data), "reading a data pointer");
  if (ndim > kMaxDims) {
    throw std::invalid_argument("got a tensor of " + std::to_string(ndim) + " dimensions, an operand has at most 3");
  }
  t.dtype = dtype_of_code(code);
  t.device_type = device_type == aoti_torch_device_type_cuda()  ? DeviceType::cuda
                  : device_type == aoti_torch_device_type_cpu() ? DeviceType::cpu
                                                                : DeviceType::other;
  t.device_index = device_index;
  t.ndim = static_cast<int>(ndim);
  for (int i = 0; i < t.ndim; ++i) {
    t.sizes[i] = sizes[i];
    t.strides[i] = strides[i];
  }
  t.data = reinterpret_cast<uintptr_t>(data);
  return t;
}

void* data_pointer(const Tensor& tensor) {
  void* data = nullptr;
  check_torch(aoti_torch_get_data_ptr(tensor.get(), &data), "reading a data pointer");
  return data;
}

Tensor empty_cuda(const char* what, std::span<const int64_t> sizes, std::span<const int64_t> strides, DType dtype,
                  int device_index) {
  AtenTensorHandle handle = nullptr;
  const AOTITorchError status =
      aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), code_of_dtype(dtype),
                               aoti_torch_device_type_cuda(), device_index, &handle);
  if (status != AOTI_TORCH_SUCCESS) {
    int64_t bytes = size_of(dtype);
    for (const int64_t size : sizes) bytes *= size;
    throw_allocation_failed(what, bytes, device_index);
  }
  return Tensor(handle);
}

Tensor empty_packed_cuda(const char* what, std::span<const int64_t> sizes, DType dtype, int device_index) {
  std::array<int64_t, kMaxDims> strides{};
  int64_t next = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = next;
    next *= sizes[i] > 1 ? sizes[i] : 1;
  }
  return empty_cuda(what, sizes, std::span(strides).first(sizes.size()), dtype, device_index);
}

Tensor workspace_cuda(int64_t bytes, int device_index) {
  const int64_t size[1] = {bytes};
  return empty_packed_cuda("the workspace", size, DType::u8, device_index);
}

void throw_built_without_cuda() {
  throw std::runtime_error("gemmx was built without CUDA (GEMMX_CUDA_ARCHS=" + std::string(build_archs()) +
                           ") and got CUDA tensors; build it with GEMMX_CUDA_ARCHS naming your GPU");
}

#ifdef GEMMX_HAS_CUDA
void* current_stream(int device_index) {
  void* stream = nullptr;
  check_torch(aoti_torch_get_current_cuda_stream(device_index, &stream), "reading the current stream");
  return stream;
}
#endif

}  // namespace gemmx::torch_ops
