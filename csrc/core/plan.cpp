#include "core/plan.h"

#include "core/registry.h"

namespace gemmx {

std::string to_string(const Plan& p) {
  std::string text = "no kernel";
  if (p.kernel >= 0 && p.kernel < static_cast<int>(kernel_specs().size())) text = kernel_specs()[p.kernel].name;
  text += ", " + std::string(name(p.schedule));
  if (p.schedule == Schedule::split_k || p.splits > 1) text += " " + std::to_string(p.splits);
  text += ", " + std::string(name(p.raster)) + ", swizzle " + std::to_string(p.swizzle);
  if (p.algo_version != 0) text += ", stored algorithm of cuBLASLt " + std::to_string(p.algo_version);
  return text;
}

}  // namespace gemmx
