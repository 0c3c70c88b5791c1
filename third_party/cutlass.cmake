# CUTLASS, headers only: the environment's GEMMX_CUTLASS_DIR (a CUTLASS checkout) or pip's nvidia-cutlass. Nothing is vendored.
# Target gemmx_cutlass; its headers are system headers, so that their warnings are not ours.
set(_cutlass "$ENV{GEMMX_CUTLASS_DIR}")
if(_cutlass STREQUAL "")
  string(JSON _cutlass GET "${GEMMX_ENVIRONMENT}" cutlass)
endif()
if(NOT EXISTS "${_cutlass}/include/cutlass/version.h")
  string(JSON _requirement GET "${GEMMX_ENVIRONMENT}" cutlass_requirement)
  message(FATAL_ERROR "CUTLASS: no headers in '${_cutlass}': pip install ${_requirement}, or set GEMMX_CUTLASS_DIR "
                      "to a CUTLASS source tree.")
endif()
message(STATUS "gemmx: CUTLASS in ${_cutlass}")

add_library(gemmx_cutlass INTERFACE)
target_include_directories(gemmx_cutlass SYSTEM INTERFACE "${_cutlass}/include" "${_cutlass}/tools/util/include")
