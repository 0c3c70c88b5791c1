// What this library was built from and for.
#pragma once

#include <string_view>

#include "core/types.h"

namespace gemmx {

// The architectures as given to GEMMX_CUDA_ARCHS, "80;90a", or "none".
GEMMX_API std::string_view build_archs();
// The hash of the sources (cmake/source_hash.py), which evidence files carry.
GEMMX_API std::string_view source_hash();
GEMMX_API std::string_view version();

}  // namespace gemmx
