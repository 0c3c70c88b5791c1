#include "bindings/bindings.h"
#include "core/device.h"
#include "core/numerics.h"
#include "core/registry.h"
#include "core/splits.h"

namespace gemmx::bindings {
namespace {

std::optional<Major> parse_major(std::string_view text) {
  for (const Major m : {Major::none, Major::k, Major::m, Major::n}) {
    if (name(m) == text) return m;
  }
  return std::nullopt;
}
std::optional<ScalarClass> parse_scalar_class(std::string_view text) {
  for (const ScalarClass s : {ScalarClass::zero, ScalarClass::one, ScalarClass::other}) {
    if (name(s) == text) return s;
  }
  return std::nullopt;
}

// A read-write property whose Python side is the enumerator's name.
template <typename Class, typename Enum>
void def_enum(py::class_<Class>& cls, const char* field, Enum Class::* member,
              std::optional<Enum> (*parse_name)(std::string_view)) {
  cls.def_property(
      field, [member](const Class& self) { return std::string(name(self.*member)); },
      [member, field, parse_name](Class& self, const std::string& text) {
        self.*member = parse(parse_name(text), field, text);
      });
}

std::string kernel_name(int index) { return index < 0 ? std::string() : kernel_specs()[index].name; }

int kernel_index(const std::string& text) {
  const int index = text.empty() ? -1 : find_kernel(text);
  if (index < 0 && !text.empty()) throw std::invalid_argument("kernel: there is no kernel named '" + text + "'");
  return index;
}

void bind_matrix(py::module_& m) {
  py::class_<Matrix> cls(m, "Matrix", "Layout of one operand; strides in elements, canonical.");
  cls.def(py::init<>())
      .def_readwrite("row_stride", &Matrix::row_stride)
      .def_readwrite("col_stride", &Matrix::col_stride)
      .def_readwrite("batch_stride", &Matrix::batch_stride)
      .def_readwrite("pointer_align", &Matrix::pointer_align)
      .def_property_readonly("leading_dimension", &Matrix::leading_dimension)
      .def_property_readonly("vector_bytes", [](const Matrix& x) { return vector_bytes(x); });
  def_enum(cls, "dtype", &Matrix::dtype, &parse_dtype);
  def_enum(cls, "major", &Matrix::major, &parse_major);
}

void bind_problem_class(py::module_& m) {
  py::class_<Problem> cls(m, "Problem", "Everything that selection may depend on; see csrc/core/problem.h.");
  cls.def(py::init<>())
      .def_readwrite("m", &Problem::m)
      .def_readwrite("n", &Problem::n)
      .def_readwrite("k", &Problem::k)
      .def_readwrite("batch", &Problem::batch)
      .def_readwrite("a", &Problem::a)
      .def_readwrite("b", &Problem::b)
      .def_readwrite("c", &Problem::c)
      .def_readwrite("d", &Problem::d)
      .def_readwrite("bias_stride", &Problem::bias_stride)
      .def_readwrite("bias_align", &Problem::bias_align)
      .def_readwrite("splits", &Problem::splits)
      .def_readwrite("accumulate_in_place", &Problem::accumulate_in_place)
      .def_readwrite("gated", &Problem::gated)
      .def_readwrite("aux", &Problem::aux)
      .def_readwrite("gate_gradient", &Problem::gate_gradient)
      .def_property_readonly("b_columns", &Problem::b_columns)
      .def_property_readonly("d_columns", &Problem::d_columns)
      .def_property(
          "kernel", [](const Problem& p) { return kernel_name(p.kernel); },
          [](Problem& p, const std::string& text) { p.kernel = kernel_index(text); })
      .def("copy", [](const Problem& p) { return p; })
      .def("__eq__", [](const Problem& p, const Problem& q) { return p == q; })
      .def("__hash__", [](const Problem& p) { return hash(p) >> 1; })
      .def("__str__", [](const Problem& p) { return to_string(p); })
      .def("__repr__", [](const Problem& p) { return "Problem(" + to_string(p) + ")"; });
  def_enum(cls, "bias_dtype", &Problem::bias_dtype, &parse_dtype);
  def_enum(cls, "alpha", &Problem::alpha, &parse_scalar_class);
  def_enum(cls, "beta", &Problem::beta, &parse_scalar_class);
  def_enum(cls, "activation", &Problem::activation, &parse_activation);
  def_enum(cls, "precision", &Problem::precision, &parse_precision);
  def_enum(cls, "numerics", &Problem::numerics, &parse_numerics);
  def_enum(cls, "schedule", &Problem::schedule, &parse_schedule);
}

Plan make_plan(const std::string& kernel, const std::string& schedule, int splits, const std::string& raster,
               int swizzle) {
  Plan p;
  p.kernel = kernel_index(kernel);
  p.schedule = parse(parse_schedule(schedule), "schedule", schedule);
  p.splits = splits;
  p.raster = parse(parse_raster_order(raster), "raster", raster);
  p.swizzle = swizzle;
  return p;
}

py::dict plan_to_dict(const Plan& p) {
  py::dict d;
  d["kernel"] = kernel_name(p.kernel);
  d["schedule"] = std::string(name(p.schedule));
  d["splits"] = p.splits;
  d["raster"] = std::string(name(p.raster));
  d["swizzle"] = p.swizzle;
  if (p.algo_version != 0) {
    d["algo"] = p.algo;
    d["algo_version"] = p.algo_version;
  }
  return d;
}

Plan plan_from_dict(const py::dict& d) {
  Plan p = make_plan(d["kernel"].cast<std::string>(), d["schedule"].cast<std::string>(), d["splits"].cast<int>(),
                     d["raster"].cast<std::string>(), d["swizzle"].cast<int>());
  if (d.contains("algo_version")) {
    p.algo = d["algo"].cast<std::array<uint64_t, 8>>();
    p.algo_version = d["algo_version"].cast<uint64_t>();
  }
  return p;
}

void bind_plan(py::module_& m) {
  py::class_<Plan> cls(m, "Plan", "How one Problem runs.");
  cls.def(py::init(&make_plan), py::arg("kernel"), py::arg("schedule") = "data_parallel", py::arg("splits") = 1,
          py::arg("raster") = "along_m", py::arg("swizzle") = 1)
      .def_property(
          "kernel", [](const Plan& p) { return kernel_name(p.kernel); },
          [](Plan& p, const std::string& text) { p.kernel = kernel_index(text); })
      .def_readwrite("splits", &Plan::splits)
      .def_readwrite("swizzle", &Plan::swizzle)
      .def_readwrite("algo", &Plan::algo)
      .def_readwrite("algo_version", &Plan::algo_version)
      .def("to_dict", &plan_to_dict)
      .def_static("from_dict", &plan_from_dict)
      .def("__eq__", [](const Plan& p, const Plan& q) { return p == q; })
      .def("__str__", [](const Plan& p) { return to_string(p); })
      .def("__repr__", [](const Plan& p) { return "Plan(" + to_string(p) + ")"; });
  def_enum(cls, "schedule", &Plan::schedule, &parse_schedule);
  def_enum(cls, "raster", &Plan::raster, &parse_raster_order);
}

void bind_device(py::module_& m) {
  py::class_<Device>(m, "Device", "What selection needs to know of a GPU; see csrc/core/device.h.")
      .def(py::init([](std::string device_name, int capability, int sm_count, int smem_per_block, int smem_per_sm,
                       int64_t l2_bytes, double clock_ghz, double dram_gbps) {
             return Device{std::move(device_name),
                           capability,
                           sm_count,
                           smem_per_block,
                           smem_per_sm,
                           l2_bytes,
                           clock_ghz,
                           dram_gbps};
           }),
           py::kw_only(), py::arg("name"), py::arg("capability"), py::arg("sm_count"), py::arg("smem_per_block"),
           py::arg("smem_per_sm"), py::arg("l2_bytes"), py::arg("clock_ghz"), py::arg("dram_gbps"))
      .def_readonly("name", &Device::name)
      .def_readonly("capability", &Device::capability)
      .def_readonly("sm_count", &Device::sm_count)
      .def_readonly("smem_per_block", &Device::smem_per_block)
      .def_readonly("smem_per_sm", &Device::smem_per_sm)
      .def_readonly("l2_bytes", &Device::l2_bytes)
      .def_readonly("clock_ghz", &Device::clock_ghz)
      .def_readonly("dram_gbps", &Device::dram_gbps)
      .def("__repr__", [](const Device& d) { return "Device(" + d.name + ")"; });
  m.def("cuda_device", &cuda_device, py::arg("ordinal"), "The CUDA device with this ordinal; initialises CUDA.");
}

}  // namespace

void bind_problem(py::module_& m) {
  bind_matrix(m);
  bind_problem_class(m);
  bind_plan(m);
  bind_device(m);
  m.def("cut_begin", &cut_begin, py::arg("k"), py::arg("element_bytes"), py::arg("i"), py::arg("s"));
  m.def("max_splits", &max_splits, py::arg("k"), py::arg("element_bytes"));
  m.def("splits_for", &splits_for, py::arg("n"), py::arg("k"), py::arg("element_bytes"),
        "The cuts of K that numerics batch_invariant takes, for every M.");
  m.def(
      "batch_invariant_class", [](int capability) { return std::string(name(batch_invariant_class(capability))); },
      py::arg("capability"),
      "The numerics class whose kernels alone serve batch_invariant on devices of this compute capability.");
}

}  // namespace gemmx::bindings
