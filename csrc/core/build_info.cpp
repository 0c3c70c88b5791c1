// The only file that sees the source hash, so that a change elsewhere recompiles this one alone.
#include "core/build_info.h"

namespace gemmx {

std::string_view build_archs() { return GEMMX_BUILD_ARCHS; }
std::string_view source_hash() { return GEMMX_SOURCE_HASH; }
std::string_view version() { return GEMMX_VERSION; }

}  // namespace gemmx
