#include "core/checks.h"

#include "bindings/bindings.h"

namespace gemmx::bindings {
namespace {

std::optional<DeviceType> parse_device_type(std::string_view text) {
  if (text == "cpu") return DeviceType::cpu;
  if (text == "cuda") return DeviceType::cuda;
  if (text == "meta") return DeviceType::meta;
  return DeviceType::other;
}

// `data` is the address of the first element, 0 for a tensor that has none (fake, meta).
TensorDesc make_tensor(const std::string& dtype, const std::string& device_type, int device_index,
                       const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, uintptr_t data) {
  if (sizes.size() > kMaxDims) {
    throw std::invalid_argument("got a tensor of " + std::to_string(sizes.size()) +
                                " dimensions, an operand has at most 3");
  }
  if (sizes.size() != strides.size()) throw std::invalid_argument("sizes and strides differ in length");
  TensorDesc t;
  t.dtype = parse_dtype(dtype).value_or(DType::other);
  t.device_type = *parse_device_type(device_type);
  t.device_index = device_index;
  t.ndim = static_cast<int>(sizes.size());
  std::copy(sizes.begin(), sizes.end(), t.sizes.begin());
  std::copy(strides.begin(), strides.end(), t.strides.begin());
  t.data = data;
  return t;
}

using OptionalDesc = std::optional<TensorDesc>;
using OptionalText = std::optional<std::string>;

CheckedGemm check(const TensorDesc& a, const TensorDesc& b, const OptionalDesc& c, const OptionalDesc& bias,
                  const OptionalDesc& scale_a, const OptionalDesc& scale_b, const OptionalDesc& scale_d,
                  const OptionalDesc& out, double alpha, double beta, const OptionalText& activation,
                  const std::optional<std::vector<double>>& activation_args, const OptionalText& out_dtype,
                  const OptionalText& precision, const OptionalText& numerics, const OptionalText& schedule,
                  int64_t splits, const OptionalText& kernel, bool gated, bool aux, bool gate_gradient) {
  GemmArgs args;
  args.gated = gated;
  args.aux = aux;
  args.gate_gradient = gate_gradient;
  args.a = a;
  args.b = b;
  args.c = c.value_or(TensorDesc{});
  args.bias = bias.value_or(TensorDesc{});
  args.scale_a = scale_a.value_or(TensorDesc{});
  args.scale_b = scale_b.value_or(TensorDesc{});
  args.scale_d = scale_d.value_or(TensorDesc{});
  args.has_out = out.has_value();
  args.out = out.value_or(TensorDesc{});
  args.alpha = alpha;
  args.beta = beta;
  const auto view = [](const OptionalText& s) { return s ? std::string_view(*s) : std::string_view(); };
  args.activation = view(activation);
  if (activation_args) args.activation_args = *activation_args;
  if (out_dtype) args.out_dtype = parse_dtype(*out_dtype).value_or(DType::other);
  args.precision = view(precision);
  args.numerics = view(numerics);
  args.schedule = view(schedule);
  args.splits = splits;
  args.kernel = view(kernel);
  return check_gemm(args);
}

CheckedBackward check_backward(const TensorDesc& grad, const TensorDesc& saved, const OptionalText& activation,
                               const std::optional<std::vector<double>>& activation_args, bool gated) {
  BackwardArgs args;
  args.grad = grad;
  args.saved = saved;
  args.gated = gated;
  if (activation) args.activation = *activation;
  if (activation_args) args.activation_args = *activation_args;
  return check_activation_backward(args);
}

py::tuple sizes_tuple(const std::array<int64_t, 3>& sizes, int ndim) {
  py::tuple tuple(ndim);
  for (int i = 0; i < ndim; ++i) tuple[i] = sizes[i];
  return tuple;
}

}  // namespace

void bind_checks(py::module_& m) {
  py::class_<TensorDesc>(m, "TensorDesc", "A tensor as the checks see it.")
      .def(py::init(&make_tensor), py::arg("dtype"), py::arg("device_type"), py::arg("device_index"), py::arg("sizes"),
           py::arg("strides"), py::arg("data") = 0)
      .def("__repr__", [](const TensorDesc& t) { return "TensorDesc" + shape_string(t); });

  py::class_<CheckedGemm>(m, "Checked", "A call that passed the checks.")
      .def_readonly("problem", &CheckedGemm::problem)
      .def_property_readonly("d_sizes", [](const CheckedGemm& c) { return sizes_tuple(c.d_sizes, c.d_ndim); })
      .def_property_readonly("z_sizes",
                             [](const CheckedGemm& c) {
                               std::array<int64_t, 3> sizes = c.d_sizes;
                               sizes[c.d_ndim - 1] = c.z_columns();
                               return sizes_tuple(sizes, c.d_ndim);
                             })
      .def_property_readonly("d_dtype", [](const CheckedGemm& c) { return std::string(name(c.d_dtype)); })
      .def_readonly("alpha", &CheckedGemm::alpha)
      .def_readonly("beta", &CheckedGemm::beta)
      .def_property_readonly(
          "activation_args",
          [](const CheckedGemm& c) { return py::make_tuple(c.activation_args[0], c.activation_args[1]); })
      .def_property_readonly("empty", &CheckedGemm::empty);

  m.def("check_gemm", &check, py::arg("a"), py::arg("b"), py::arg("c") = py::none(), py::arg("bias") = py::none(),
        py::arg("scale_a") = py::none(), py::arg("scale_b") = py::none(), py::arg("scale_d") = py::none(),
        py::kw_only(), py::arg("out") = py::none(), py::arg("alpha") = 1.0, py::arg("beta") = 1.0,
        py::arg("activation") = py::none(), py::arg("activation_args") = py::none(), py::arg("out_dtype") = py::none(),
        py::arg("precision") = py::none(), py::arg("numerics") = py::none(), py::arg("schedule") = py::none(),
        py::arg("splits") = 0, py::arg("kernel") = py::none(), py::arg("gated") = false, py::arg("aux") = false,
        py::arg("gate_gradient") = false,
        "Checks a call of gemm (gemm_out with out, gemm_gated with gated, gemm_aux and gemm_gated_aux with aux, "
        "_gated_dgrad, whose z is c, with gate_gradient) and returns its Problem. ValueError for a wrong argument, "
        "RuntimeError for what is not supported.");

  py::class_<CheckedBackward>(m, "CheckedBackward", "A call of a backward op that passed the checks.")
      .def_property_readonly("dz_sizes", [](const CheckedBackward& c) { return sizes_tuple(c.dz_sizes, c.ndim); })
      .def_property_readonly("columns", &CheckedBackward::columns)
      .def_property_readonly("dtype", [](const CheckedBackward& c) { return std::string(name(c.dtype)); })
      .def_property_readonly("activation", [](const CheckedBackward& c) { return std::string(name(c.activation)); })
      .def_property_readonly("activation_args", [](const CheckedBackward& c) {
        return py::make_tuple(c.activation_args[0], c.activation_args[1]);
      });
  m.def("check_activation_backward", &check_backward, py::arg("grad"), py::arg("saved"), py::kw_only(),
        py::arg("activation") = py::none(), py::arg("activation_args") = py::none(), py::arg("gated") = false,
        "Checks a call of activation_backward, with gated of gated_backward. Errors as check_gemm's.");
}

}  // namespace gemmx::bindings
