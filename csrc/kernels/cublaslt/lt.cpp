#include "kernels/cublaslt/lt.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>

namespace gemmx::cublaslt {
namespace {

constexpr const char* kSoname = "libcublasLt.so.13";
static_assert(CUBLAS_VER_MAJOR == 13, "kSoname must carry the major version of cublasLt.h");

void* open_library() {
  // The copy that torch has loaded, whatever path it came from; failing that, the loader's search path.
  if (void* handle = dlopen(kSoname, RTLD_LAZY | RTLD_NOLOAD)) return handle;
  if (void* handle = dlopen(kSoname, RTLD_LAZY | RTLD_LOCAL)) return handle;
  throw std::runtime_error(std::string(kSoname) +
                           " was not found: import a torch built for CUDA 13, which brings it, or add its folder to "
                           "LD_LIBRARY_PATH");
}

template <class Function>
void resolve(void* handle, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, symbol));
  if (function == nullptr) {
    throw std::runtime_error(std::string(kSoname) + " has no " + symbol + ": install the cuBLAS of CUDA 13");
  }
}

Library load() {
  void* const handle = open_library();
  Library lib{};
  resolve(handle, "cublasLtCreate", lib.create);
  resolve(handle, "cublasLtGetVersion", lib.get_version);
  resolve(handle, "cublasLtGetStatusString", lib.get_status_string);
  resolve(handle, "cublasLtMatmul", lib.matmul);
  resolve(handle, "cublasLtMatmulAlgoCheck", lib.algo_check);
  resolve(handle, "cublasLtMatmulAlgoGetHeuristic", lib.algo_get_heuristic);
  resolve(handle, "cublasLtMatmulDescInit_internal", lib.matmul_desc_init);
  resolve(handle, "cublasLtMatmulDescSetAttribute", lib.matmul_desc_set_attribute);
  resolve(handle, "cublasLtMatrixLayoutInit_internal", lib.matrix_layout_init);
  resolve(handle, "cublasLtMatrixLayoutSetAttribute", lib.matrix_layout_set_attribute);
  resolve(handle, "cublasLtMatmulPreferenceInit_internal", lib.preference_init);
  resolve(handle, "cublasLtMatmulPreferenceSetAttribute", lib.preference_set_attribute);
  return lib;
}

// cublasLtCreate may allocate, which a thread that captures a graph in the default mode must not do.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

const Library& library() {
  static const Library lib = load();
  return lib;
}

int current_device() {
  int ordinal = 0;
  if (const cudaError_t error = cudaGetDevice(&ordinal); error != cudaSuccess) {
    throw std::runtime_error(std::string("cudaGetDevice failed: ") + cudaGetErrorString(error));
  }
  return ordinal;
}

cublasLtHandle_t current_handle() {
  static std::mutex mutex;
  // Never destroyed: at exit the CUDA context may be gone before static destructors run.
  static auto* const handles = new std::unordered_map<int, cublasLtHandle_t>;
  const int ordinal = current_device();
  const std::lock_guard lock(mutex);
  cublasLtHandle_t& handle = (*handles)[ordinal];
  if (handle == nullptr) {
    const RelaxedCapture relaxed;
    check(library().create(&handle), "cublasLtCreate");
  }
  return handle;
}

void check(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string(what) + " failed: " + library().get_status_string(status));
}

}  // namespace gemmx::cublaslt
