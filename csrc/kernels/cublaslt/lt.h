// libcublasLt, loaded at run time: the library is torch's own, and gemmx loads on machines without it.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <string_view>

namespace gemmx::cublaslt {

// The functions in use, named as in cublasLt.h without the prefix.
struct Library {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtGetVersion) get_version;
  decltype(&cublasLtGetStatusString) get_status_string;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoCheck) algo_check;
  decltype(&cublasLtMatmulAlgoGetHeuristic) algo_get_heuristic;
  decltype(&cublasLtMatmulDescInit_internal) matmul_desc_init;
  decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set_attribute;
  decltype(&cublasLtMatrixLayoutInit_internal) matrix_layout_init;
  decltype(&cublasLtMatrixLayoutSetAttribute) matrix_layout_set_attribute;
  decltype(&cublasLtMatmulPreferenceInit_internal) preference_init;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set_attribute;
};

// Loaded on the first call. Throws std::runtime_error where there is no libcublasLt.
const Library& library();

// The handle of the current device, created on the first call and kept for the life of the process. Allowed
// while the thread captures a graph. Thread-safe, as is the handle.
cublasLtHandle_t current_handle();

// The ordinal of the current device.
int current_device();

// Throws std::runtime_error "<what> failed: <cuBLAS's text>" unless the status is success.
void check(cublasStatus_t status, std::string_view what);

}  // namespace gemmx::cublaslt
