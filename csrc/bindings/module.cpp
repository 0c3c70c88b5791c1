#include "bindings/bindings.h"
#include "bindings/testing.h"
#include "core/build_info.h"
#include "core/nested_call.h"
#include "core/out_of_memory.h"

namespace gemmx::bindings {
namespace {

// torch.OutOfMemoryError; never released, because an op may fail until the process ends.
PyObject* out_of_memory_class = nullptr;

// To C++ a std::runtime_error that holds no Python object and so may cross torch without the interpreter's lock.
// torch's pybind11, like every one, asks a builtin_exception to set the Python error.
class OutOfMemory final : public py::builtin_exception {
 public:
  using py::builtin_exception::builtin_exception;
  void set_error() const override { PyErr_SetString(out_of_memory_class, what()); }
};

void set_out_of_memory_class(const py::object& cls) {
  if (PyExceptionClass_Check(cls.ptr()) == 0) throw py::type_error("cls: must be an exception class");
  out_of_memory_class = py::object(cls).release().ptr();
  set_out_of_memory([](const std::string& message) { throw OutOfMemory(message); });
}

// A Python exception on its way through C++ that must not need the interpreter's lock to copy or drop it.
class PythonError final : public py::builtin_exception {
 public:
  explicit PythonError(const py::object& error)
      : py::builtin_exception(py::str(error)), error_(new py::object(error), [](py::object* held) {
          const py::gil_scoped_acquire gil;
          delete held;
        }) {}
  void set_error() const override {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error_->ptr())), error_->ptr());
  }

 private:
  std::shared_ptr<py::object> error_;
};

void keep_python_error(const py::object& error) {
  if (PyExceptionInstance_Check(error.ptr()) == 0) throw py::type_error("error: must be an exception");
  keep_error(std::make_exception_ptr(PythonError(error)));
}

}  // namespace
}  // namespace gemmx::bindings

PYBIND11_MODULE(_C, m) {
  m.doc() = "Host side of gemmx: problems, plans, kernel specs, checks, the selector hook. No torch inside.";
  gemmx::bindings::bind_problem(m);
  gemmx::bindings::bind_checks(m);
  gemmx::bindings::bind_registry(m);
  gemmx::bindings::bind_bench(m);
  gemmx::bindings::bind_testing(m);

  m.def("set_out_of_memory_class", &gemmx::bindings::set_out_of_memory_class, pybind11::arg("cls"),
        "The exception class of an op for which torch has no memory.");
  m.def("keep_error", &gemmx::bindings::keep_python_error, pybind11::arg("error"),
        "For a Python kernel that an op of the library may call: its exception, for the op to raise it again.");
  m.def("version", [] { return std::string(gemmx::version()); });
  m.def(
      "source_hash", [] { return std::string(gemmx::source_hash()); },
      "Hash of the sources this library was built from (cmake/source_hash.py computes the checkout's).");
  m.def(
      "build_archs",
      [] {
        pybind11::list archs;
        std::string text(gemmx::build_archs());
        for (size_t begin = 0; begin < text.size() && text != "none";) {
          const size_t end = std::min(text.find(';', begin), text.size());
          archs.append(text.substr(begin, end - begin));
          begin = end + 1;
        }
        return pybind11::tuple(archs);
      },
      "Architectures with code in this library, such as ('80', '90a'); () for GEMMX_CUDA_ARCHS=none.");
}
