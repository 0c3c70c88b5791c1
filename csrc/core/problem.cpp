#include "core/problem.h"

#include <algorithm>
#include <array>
#include <bit>

#include "core/registry.h"

namespace gemmx {
namespace {

// The largest power of two, at most 16, that divides `bytes`; 16 for 0, which constrains nothing.
int alignment_of(int64_t bytes) { return bytes == 0 ? 16 : static_cast<int>(std::min<int64_t>(16, bytes & -bytes)); }

// Finalizer of the multiply-xorshift kind: every input bit reaches every output bit.
uint64_t mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0x9fb21c651e98df25u;
  x ^= x >> 35;
  return x;
}

void append_number(std::string& text, const char* label, int64_t value) {
  text += label;
  text += std::to_string(value);
}

// " a[ld 4100 batch 0 align 2]": only what packed operands with 16-byte alignment do not have.
void append_layout(std::string& text, const char* operand, const Matrix& x, int64_t packed_ld) {
  std::string notes;
  if (x.major == Major::none) {
    append_number(notes, " strides ", x.row_stride);
    append_number(notes, "x", x.col_stride);
  } else if (x.leading_dimension() != packed_ld) {
    append_number(notes, " ld ", x.leading_dimension());
  }
  if (x.batch_stride != 0) append_number(notes, " batch ", x.batch_stride);
  if (x.pointer_align != 16) append_number(notes, " align ", x.pointer_align);
  if (notes.empty()) return;
  text += ", ";
  text += operand;
  text += '[';
  text += notes.substr(1);
  text += ']';
}

void append_major(std::string& text, Major major) {
  text += major == Major::none ? std::string_view("x") : name(major);
}

// The leading dimension of a packed operand whose row along the major dimension has `extent` elements; one
// row is padded to 16 bytes (problem.h).
int64_t packed_ld(const Matrix& x, int64_t rows, int64_t cols) {
  const bool row_major = x.col_stride == 1;
  const int64_t extent = row_major ? cols : rows;
  if ((row_major ? rows : cols) != 1) return extent;
  const int64_t unit = 16 / std::max(1, size_of(x.dtype));
  return std::max<int64_t>(1, (extent + unit - 1) / unit) * unit;
}

void append_requests(std::string& text, const Problem& p) {
  if (p.precision != Precision::ieee) (text += ", ") += name(p.precision);
  if (p.numerics != Numerics::deterministic) (text += ", ") += name(p.numerics);
  if (p.schedule != Schedule::automatic) (text += ", ") += name(p.schedule);
  if (p.splits != 0) append_number(text, ", splits=", p.splits);
  if (p.kernel >= 0) (text += ", kernel=") += kernel_specs()[static_cast<size_t>(p.kernel)].name;
}

}  // namespace

int vector_bytes(const Matrix& x) {
  const int element = size_of(x.dtype);
  if (x.major == Major::none) return element;
  return std::min({static_cast<int>(x.pointer_align), alignment_of(x.leading_dimension() * element),
                   alignment_of(x.batch_stride * element)});
}

uint64_t hash(const Problem& p) {
  static_assert(sizeof(Problem) % sizeof(uint64_t) == 0, "Problem is hashed in words of 8 bytes");
  std::array<uint64_t, sizeof(Problem) / sizeof(uint64_t)> words;
  std::memcpy(words.data(), &p, sizeof(Problem));
  // Four lanes, so that the multiplications overlap: 24 dependent ones would cost 3 to 4 cycles each.
  std::array<uint64_t, 4> lanes = {0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u, 0x94d049bb133111ebu, 0xd6e8feb86659fd93u};
  for (size_t i = 0; i < words.size(); ++i) {
    uint64_t& lane = lanes[i % lanes.size()];
    lane = std::rotl((lane ^ words[i]) * 0xff51afd7ed558ccdu, 29);
  }
  return mix(lanes[0] ^ mix(lanes[1] ^ mix(lanes[2] ^ mix(lanes[3]))));
}

std::string to_string(const Problem& p) {
  std::string text;
  text.reserve(128);
  if (p.batch != 1) append_number(text, "batch=", p.batch);
  append_number(text, text.empty() ? "M=" : " M=", p.m);
  append_number(text, " N=", p.n);
  append_number(text, " K=", p.k);
  (text += ' ') += name(p.a.dtype);
  if (p.b.dtype != p.a.dtype) (text += 'x') += name(p.b.dtype);
  text += ' ';
  append_major(text, p.a.major);
  append_major(text, p.b.major);
  (text += " -> ") += name(p.d.dtype);
  if (p.d.major != Major::n) (text += p.d.major == Major::m ? " column-major" : " strided");
  append_layout(text, "a", p.a, packed_ld(p.a, p.m, p.k));
  append_layout(text, "b", p.b, packed_ld(p.b, p.k, p.b_columns()));
  append_layout(text, "d", p.d, packed_ld(p.d, p.m, p.d_columns()));
  if (p.alpha != ScalarClass::one) text += p.alpha == ScalarClass::zero ? ", alpha=0" : ", alpha";
  if (p.gate_gradient) {
    append_layout(text, "z", p.c, packed_ld(p.c, p.m, p.d_columns()));
  } else if (p.has_c()) {
    text += p.beta == ScalarClass::one ? ", c" : ", beta*c";
    if (p.accumulate_in_place) text += " in place";
    if (p.c.dtype != p.d.dtype) (text += ' ') += name(p.c.dtype);
    if (!p.accumulate_in_place) append_layout(text, "c", p.c, packed_ld(p.c, p.m, p.n));
  }
  if (p.has_bias()) {
    text += ", bias";
    if (p.bias_dtype != p.d.dtype) (text += ' ') += name(p.bias_dtype);
    if (p.bias_stride != 1) append_number(text, " stride ", p.bias_stride);
    if (p.bias_align != 16) append_number(text, " align ", p.bias_align);
  }
  const bool gates = p.gated || p.gate_gradient;
  if (gates) text += p.gated ? ", gated" : ", gradient of gate";
  if (gates || p.activation != Activation::none) (text += gates ? " " : ", ") += name(p.activation);
  if (p.aux) text += ", aux";
  append_requests(text, p);
  return text;
}

}  // namespace gemmx
