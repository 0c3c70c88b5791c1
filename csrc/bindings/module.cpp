#include "bindings/bindings.h"
#include "bindings/testing.h"
#include "core/build_info.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "Host side of gemmx: problems, plans, kernel specs, checks, the selector hook. No torch inside.";
  gemmx::bindings::bind_problem(m);
  gemmx::bindings::bind_checks(m);
  gemmx::bindings::bind_registry(m);
  gemmx::bindings::bind_bench(m);
  gemmx::bindings::bind_testing(m);

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
