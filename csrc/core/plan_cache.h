// The plan cache: (Problem, device ordinal) -> Plan, decided once by the selector. A hit never touches Python.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/kernel_spec.h"

namespace gemmx {

// A Plan ready to run: the Problem that its kernel computes, workspace size and the kernel's prepared state.
//
// Where the call takes two steps the Problem is plain_problem(): the kernel writes a float32 Z, or the dH of a gate's
// gradient in D's dtype, into the first z_bytes of the workspace, and has what follows for itself. Then
// launch_activation, or launch_activation_backward (kernels/pointwise), makes D of it.
struct ReadyPlan {
  Problem problem;
  Plan plan;
  const KernelSpec* spec = nullptr;
  const Kernel* kernel = nullptr;
  bool two_steps = false;
  int64_t z_bytes = 0;
  int64_t workspace_bytes = 0;  // z_bytes among them
  Prepared prepared;
};

// Whether the call can't be computed by one kernel, since none of its form (gated, aux, gate_gradient) is built that
// supports it, or
// since it names a kernel of no form. A kernel of another form that is named leaves it one step, which is refused.
GEMMX_API bool takes_two_steps(const Problem&, const Device&);

// The product of the first step, row-major with rows that start on 16 bytes, without an activation: Z in float32 or, of
// a gate's gradient, dH in D's dtype, which the second step reads like a gradient that a caller hands over.
GEMMX_API Problem plain_problem(const Problem&);

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
// selector returns passes check_plan() and is built, or it is an error. Of a call in two steps the selector is asked
// for the plan of plain_problem().
GEMMX_API std::shared_ptr<const ReadyPlan> ready_plan(const Problem&, int ordinal);

struct PlanCacheInfo {
  uint64_t hits = 0, misses = 0;
  int64_t size = 0, capacity = 0;
};
GEMMX_API PlanCacheInfo plan_cache_info();
GEMMX_API void clear_plan_cache();

}  // namespace gemmx
