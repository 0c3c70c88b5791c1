// The order of the checks is the order in which a caller would mend a call: what is asked for at all, dtypes,
// devices, shapes, then the optional arguments, and at last what needs them all together (layouts, overlap).
//
// A successful check allocates nothing: sentences are built only to be thrown.
#include "core/checks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "core/numerics.h"
#include "core/overlap.h"
#include "core/registry.h"
#include "core/splits.h"

namespace gemmx {
namespace {

template <typename... Parts>
std::string sentence(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// A wrong argument: ValueError in Python.
template <typename... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void wrong(const Parts&... parts) {
  throw std::invalid_argument(sentence(parts...));
}

// Right in itself, but nothing here computes it: RuntimeError in Python.
template <typename... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void unsupported(const Parts&... parts) {
  throw std::runtime_error(sentence(parts...));
}

// The dtype as torch prints it, since messages speak to callers of torch.
std::string_view torch_name(DType t) {
  switch (t) {
    case DType::f32: return "float32";
    case DType::f16: return "float16";
    case DType::bf16: return "bfloat16";
    case DType::f64: return "float64";
    case DType::e4m3: return "float8_e4m3fn";
    case DType::e5m2: return "float8_e5m2";
    case DType::u8: return "uint8";
    case DType::i8: return "int8";
    case DType::i16: return "int16";
    case DType::i32: return "int32";
    case DType::i64: return "int64";
    case DType::other: return "of a type unknown to gemmx";
    default: return name(t);
  }
}

std::string device_string(const TensorDesc& t) {
  switch (t.device_type) {
    case DeviceType::cpu: return "cpu";
    case DeviceType::meta: return "meta";
    case DeviceType::cuda: return sentence("cuda:", t.device_index);
    default: return "a device of another kind";
  }
}

struct Argument {
  const char* name;
  const TensorDesc& tensor;
};

// Sizes and batches of A (batch, M, K) and B (batch, K, N); has_batch where D is 3-D.
struct Shape {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  int64_t b_columns = 0;  // of B and bias: n, gated 2 n
  bool has_batch = false;
};

constexpr const char* kShapeRule = "a is (M, K) or (batch, M, K) and b is (K, N) or (batch, K, N)";
constexpr const char* kGatedShapeRule = "a is (M, K) or (batch, M, K) and b is (K, 2 N), the columns gate | up";

// The dtypes that go with `t`: for messages.
std::string or_float32(DType t) { return t == DType::f32 ? "float32" : sentence(torch_name(t), " or float32"); }

bool is_input_dtype(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }

void check_scaling(const GemmArgs& args) {
  for (const Argument& s : {Argument{"scale_a", args.scale_a}, Argument{"scale_b", args.scale_b}}) {
    if (s.tensor.present()) {
      unsupported(s.name, ": scale tensors are not supported; pass one number as alpha, or scale ", s.name[6],
                  " before the call");
    }
  }
  if (args.scale_d.present()) unsupported("scale_d: scale tensors are not supported; multiply D after the call");
}

void check_dtypes(const GemmArgs& args) {
  for (const Argument& x : {Argument{"a", args.a}, Argument{"b", args.b}}) {
    if (!is_input_dtype(x.tensor.dtype)) {
      unsupported(x.name, ": dtype is ", torch_name(x.tensor.dtype),
                  " but gemm takes float32, float16 and bfloat16; convert a and b to one of them");
    }
  }
  if (args.a.dtype != args.b.dtype) {
    wrong("b: dtype is ", torch_name(args.b.dtype), " but a's is ", torch_name(args.a.dtype),
          ": both must be the same; convert one with .to(dtype)");
  }
}

void check_devices(const GemmArgs& args) {
  const TensorDesc& a = args.a;
  if (a.device_type == DeviceType::other) unsupported("a: is on ", device_string(a), "; gemm runs on cuda and on cpu");
  for (const Argument& x :
       {Argument{"b", args.b}, Argument{"c", args.c}, Argument{"bias", args.bias}, Argument{"out", args.out}}) {
    if (!x.tensor.present()) continue;
    const bool same_index = x.tensor.device_index == a.device_index || a.device_type != DeviceType::cuda;
    if (x.tensor.device_type != a.device_type || !same_index) {
      wrong(x.name, ": is on ", device_string(x.tensor), " but a is on ", device_string(a),
            ": all tensors of a call must be on one device; move ", x.name, " with .to(a.device)");
    }
  }
}

// What gemm takes and its forms do not. The ops' schemas have no such arguments; callers of _C.check_gemm may.
void check_form(const GemmArgs& args) {
  if (args.gated && args.c.present()) wrong("c: gemm_gated takes none; add it to the result, or pass a row as bias");
  if (args.has_out && (args.gated || args.aux)) {
    wrong("out: ", args.gated ? "gemm_gated" : "gemm_aux", " takes none; copy the result, or use gemm");
  }
  if (!args.gate_gradient) return;
  if (!args.c.present())
    wrong("z: is missing, but the gradient of a gate is taken from it; pass what gemm_gated_aux kept");
  const bool with_others = args.gated || args.aux || args.has_out || args.out_dtype != DType::none;
  if (with_others || args.bias.present() || args.beta != 1.0) {
    wrong("gate_gradient: goes with no beta, bias, out, out_dtype, gated or aux; leave them at their defaults");
  }
}

// int64 holds the bytes of such an operand, 8 bytes an element at most, and of each dimension alone.
bool fits(int64_t batch, int64_t rows, int64_t cols) {
  int64_t x = 0;
  return !__builtin_mul_overflow(std::max<int64_t>(batch, 1), std::max<int64_t>(rows, 1), &x) &&
         !__builtin_mul_overflow(x, std::max<int64_t>(cols, 1), &x) && !__builtin_mul_overflow(x, int64_t{8}, &x);
}

// z of _gated_dgrad, and that all is 2-D: the caller folds the rows.
void check_z(const GemmArgs& args, const Shape& s) {
  const TensorDesc& z = args.c;
  if (s.has_batch || z.ndim != 2) {
    wrong(s.has_batch ? "a" : "z", ": is ", s.has_batch ? std::max(args.a.ndim, args.b.ndim) : z.ndim,
          "-D, but the gradient of a gate takes a (M, K), b (K, N) and z (M, 2 N); fold leading dimensions into rows");
  }
  if (z.dtype != args.a.dtype) {
    wrong("z: dtype is ", torch_name(z.dtype), " but a's is ", torch_name(args.a.dtype),
          ": both must be the same; convert one with .to(dtype)");
  }
  if (z.sizes[0] != s.m || z.sizes[1] != 2 * s.n) {
    wrong("z: shape is ", shape_string(z), " but it must be (M, 2 N) = (", s.m, ", ", 2 * s.n,
          "), the columns gate | up; pass what gemm_gated_aux kept");
  }
}

Shape check_shapes(const TensorDesc& a, const TensorDesc& b, bool gated) {
  const char* const rule = gated ? kGatedShapeRule : kShapeRule;
  for (const Argument& x : {Argument{"a", a}, Argument{"b", b}}) {
    const bool may_be_batched = !gated || &x.tensor == &a;
    if (x.tensor.ndim == 2 || (x.tensor.ndim == 3 && may_be_batched)) continue;
    const char* const advice = x.tensor.ndim < 2 ? "; unsqueeze a vector to a matrix"
                               : !may_be_batched ? "; call gemm_gated once for each matrix of b"
                               : gated           ? "; gemmx.gemm_gated folds leading dimensions"
                                                 : "; gemmx.gemm folds leading dimensions";
    wrong(x.name, ": is ", x.tensor.ndim, "-D, shape ", shape_string(x.tensor), ", but ", rule, advice);
  }
  Shape s;
  s.m = a.sizes[a.ndim - 2];
  s.k = a.sizes[a.ndim - 1];
  s.b_columns = b.sizes[b.ndim - 1];
  s.n = gated ? s.b_columns / 2 : s.b_columns;
  s.has_batch = a.ndim == 3 || b.ndim == 3;
  if (s.has_batch) s.batch = a.ndim == 3 ? a.sizes[0] : b.sizes[0];
  if (const int64_t k = b.sizes[b.ndim - 2]; k != s.k) {
    wrong("b: K is ", k, " but a has K = ", s.k, ": ", rule, "; for a weight stored (", gated ? "2 N" : "N",
          ", K) pass weight.t()");
  }
  if (gated && s.b_columns % 2 != 0) {
    wrong("b: has ", s.b_columns, " columns, an odd number, but ", rule,
          ", as many of gate as of up; concatenate both along the columns");
  }
  if (a.ndim == 3 && b.ndim == 3 && a.sizes[0] != b.sizes[0]) {
    wrong("b: batch is ", b.sizes[0], " but a has batch = ", a.sizes[0], ": ", kShapeRule,
          "; pass a 2-D operand to share it between batches");
  }
  // D and Z of a gate's gradient have twice as many columns: fits() counts 8 bytes an element, they take 4 or less.
  if (!fits(s.batch, s.m, s.k) || !fits(s.batch, s.k, s.b_columns) || !fits(s.batch, s.m, s.b_columns)) {
    wrong("a, b: batch = ", s.batch, ", M = ", s.m, ", N = ", s.n, ", K = ", s.k,
          " make an operand of more than 2^63 bytes; split the call");
  }
  return s;
}

DType check_out_dtype(const GemmArgs& args) {
  const DType input = args.a.dtype;
  if (args.has_out && args.out_dtype != DType::none && args.out_dtype != args.out.dtype) {
    wrong("out_dtype: is ", torch_name(args.out_dtype), " but out has dtype ", torch_name(args.out.dtype),
          ": out decides; leave out_dtype None");
  }
  const DType d = args.has_out ? args.out.dtype : args.out_dtype != DType::none ? args.out_dtype : input;
  if (d != input && d != DType::f32) {
    unsupported(args.has_out ? "out: dtype is " : "out_dtype: is ", torch_name(d), " but ", torch_name(input),
                " inputs give ", or_float32(input), "; convert D after the call");
  }
  return d;
}

// alpha, beta and activation arguments act as float32.
float to_float32(double x, const char* argument) {
  const auto rounded = static_cast<float>(x);
  if (std::isinf(rounded) && std::isfinite(x)) {
    wrong(argument, ": is ", x, ", beyond float32, in which it is applied; its magnitude must be at most 3.4e38");
  }
  return rounded;
}

void check_scalars(const GemmArgs& args, CheckedGemm& checked) {
  checked.alpha = to_float32(args.alpha, "alpha");
  checked.beta = to_float32(args.beta, "beta");
  if (!args.c.present() && args.beta != 1.0) {
    wrong("beta: is ", args.beta, " but there is no c for it to scale; pass c, or leave beta at 1");
  }
  if (!args.c.present()) checked.beta = 0.0f;
}

// None asks for no activation, and of a gated form for silu.
void check_activation(std::string_view wanted, std::span<const double> values, bool gated, Activation& activation,
                      float (&activation_args)[2]) {
  activation = gated ? Activation::silu : Activation::none;
  if (!wanted.empty()) {
    const auto parsed = parse_activation(wanted);
    if (!parsed) {
      wrong("activation: '", wanted, "' is unknown; it is one of none, relu, gelu, gelu_tanh, silu, ",
            "sigmoid, tanh, hardswish, leaky_relu, clamp");
    }
    activation = *parsed;
  }
  const bool leaky = activation == Activation::leaky_relu;
  const bool clamp = activation == Activation::clamp;
  if (clamp ? values.size() != 2 : values.size() > (leaky ? 1u : 0u)) {
    const char* takes = clamp ? "exactly two, lo and hi" : leaky ? "at most one, the slope" : "none";
    wrong("activation_args: has ", values.size(), values.size() == 1 ? " value" : " values", " but activation '",
          name(activation), "' takes ", takes);
  }
  if (clamp && !(values[0] <= values[1])) {
    wrong("activation_args: lo = ", values[0], " and hi = ", values[1], " but clamp needs lo <= hi and no NaN");
  }
  if (leaky) activation_args[0] = 0.01f;  // torch's default slope
  for (size_t i = 0; i < values.size(); ++i) {
    activation_args[i] = to_float32(values[i], "activation_args");
  }
}

void check_precision_and_numerics(const GemmArgs& args, Problem& p) {
  if (!args.precision.empty()) {
    const auto parsed = parse_precision(args.precision);
    if (!parsed) wrong("precision: '", args.precision, "' is unknown; it is one of ieee, tf32");
    if (*parsed == Precision::tf32x3) {
      unsupported("precision: '3xtf32' is not supported; use ieee for float32 accuracy or tf32 for speed");
    }
    if (*parsed == Precision::tf32 && args.a.dtype != DType::f32) {
      wrong("precision: 'tf32' is for float32 inputs but a is ", torch_name(args.a.dtype), "; leave precision None");
    }
    p.precision = *parsed;
  }
  if (!args.numerics.empty()) {
    const auto parsed = parse_numerics(args.numerics);
    if (!parsed) {
      wrong("numerics: '", args.numerics, "' is unknown; it is one of deterministic, batch_invariant");
    }
    if (*parsed == Numerics::batch_invariant && args.a.dtype == DType::f32) {
      unsupported("numerics: 'batch_invariant' takes float16 and bfloat16 but a is float32, whose kernels promise no ",
                  "order of summing that holds for every M; convert a and b, or leave numerics None");
    }
    p.numerics = *parsed;
  }
}

// Requests that contradict batch_invariant. With K = 0 nothing is cut.
void check_cuts_of_batch_invariant(const Problem& p) {
  if (p.numerics != Numerics::batch_invariant || p.k == 0) return;
  if (p.schedule == Schedule::stream_k) {
    wrong("schedule: is 'stream_k', which cuts K where the number of tiles says, but numerics 'batch_invariant' takes ",
          "cuts that do not depend on M; leave schedule None");
  }
  const int64_t splits = splits_for(p.b_columns(), p.k, size_of(p.a.dtype));
  if (p.splits > 0 && p.splits != splits) {
    wrong("splits: is ", p.splits, " but numerics 'batch_invariant' cuts this K into ", splits,
          " for every M; leave splits 0");
  }
}

// The registered names that begin most like the one asked for, at most three.
std::string closest_kernels(std::string_view wanted) {
  const auto common = [&](const KernelSpec& spec) {
    const std::string_view have = spec.name;
    return static_cast<size_t>(std::mismatch(wanted.begin(), wanted.end(), have.begin(), have.end()).first -
                               wanted.begin());
  };
  size_t longest = 0;
  for (const KernelSpec& spec : kernel_specs()) longest = std::max(longest, common(spec));
  if (longest < 4) return "";  // less than a family's name is no likeness
  std::string names;
  int count = 0;
  for (const KernelSpec& spec : kernel_specs()) {
    if (common(spec) == longest && count++ < 3) (names += count == 1 ? "closest: " : ", ") += spec.name;
  }
  return names + "; ";
}

void check_requests(const GemmArgs& args, Problem& p) {
  if (!args.schedule.empty()) {
    const auto parsed = parse_schedule(args.schedule);
    if (!parsed) {
      wrong("schedule: '", args.schedule, "' is unknown; it is one of auto, data_parallel, split_k, stream_k");
    }
    p.schedule = *parsed;
  }
  if (args.splits < 0 || args.splits > std::numeric_limits<int32_t>::max()) {
    wrong("splits: is ", args.splits, " but must be from 0, the selector's choice, to 2147483647");
  }
  p.splits = static_cast<int32_t>(args.splits);
  if (p.splits > 1) {
    if (p.schedule != Schedule::automatic && p.schedule != Schedule::split_k) {
      wrong("splits: is ", p.splits, " but schedule '", name(p.schedule),
            "' does not split K that way; leave splits 0, or ask for schedule 'split_k'");
    }
    p.schedule = Schedule::split_k;
  }
  if (!args.kernel.empty()) {
    p.kernel = find_kernel(args.kernel);
    if (p.kernel < 0) {
      wrong("kernel: there is no '", args.kernel, "'; ", closest_kernels(args.kernel), "`gemmx kernels` lists all");
    }
  }
}

// One operand as a batch of matrices, before its strides are made canonical.
struct View {
  int64_t batch, rows, cols;
  int64_t batch_stride, row_stride, col_stride;

  friend bool operator==(const View&, const View&) = default;
  // Whether batch and rows are one dimension with one stride.
  bool collapses() const { return batch == 1 || rows == 1 || batch_stride == rows * row_stride; }
  void collapse() {
    if (rows == 1 && batch != 1) row_stride = batch_stride;
    rows *= batch;
    batch = 1;
    batch_stride = 0;
  }
};

View packed_view(int64_t batch, int64_t rows, int64_t cols) { return {batch, rows, cols, rows * cols, cols, 1}; }

// The tensor seen as (batch, rows, cols) with torch's broadcasting: an absent or size-1 dimension has stride 0.
View view_of(const TensorDesc& t, int64_t batch, int64_t rows, int64_t cols) {
  const auto stride = [&](int from_end) {
    const int i = t.ndim - from_end;
    return i >= 0 && t.sizes[i] != 1 ? t.strides[i] : 0;
  };
  return {batch, rows, cols, stride(3), stride(2), stride(1)};
}

enum class Operand { a, b, c_or_d };

// Problem's layout of a view: strides that decide nothing are set so that the operand is packed and every row
// of its major dimension starts 16-byte aligned. Where both dimensions could be major, A and B are K-major and
// C and D row-major, the layouts that the most kernels take.
Matrix canonical(Operand operand, View v, DType dtype, uintptr_t data) {
  const int64_t unit = 16 / size_of(dtype);
  const auto padded = [unit](int64_t extent) { return std::max<int64_t>(1, ceil_div(extent, unit)) * unit; };
  const bool prefers_rows = operand != Operand::b;
  bool row_major = v.col_stride == 1 || v.cols == 1;
  bool col_major = v.row_stride == 1 || v.rows == 1;
  if (row_major && col_major) {
    // A single row or column can lie along either; its own stride of 1 says along which.
    const bool single_row = v.rows == 1 && v.cols != 1;
    const bool single_col = v.cols == 1 && v.rows != 1;
    row_major = single_row ? v.col_stride == 1 : single_col ? v.row_stride != 1 : prefers_rows;
    // D (M, 1) contiguous has both strides 1: row-major as every other D, for kernels that store rows only.
    if (operand == Operand::c_or_d && single_col) row_major = true;
    col_major = !row_major;
  }
  if (row_major) {
    v.col_stride = 1;
    if (v.rows == 1) v.row_stride = padded(v.cols);
  } else if (col_major) {
    v.row_stride = 1;
    if (v.cols == 1) v.col_stride = padded(v.rows);
  }
  const Major along_rows = operand == Operand::a ? Major::k : Major::n;
  const Major along_cols = operand == Operand::b ? Major::k : Major::m;
  Matrix x;
  x.row_stride = v.row_stride;
  x.col_stride = v.col_stride;
  x.batch_stride = v.batch == 1 ? 0 : v.batch_stride;
  x.dtype = dtype;
  x.major = row_major ? along_rows : col_major ? along_cols : Major::none;
  x.pointer_align = data == 0 ? 16 : static_cast<uint8_t>(std::min<uintptr_t>(16, data & (~data + 1)));
  return x;
}

// What is never read decides nothing: packed, K-major, aligned.
Matrix unread(Operand operand, DType dtype) { return canonical(operand, packed_view(1, 1, 1), dtype, 0); }

void check_c(const TensorDesc& c, DType d, const Shape& s) {
  if (c.dtype != d && c.dtype != DType::f32) {
    wrong("c: dtype is ", torch_name(c.dtype), " but for a D of ", torch_name(d), " it takes ", or_float32(d),
          "; convert it with .to(dtype)");
  }
  const int64_t sizes[3] = {s.batch, s.m, s.n};
  bool broadcasts = c.ndim <= (s.has_batch ? 3 : 2);
  for (int i = 1; broadcasts && i <= c.ndim; ++i) {
    broadcasts = c.sizes[c.ndim - i] == 1 || c.sizes[c.ndim - i] == sizes[3 - i];
  }
  if (!broadcasts) {
    wrong("c: shape is ", shape_string(c), " but it must broadcast to D's shape (",
          s.has_batch ? sentence(s.batch, ", ") : "", s.m, ", ", s.n, ") without enlarging it");
  }
}

void check_bias(const GemmArgs& args, const Shape& s, Problem& p) {
  const TensorDesc& bias = args.bias;
  // D's dtype is a's or float32, so these two are all that "the dtype of D, of a, or float32" can mean.
  if (bias.dtype != args.a.dtype && bias.dtype != DType::f32) {
    wrong("bias: dtype is ", torch_name(bias.dtype), " but for an a of ", torch_name(args.a.dtype), " it takes ",
          or_float32(args.a.dtype), "; convert it with .to(dtype)");
  }
  if (bias.ndim != 1 || bias.sizes[0] != s.b_columns) {
    wrong("bias: shape is ", shape_string(bias), " but it must be ", args.gated ? "(2 N,) = (" : "(N,) = (",
          s.b_columns, ",): one value a column of ",
          args.gated ? "b; concatenate gate's and up's" : "D; pass another shape as c");
  }
  p.bias_dtype = bias.dtype;
  p.bias_stride = s.b_columns <= 1 ? 1 : bias.strides[0];
  const uintptr_t data = bias.data;
  p.bias_align = data == 0 ? 16 : static_cast<uint8_t>(std::min<uintptr_t>(16, data & (~data + 1)));
}

void check_extents(const GemmArgs& args) {
  for (const Argument& x : {Argument{"a", args.a}, Argument{"b", args.b}, Argument{"c", args.c},
                            Argument{"bias", args.bias}, Argument{"out", args.out}}) {
    if (x.tensor.present() && byte_extent(x.tensor) < 0) {
      wrong(x.name, ": its sizes ", shape_string(x.tensor), " and strides span more than 2^63 bytes");
    }
  }
}

void check_out(const GemmArgs& args, const CheckedGemm& checked) {
  const TensorDesc& out = args.out;
  const auto* sizes = checked.d_sizes.data();
  if (out.ndim != checked.d_ndim || !std::equal(sizes, sizes + checked.d_ndim, out.sizes.data())) {
    wrong("out: shape is ", shape_string(out), " but D is (", sizes[0], ", ", sizes[1],
          checked.d_ndim == 3 ? sentence(", ", sizes[2]) : "", ")");
  }
  if (may_overlap_itself(out)) {
    wrong("out: its strides put several elements, or cannot be shown not to put them, at one address; give ",
          "an out whose elements are distinct, not an expanded one");
  }
}

// Whether every element of D is read, if at all, only from its own address. A C that broadcasts is another view.
bool out_is_c(const GemmArgs& args, const Shape& s) {
  return args.c.present() && args.out.data != 0 && args.out.data == args.c.data && args.out.dtype == args.c.dtype &&
         view_of(args.out, s.batch, s.m, s.n) == view_of(args.c, s.batch, s.m, s.n);
}

void check_overlap(const GemmArgs& args, bool out_is_c) {
  if (args.out.data == 0) return;
  for (const Argument& x :
       {Argument{"a", args.a}, Argument{"b", args.b}, Argument{"c", args.c}, Argument{"bias", args.bias}}) {
    if (!x.tensor.present() || x.tensor.data == 0 || (out_is_c && &x.tensor == &args.c)) continue;
    if (!provably_disjoint(args.out, x.tensor)) {
      wrong("out: shares memory with ", x.name, ", or cannot be shown not to; out may be exactly c and otherwise ",
            "must not overlap an input: give it memory of its own");
    }
  }
}

// Folds the batch into M where that is one GEMM of batch * M rows, then fills in the layouts.
void set_layouts(const GemmArgs& args, const Shape& s, CheckedGemm& checked) {
  Problem& p = checked.problem;
  const bool reads_c = p.beta != ScalarClass::zero;
  const int64_t d_columns = args.gate_gradient ? 2 * s.n : s.n;
  View a = view_of(args.a, s.batch, s.m, s.k);
  View b = view_of(args.b, s.batch, s.k, s.b_columns);
  View c = reads_c ? view_of(args.c, s.batch, s.m, d_columns) : packed_view(s.batch, s.m, s.n);
  View d = args.has_out ? view_of(args.out, s.batch, s.m, s.n) : packed_view(s.batch, s.m, d_columns);
  const bool reads_ab = p.k != 0;
  if (args.b.ndim == 2 && (!reads_ab || a.collapses()) && d.collapses() && c.collapses()) {
    a.collapse();
    b.batch = 1;
    c.collapse();
    d.collapse();
  }
  if (args.gated && d.batch > 1 && d.rows != 0 && d.cols != 0) {
    unsupported("a: shape ", shape_string(args.a), " has strides (", args.a.strides[0], ", ", args.a.strides[1], ", ",
                args.a.strides[2], "), so that batch and M are not one dimension, as gemm_gated needs them; pass ",
                "a.contiguous()");
  }
  p.batch = d.batch;
  p.m = d.rows;
  p.n = s.n;
  if (p.m == 0 || p.n == 0 || p.batch == 0) {  // nothing is read or written: no stride decides anything
    a = packed_view(1, p.m, p.k);
    b = packed_view(1, p.k, p.b_columns());
    c = d = packed_view(1, p.m, d_columns);
  }
  p.a = reads_ab ? canonical(Operand::a, a, args.a.dtype, args.a.data) : unread(Operand::a, args.a.dtype);
  p.b = reads_ab ? canonical(Operand::b, b, args.b.dtype, args.b.data) : unread(Operand::b, args.b.dtype);
  if (reads_c) p.c = canonical(Operand::c_or_d, c, args.c.dtype, args.c.data);
  p.d = canonical(Operand::c_or_d, d, checked.d_dtype, args.has_out ? args.out.data : 0);
}

}  // namespace

std::string shape_string(const TensorDesc& t) {
  std::string text = "(";
  for (int i = 0; i < std::min(t.ndim, kMaxDims); ++i) (text += i == 0 ? "" : ", ") += std::to_string(t.sizes[i]);
  if (t.ndim > kMaxDims) text += ", ...";
  return text += t.ndim == 1 ? ",)" : ")";
}

CheckedGemm check_gemm(const GemmArgs& args) {
  CheckedGemm checked;
  Problem& p = checked.problem;
  p.gated = args.gated;
  p.aux = args.aux;
  p.gate_gradient = args.gate_gradient;
  check_scaling(args);
  check_form(args);
  check_dtypes(args);
  check_devices(args);
  const Shape s = check_shapes(args.a, args.b, args.gated);
  checked.d_dtype = check_out_dtype(args);
  checked.d_ndim = s.has_batch ? 3 : 2;
  const int64_t d_columns = args.gate_gradient ? 2 * s.n : s.n;
  checked.d_sizes = s.has_batch ? std::array{s.batch, s.m, d_columns} : std::array{s.m, d_columns, int64_t{0}};
  check_scalars(args, checked);
  check_activation(args.activation, args.activation_args, args.gated || args.gate_gradient, p.activation,
                   checked.activation_args);
  check_precision_and_numerics(args, p);
  check_requests(args, p);
  if (args.gate_gradient) check_z(args, s);
  if (args.c.present() && !args.gate_gradient) check_c(args.c, checked.d_dtype, s);
  if (args.bias.present()) check_bias(args, s, p);
  check_extents(args);
  if (args.has_out) check_out(args, checked);

  // An empty sum is 0 whatever alpha is, NaN included, and alpha = 0 asks for no sum.
  p.k = checked.alpha == 0.0f ? 0 : s.k;
  if (p.k == 0) {
    checked.alpha = 0.0f;
    p.precision = Precision::ieee;  // nothing is multiplied
  }
  p.alpha = classify(checked.alpha);
  p.beta = classify(checked.beta);
  set_layouts(args, s, checked);
  check_cuts_of_batch_invariant(p);

  if (args.has_out) {
    const bool same = out_is_c(args, s);
    check_overlap(args, same);
    p.accumulate_in_place = same && p.has_c();
  }
  return checked;
}

CheckedBackward check_activation_backward(const BackwardArgs& args) {
  const TensorDesc &grad = args.grad, &saved = args.saved;
  const char* const saved_name = args.gated ? "z" : "saved";
  if (!is_input_dtype(saved.dtype)) {
    unsupported(saved_name, ": dtype is ", torch_name(saved.dtype),
                " but the backward of an activation takes float32, float16 and bfloat16; convert grad and ",
                saved_name);
  }
  if (grad.dtype != saved.dtype) {
    wrong("grad: dtype is ", torch_name(grad.dtype), " but ", saved_name, "'s is ", torch_name(saved.dtype),
          ": both must be the same; convert grad with .to(", saved_name, ".dtype)");
  }
  if (saved.device_type == DeviceType::other) {
    unsupported(saved_name, ": is on ", device_string(saved),
                "; the backward of an activation runs on cuda and on cpu");
  }
  const bool same_index = grad.device_index == saved.device_index || saved.device_type != DeviceType::cuda;
  if (grad.device_type != saved.device_type || !same_index) {
    wrong("grad: is on ", device_string(grad), " but ", saved_name, " is on ", device_string(saved),
          ": both must be on one device; move grad with .to(", saved_name, ".device)");
  }
  if (saved.ndim != 2 && saved.ndim != 3) {
    wrong(saved_name, ": is ", saved.ndim, "-D, shape ", shape_string(saved), ", but it is (M, ",
          args.gated ? "2 N) or (batch, M, 2 N)" : "N) or (batch, M, N)", "; reshape it");
  }
  const int64_t columns = saved.sizes[saved.ndim - 1];
  if (args.gated && columns % 2 != 0) {
    wrong("z: has ", columns, " columns, an odd number, but it is (M, 2 N), the columns gate | up; pass what ",
          "gemm_gated_aux returned");
  }
  CheckedBackward checked;
  checked.gated = args.gated;
  checked.n = args.gated ? columns / 2 : columns;
  checked.m = saved.sizes[saved.ndim - 2];
  checked.batch = saved.ndim == 3 ? saved.sizes[0] : 1;
  std::array<int64_t, kMaxDims> wanted = saved.sizes;
  wanted[saved.ndim - 1] = checked.n;
  if (grad.ndim != saved.ndim || !std::equal(wanted.begin(), wanted.begin() + saved.ndim, grad.sizes.begin())) {
    wrong("grad: shape is ", shape_string(grad), " but ", saved_name, "'s is ", shape_string(saved), ": grad has ",
          args.gated ? "D's shape, with half as many columns" : "the same shape", "; expand or reshape it");
  }
  for (const Argument& x : {Argument{"grad", grad}, Argument{saved_name, saved}}) {
    if (!fits(checked.batch, checked.m, columns) || byte_extent(x.tensor) < 0) {
      wrong(x.name, ": its sizes ", shape_string(x.tensor), " and strides span more than 2^63 bytes; split the call");
    }
  }
  check_activation(args.activation, args.activation_args, args.gated, checked.activation, checked.activation_args);
  checked.dtype = saved.dtype;
  checked.ndim = saved.ndim;
  std::copy_n(saved.sizes.begin(), saved.ndim, checked.dz_sizes.begin());

  View g = view_of(grad, checked.batch, checked.m, checked.n);
  View z = view_of(saved, checked.batch, checked.m, columns);
  if (!checked.empty() && g.collapses() && z.collapses()) {
    g.collapse();
    z.collapse();
    checked.batch = 1;
    checked.m = g.rows;
  }
  checked.grad = {reinterpret_cast<const void*>(grad.data), g.batch_stride, g.row_stride, g.col_stride};
  checked.saved = {reinterpret_cast<const void*>(saved.data), z.batch_stride, z.row_stride, z.col_stride};
  return checked;
}

}  // namespace gemmx
