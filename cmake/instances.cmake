# Kernel instances: one generated .cu per row of csrc/kernels/<family>/instances*.inc.
#
# A file per instance keeps a compile short (a CUTLASS instance takes 20-40 s), spreads over all cores and lets
# ccache keep the others when one row changes. The files lie in the build folder, depend on the row alone and are
# rewritten only when they change.

# Writes the .cu files of the rows and sets `out` to their paths.
function(gemmx_generate_instances family rows macro header out)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${rows}")
  set(folder "${CMAKE_BINARY_DIR}/instances/${family}")
  set(sources "")
  file(STRINGS "${rows}" lines REGEX "^[ \t]*${macro}[ \t]*\\(")
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "^${macro}\\(([A-Za-z_][A-Za-z0-9_]*)(, [^;]*)?\\)$")
      message(FATAL_ERROR "${rows}: got the row '${line}', a row is one line '${macro}(name, ...)' and nothing else.")
    endif()
    set(source "${folder}/${CMAKE_MATCH_1}.cu")
    if(source IN_LIST sources)
      message(FATAL_ERROR "${rows}: the name '${CMAKE_MATCH_1}' stands in two rows, names are unique.")
    endif()
    file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"${header}\"\n${line}\n" @ONLY)
    list(APPEND sources "${source}")
  endforeach()
  file(GLOB stale "${folder}/*.cu")
  list(REMOVE_ITEM stale ${sources})
  if(stale)
    file(REMOVE ${stale})
  endif()
  set(${out} "${sources}" PARENT_SCOPE)
endfunction()

# gemmx_family(<name> ROWS <file, below csrc or absolute> MACRO <row macro> HEADER <include> [CUTLASS])
#
# An OBJECT library gemmx_<name> compiled for exactly the architectures that the table gives the family; nothing
# where none of them is built. registry.cpp learns of it by GEMMX_ARCHS_<NAME>, e.g. "80,-90": a negative number
# is architecture-specific code.
function(gemmx_family name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "CUTLASS" "ROWS;MACRO;HEADER" "")
  gemmx_family_codes(${name} "${GEMMX_CODES}" codes)
  if(codes STREQUAL "")
    return()
  endif()
  cmake_path(ABSOLUTE_PATH arg_ROWS BASE_DIRECTORY "${PROJECT_SOURCE_DIR}/csrc")
  gemmx_generate_instances(${name} "${arg_ROWS}" ${arg_MACRO} "${arg_HEADER}" sources)
  if(sources STREQUAL "")
    return()
  endif()
  gemmx_cuda_library(gemmx_${name} "${codes}" ${sources})
  if(arg_CUTLASS)
    target_link_libraries(gemmx_${name} PRIVATE gemmx_cutlass)
  else()
    target_link_libraries(gemmx_${name} PRIVATE gemmx_cuda_strict)
  endif()

  list(TRANSFORM codes REPLACE "^([0-9]+)a$" "-\\1")
  list(JOIN codes "," numbers)
  string(TOUPPER "GEMMX_ARCHS_${name}=${numbers}" definition)
  set_property(GLOBAL APPEND PROPERTY GEMMX_ARCH_DEFINITIONS "${definition}")
endfunction()

# An OBJECT library of .cu files compiled for the codes; SASS only, since every code that can run is named.
function(gemmx_cuda_library target codes)
  add_library(${target} OBJECT ${ARGN})
  list(TRANSFORM codes APPEND "-real")
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${codes}")
  target_link_libraries(${target} PRIVATE gemmx_options)
  set_property(GLOBAL APPEND PROPERTY GEMMX_OBJECT_LIBRARIES ${target})
endfunction()
