// The plan cache: (Problem, device ordinal) -> Plan, decided once by the selector. A hit never touches Python.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/kernel_spec.h"

namespace gemmx {

// A Plan ready to run: kernel, workspace size and the kernel's prepared state.
struct ReadyPlan {
  Plan plan;
  const KernelSpec* spec = nullptr;
  const Kernel* kernel = nullptr;
  int64_t workspace_bytes = 0;
  Prepared prepared;
};

// Chooses the Plan of a Problem. Throws std::runtime_error where no kernel can run it.
using Selector = std::function<Plan(const Problem&, const Device&)>;

// Replaces the selector and empties the cache; an empty function restores the default: the supported
// KernelSpec of highest priority, ties by name, teaching kernels excluded.
GEMMX_API void set_selector(Selector);
GEMMX_API Plan select(const Problem&, const Device&);
// What set_selector's default does, also with a selector set.
GEMMX_API Plan select_by_priority(const Problem&, const Device&);

// Empty when the plan can run the problem on the device, whether the kernel is built or not; otherwise what is wrong
// with it, to follow "the plan". A plan may come from a file or a caller's selector, so nothing in it is taken on
// trust: schedule, splits and swizzle must be legal and those asked for, the kernel must support the problem cut that
// way, and the sizes of the cuts must be within 63 bits.
GEMMX_API std::string check_plan(const Plan&, const Problem&, const Device&);

// The plan of the problem on CUDA device `ordinal`, which the caller has made current. Thread-safe. What the
// selector returns passes check_plan() and is built, or it is an error.
GEMMX_API std::shared_ptr<const ReadyPlan> ready_plan(const Problem&, int ordinal);

struct PlanCacheInfo {
  uint64_t hits = 0, misses = 0;
  int64_t size = 0, capacity = 0;
};
GEMMX_API PlanCacheInfo plan_cache_info();
GEMMX_API void clear_plan_cache();

}  // namespace gemmx
