# The architecture table. A new architecture is one row here, a folder under csrc/kernels and a device profile.
#
#   name        what GEMMX_CUDA_ARCHS takes
#   code        the target that is compiled for it. 86 and 89 run the code of 80: nothing differs there today
#   capability  10 * major + minor of the GPUs that the name stands for
#   families    kernel families (CMakeLists.txt) with code for it
#
# A code that ends in "a" is architecture-specific: it runs on exactly that capability (wgmma and setmaxnreg exist
# in sm_90a only, tcgen05 in sm_100a). The others run on every later minor version of their major version.
set(GEMMX_ARCHITECTURES
    # name code capability families
    "80    80   80   simt sm80 ladder"
    "86    80   86   simt sm80 ladder"
    "89    80   89   simt sm80 ladder"
    "90a   90a  90   simt sm80 sm90 sm90_custom cutlass_sm90 ladder ladder_sm90"
    "100a  100a 100  simt sm80 cutlass_sm100 ladder"
    "120a  120a 120  simt sm80 ladder")

# Sets <prefix>_NAME, _CODE, _CAPABILITY, _FAMILIES from a row of the table.
macro(gemmx_architecture_row row prefix)
  string(REGEX MATCHALL "[^ ]+" _fields "${row}")
  list(POP_FRONT _fields ${prefix}_NAME ${prefix}_CODE ${prefix}_CAPABILITY)
  set(${prefix}_FAMILIES ${_fields})
endmacro()

# The names that the user asks for: the CMake variable GEMMX_CUDA_ARCHS, the environment variable, the GPUs present.
function(gemmx_requested_architectures gpus out)
  if(NOT "${GEMMX_CUDA_ARCHS}" STREQUAL "")
    set(asked "${GEMMX_CUDA_ARCHS}")
  elseif(NOT "$ENV{GEMMX_CUDA_ARCHS}" STREQUAL "")
    set(asked "$ENV{GEMMX_CUDA_ARCHS}")
  else()
    set(asked "")
    foreach(row IN LISTS GEMMX_ARCHITECTURES)
      gemmx_architecture_row("${row}" arch)
      if(arch_CAPABILITY IN_LIST gpus)
        list(APPEND asked ${arch_NAME})
      endif()
    endforeach()
    if(asked STREQUAL "")
      set(asked none)
    endif()
  endif()
  string(REGEX REPLACE "[, ]+" ";" asked "${asked}")
  set(${out} "${asked}" PARENT_SCOPE)
endfunction()

# Turns the asked names into the list of codes to compile, in the order of the table; empty for `none`.
function(gemmx_resolve_architectures asked out)
  set(names "")
  set(codes "")
  foreach(row IN LISTS GEMMX_ARCHITECTURES)
    gemmx_architecture_row("${row}" arch)
    list(APPEND names ${arch_NAME})
    if(arch_NAME IN_LIST asked OR asked STREQUAL "all")
      list(APPEND codes ${arch_CODE})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES codes)
  string(REPLACE ";" " " takes "${names}")
  foreach(name IN LISTS asked)
    if(name IN_LIST names OR (name MATCHES "^(none|all)$" AND asked STREQUAL name))
      continue()
    endif()
    set(hint "")
    if("${name}a" IN_LIST names)
      set(hint ", say ${name}a: its kernels need the architecture-specific target")
    elseif(name MATCHES "^(none|all)$")
      set(hint ", and ${name} only by itself")
    endif()
    message(FATAL_ERROR "GEMMX_CUDA_ARCHS: got '${name}', takes none, all or a list of ${takes}${hint}.")
  endforeach()
  set(${out} "${codes}" PARENT_SCOPE)
endfunction()

# Those of the codes that have kernels of the family.
function(gemmx_family_codes family codes out)
  set(found "")
  foreach(row IN LISTS GEMMX_ARCHITECTURES)
    gemmx_architecture_row("${row}" arch)
    if(arch_CODE IN_LIST codes AND family IN_LIST arch_FAMILIES)
      list(APPEND found ${arch_CODE})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES found)
  set(${out} "${found}" PARENT_SCOPE)
endfunction()
