// Baselines that only benchmarks use: cuBLASLt's heuristics one by one, a streaming read, the rate of mma.sync.
#include "bindings/bindings.h"
#include "core/device.h"
#ifdef GEMMX_HAS_CUDA
#include "kernels/cublaslt/baseline.h"
#include "kernels/mma_rate/mma_rate.h"
#include "kernels/stream_read/stream_read.h"
#endif

namespace gemmx::bindings {

void bind_bench(py::module_& m) {
#ifdef GEMMX_HAS_CUDA
  m.def(
      "lt_baseline",
      [](const Problem& problem, uintptr_t a, uintptr_t b, uintptr_t d, uintptr_t workspace, int64_t workspace_bytes,
         uintptr_t stream, int index) {
        Operands operands;
        operands.a = reinterpret_cast<const void*>(a);
        operands.b = reinterpret_cast<const void*>(b);
        operands.d = reinterpret_cast<void*>(d);
        return cublaslt::run_baseline(problem, operands, Workspace{reinterpret_cast<void*>(workspace), workspace_bytes},
                                      reinterpret_cast<Stream>(stream), index);
      },
      py::arg("problem"), py::arg("a_ptr"), py::arg("b_ptr"), py::arg("d_ptr"), py::arg("workspace_ptr"),
      py::arg("workspace_bytes"), py::arg("stream"), py::arg("index"),
      "Launches cuBLASLt's index-th heuristic of 16 for the problem; False when it has no such one.");
  m.def(
      "stream_read",
      [](uintptr_t data, int64_t bytes, uintptr_t sink, int sm_count, int variant, uintptr_t stream) {
        stream_read(reinterpret_cast<const void*>(data), bytes, reinterpret_cast<void*>(sink), sm_count, variant,
                    reinterpret_cast<Stream>(stream));
      },
      py::arg("data_ptr"), py::arg("bytes"), py::arg("sink_ptr"), py::arg("sm_count"), py::arg("variant"),
      py::arg("stream"), "Reads the bytes once: the floor of every kernel that must read them.");
  m.def("stream_read_variants", &stream_read_variants);
  m.def(
      "mma_rate",
      [](int iterations, uintptr_t sink, int sm_count, uintptr_t stream) {
        mma_rate(iterations, reinterpret_cast<void*>(sink), sm_count, reinterpret_cast<Stream>(stream));
      },
      py::arg("iterations"), py::arg("sink_ptr"), py::arg("sm_count"), py::arg("stream"),
      "mma.sync on every SM from registers alone: the ceiling of every kernel that multiplies by it.");
  m.def("mma_rate_flops", &mma_rate_flops, "FLOPs of one SM in one iteration of mma_rate.");
#else
  (void)m;
#endif
}

}  // namespace gemmx::bindings
