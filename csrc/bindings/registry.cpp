#include "core/registry.h"

#include "bindings/bindings.h"
#include "core/numerics.h"
#include "core/plan_cache.h"

namespace gemmx::bindings {
namespace {

py::tuple schedules(const KernelSpec& s) {
  py::list names;
  if (s.data_parallel) names.append(std::string(name(Schedule::data_parallel)));
  if (s.split_k) names.append(std::string(name(Schedule::split_k)));
  if (s.stream_k) names.append(std::string(name(Schedule::stream_k)));
  return py::tuple(names);
}

int index_of(const std::string& kernel_name) {
  const int index = find_kernel(kernel_name);
  if (index < 0) throw std::invalid_argument("kernel: there is no kernel named '" + kernel_name + "'");
  return index;
}

// Python's choice as a C++ Selector. It may be called from any thread; a Python exception becomes one
// sentence, because an exception that holds Python objects must not travel through torch without the GIL.
class PythonSelector {
 public:
  explicit PythonSelector(py::function fn)
      : fn_(new py::function(std::move(fn)), [](py::function* f) {
          const py::gil_scoped_acquire gil;
          delete f;
        }) {}

  Plan operator()(const Problem& problem, const Device& device) const {
    const py::gil_scoped_acquire gil;
    try {
      return (*fn_)(problem, device).cast<Plan>();
    } catch (py::error_already_set& error) {
      const bool value_error = error.matches(PyExc_ValueError);
      const std::string text = py::str(error.value());
      if (value_error) throw std::invalid_argument(text);
      throw std::runtime_error(text);
    }
  }

