#include "core/overlap.h"

#include <algorithm>

namespace gemmx {
namespace {

struct Dim {
  int64_t size;
  int64_t stride;
};

// The dimensions that move the address: size above 1, stride not 0. Strides in bytes.
struct Dims {
  std::array<Dim, kMaxDims> dim;
  int count = 0;

  explicit Dims(const TensorDesc& t) {
    for (int i = 0; i < t.ndim; ++i) {
      if (t.sizes[i] > 1 && t.strides[i] != 0) dim[count++] = {t.sizes[i], t.strides[i] * size_of(t.dtype)};
    }
  }
  const Dim* begin() const { return dim.data(); }
  const Dim* end() const { return dim.data() + count; }
};

// The bytes that the tensor covers modulo `period`: the dimensions whose stride is a multiple of the period
// leave the residue alone, the others widen it.
int64_t residue_extent(const Dims& dims, int element_bytes, int64_t period) {
  int64_t extent = element_bytes;
  for (const Dim& d : dims) {
    if (d.stride % period != 0) extent += (d.size - 1) * d.stride;
  }
  return extent;
}

// With x at residues [0, x_extent) and y at [gap, gap + y_extent) of a circle of length `period`.
bool apart_modulo(const TensorDesc& x, const Dims& x_dims, const TensorDesc& y, const Dims& y_dims, int64_t period) {
  const int64_t x_extent = residue_extent(x_dims, size_of(x.dtype), period);
  const int64_t y_extent = residue_extent(y_dims, size_of(y.dtype), period);
  if (x_extent >= period || y_extent >= period) return false;
  const auto circle = static_cast<uint64_t>(period);
  const auto gap = static_cast<int64_t>(y.data >= x.data ? (y.data - x.data) % circle
                                                         : (circle - (x.data - y.data) % circle) % circle);
  return gap >= x_extent && gap + y_extent <= period;
}

}  // namespace

int64_t byte_extent(const TensorDesc& t) {
  int64_t elements = 1;
  for (int i = 0; i < t.ndim; ++i) {
    if (t.sizes[i] == 0) return 0;
    int64_t step = 0;
    if (__builtin_mul_overflow(t.sizes[i] - 1, t.strides[i], &step)) return -1;
    if (__builtin_add_overflow(elements, step, &elements)) return -1;
  }
  int64_t bytes = 0;
  return __builtin_mul_overflow(elements, static_cast<int64_t>(size_of(t.dtype)), &bytes) ? -1 : bytes;
}

bool may_overlap_itself(const TensorDesc& t) {
  Dims dims(t);
  for (int i = 0; i < t.ndim; ++i) {
    if (t.sizes[i] == 0) return false;
    if (t.sizes[i] > 1 && t.strides[i] == 0) return true;
  }
  // By ascending stride, each dimension must step over all that the smaller ones cover.
  std::sort(dims.dim.begin(), dims.dim.begin() + dims.count,
            [](const Dim& x, const Dim& y) { return x.stride < y.stride; });
  int64_t covered = size_of(t.dtype);
  for (const Dim& d : dims) {
    if (d.stride < covered) return true;
    covered += (d.size - 1) * d.stride;
  }
  return false;
}

bool provably_disjoint(const TensorDesc& x, const TensorDesc& y) {
  const int64_t x_bytes = byte_extent(x);
  const int64_t y_bytes = byte_extent(y);
  if (x_bytes == 0 || y_bytes == 0) return true;
  if (x.data + static_cast<uint64_t>(x_bytes) <= y.data || y.data + static_cast<uint64_t>(y_bytes) <= x.data) {
    return true;
  }
  const Dims x_dims(x);
  const Dims y_dims(y);
  const auto apart = [&](const Dim& d) { return apart_modulo(x, x_dims, y, y_dims, d.stride); };
  return std::any_of(x_dims.begin(), x_dims.end(), apart) || std::any_of(y_dims.begin(), y_dims.end(), apart);
}

}  // namespace gemmx
