# Enables CUDA with the nvcc of the system or of pip, and makes the targets that CUDA code needs:
#   gemmx_cudart       the runtime, static, so that any torch with any CUDA 13 minor version can load the library
#   gemmx_cublaslt_header  the header cublasLt.h alone; the library is opened at run time (csrc/kernels/cublaslt)
#   gemmx_cuda_strict  warnings as errors for our own kernels
# find_package(CUDAToolkit) is not used: it does not know the layout of pip's packages.
string(JSON _nvcc GET "${GEMMX_ENVIRONMENT}" nvcc)
string(JSON _torch_cuda GET "${GEMMX_ENVIRONMENT}" torch_cuda)
string(JSON _torch_version GET "${GEMMX_ENVIRONMENT}" torch_version)
if(_nvcc STREQUAL "")
  string(JSON _requirement GET "${GEMMX_ENVIRONMENT}" nvcc_requirement)
  message(FATAL_ERROR "nvcc: none found for GEMMX_CUDA_ARCHS=${GEMMX_BUILD_ARCHS} (CUDACXX, CUDA_HOME, PATH, "
                      "/usr/local/cuda, pip): pip install '${_requirement}', or set GEMMX_CUDA_ARCHS=none.")
endif()
if(NOT _torch_cuda)
  message(FATAL_ERROR "torch: got ${_torch_version} without CUDA, GEMMX_CUDA_ARCHS=${GEMMX_BUILD_ARCHS} needs a CUDA "
                      "build of torch: install one, or set GEMMX_CUDA_ARCHS=none.")
endif()
set(CMAKE_CUDA_COMPILER "${_nvcc}" CACHE FILEPATH "nvcc" FORCE)
# CMake's compiler check wants an architecture; every target sets its own.
set(CMAKE_CUDA_ARCHITECTURES OFF)
# nvcc looks for its runtime in lib64; pip's packages have lib.
cmake_path(GET _nvcc PARENT_PATH _toolkit)
cmake_path(GET _toolkit PARENT_PATH _toolkit)
if(EXISTS "${_toolkit}/lib/libcudart_static.a" AND NOT EXISTS "${_toolkit}/lib64")
  set(ENV{NVCC_APPEND_FLAGS} "-L${_toolkit}/lib")
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
  message(FATAL_ERROR "nvcc: got ${CMAKE_CUDA_COMPILER_VERSION} (${_nvcc}), gemmx needs 12.8 or later.")
endif()

find_library(GEMMX_CUDART_STATIC cudart_static NO_DEFAULT_PATH REQUIRED
             PATHS ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} "${CMAKE_CUDA_COMPILER_TOOLKIT_LIBRARY_ROOT}/lib64"
                   "${CMAKE_CUDA_COMPILER_TOOLKIT_LIBRARY_ROOT}/lib")
add_library(gemmx_cudart INTERFACE)
target_include_directories(gemmx_cudart SYSTEM INTERFACE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
target_link_libraries(gemmx_cudart INTERFACE "${GEMMX_CUDART_STATIC}" dl pthread rt)

# pip's folder has its own copy of the whole CUDA runtime's headers, perhaps of another version than nvcc's, so it
# is searched last.
string(JSON _pip_include GET "${GEMMX_ENVIRONMENT}" pip_cuda_include)
add_library(gemmx_cublaslt_header INTERFACE)
target_link_libraries(gemmx_cublaslt_header INTERFACE gemmx_cudart)
if(NOT _pip_include STREQUAL "")
  target_compile_options(gemmx_cublaslt_header INTERFACE "SHELL:-idirafter ${_pip_include}")
endif()

add_library(gemmx_cuda_strict INTERFACE)
target_compile_options(gemmx_cuda_strict INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings>")