 private:
  std::shared_ptr<py::function> fn_;
};

void bind_spec(py::module_& m) {
  const auto dtype = [](DType KernelSpec::* member) {
    return [member](const KernelSpec& s) { return std::string(name(s.*member)); };
  };
  const auto major = [](Major KernelSpec::* member) {
    return [member](const KernelSpec& s) { return std::string(name(s.*member)); };
  };
  py::class_<KernelSpec, std::unique_ptr<KernelSpec, py::nodelete>>(
      m, "KernelSpec", "A row of the registry; see csrc/core/kernel_spec.h.")
      .def_property_readonly("name", [](const KernelSpec& s) { return std::string(s.name); })
      .def_property_readonly("family", [](const KernelSpec& s) { return std::string(s.family); })
      .def_readonly("min_capability", &KernelSpec::min_capability)
      .def_readonly("max_capability", &KernelSpec::max_capability)
      .def_property_readonly("dtype_a", dtype(&KernelSpec::dtype_a))
      .def_property_readonly("dtype_b", dtype(&KernelSpec::dtype_b))
      .def_property_readonly("dtype_acc", dtype(&KernelSpec::dtype_acc))
      .def_property_readonly("dtype_d", dtype(&KernelSpec::dtype_d))
      .def_property_readonly("major_a", major(&KernelSpec::major_a))
      .def_property_readonly("major_b", major(&KernelSpec::major_b))
      .def_property_readonly("tile", [](const KernelSpec& s) { return py::make_tuple(s.tile.m, s.tile.n, s.tile.k); })
      .def_property_readonly("cluster",
                             [](const KernelSpec& s) { return py::make_tuple(s.cluster.m, s.cluster.n, s.cluster.k); })
      .def_readonly("stages", &KernelSpec::stages)
      .def_property_readonly("mma", [](const KernelSpec& s) { return std::string(s.mma); })
      .def_property_readonly("numerics", [](const KernelSpec& s) { return std::string(name(s.numerics)); })
      .def_readonly("threads", &KernelSpec::threads)
      .def_readonly("smem_bytes", &KernelSpec::smem_bytes)
      .def_readonly("priority", &KernelSpec::priority)
      .def_readonly("teaching", &KernelSpec::teaching)
      .def_property_readonly("custom_function", &has_custom_function)
      .def_readonly("swap_ab", &KernelSpec::swap_ab)
      .def_readonly("gated", &KernelSpec::gated)
      .def_readonly("aux", &KernelSpec::aux)
      .def_readonly("gate_gradient", &KernelSpec::gate_gradient)
      .def_property_readonly("has_form", &KernelSpec::has_form)
      .def_property_readonly("schedules", &schedules)
      .def_property_readonly("adds_cuts_itself", &adds_cuts_itself,
                             "Whether data_parallel may have splits under batch_invariant: a CTA adds them up itself.")
      .def("__repr__", [](const KernelSpec& s) { return "KernelSpec(" + std::string(s.name) + ")"; });
}

void bind_selection(py::module_& m) {
  m.def(
      "set_selector",
      [](const std::optional<py::function>& fn) {
        Selector selector;
        if (fn) selector = PythonSelector(*fn);
        const py::gil_scoped_release release;  // the old selector's destructor takes the GIL itself
        set_selector(std::move(selector));
      },
      py::arg("selector"), "fn(Problem, Device) -> Plan, called once per Problem and device; None: the default.");
  m.def("select", &select, py::arg("problem"), py::arg("device"), py::call_guard<py::gil_scoped_release>());
  m.def("select_by_priority", &select_by_priority, py::arg("problem"), py::arg("device"),
        "The supported and built kernel of highest priority, ties by name.");
  m.def("check_plan", &check_plan, py::arg("plan"), py::arg("problem"), py::arg("device"),
        "'' when the plan can run the problem on the device, built or not; otherwise what is wrong with the plan.");
  m.def(
      "form_supported", [](const Problem& p, const Device& d) { return !takes_two_steps(p, d); }, py::arg("problem"),
      py::arg("device"),
      "Whether one kernel computes the problem's form (gated, aux, gate_gradient), or must, as it is named. Otherwise "
      "the "
      "call takes two steps: the kernel of plain_problem(problem) and an elementwise one.");
  m.def("plain_problem", &plain_problem, py::arg("problem"),
        "The product that the first of two steps computes: Z in float32 without an activation, or the dH of a gate.");
  m.def("plan_cache_info", [] {
    const PlanCacheInfo info = plan_cache_info();
    py::dict d;
    d["hits"] = info.hits;
    d["misses"] = info.misses;
    d["size"] = info.size;
    d["capacity"] = info.capacity;
    return d;
  });
  m.def("clear_plan_cache", &clear_plan_cache);
}

}  // namespace

void bind_registry(py::module_& m) {
  bind_spec(m);
  bind_selection(m);
  m.def("kernels", [] {
    py::list list;
    for (const KernelSpec& s : kernel_specs()) list.append(py::cast(&s, py::return_value_policy::reference));
    return list;
  });
  m.def(
      "supports",
      [](const std::string& kernel_name, const Problem& p, const Device& d) {
        const KernelSpec& spec = kernel_specs()[index_of(kernel_name)];
        return spec.supports(spec, p, d);
      },
      py::arg("kernel"), py::arg("problem"), py::arg("device"),
      "'' when the kernel can run the problem on the device, built or not; otherwise the reason.");
  m.def(
      "built_for",
      [](const std::string& kernel_name, int capability) { return built_for(index_of(kernel_name), capability); },
      py::arg("kernel"), py::arg("capability"));
  m.def(
      "workspace_size",
      [](const std::string& kernel_name, const Problem& p, const Plan& plan, const Device& d) {
        return workspace_size(index_of(kernel_name), p, plan, d);
      },
      py::arg("kernel"), py::arg("problem"), py::arg("plan"), py::arg("device"), "Bytes.");
  m.def("launch_counts", [] {
    py::dict counts;
    const std::vector<uint64_t> values = launch_counts();
    for (size_t i = 0; i < values.size(); ++i) counts[kernel_specs()[i].name] = values[i];
    return counts;
  });
  m.def("reset_launch_counts", &reset_launch_counts);
}

}  // namespace gemmx::bindings
