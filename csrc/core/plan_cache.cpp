#include "core/plan_cache.h"

#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <unordered_map>

#include "core/numerics.h"
#include "core/registry.h"
#include "core/splits.h"
#include "device/scheduler/tile_order.cuh"

namespace gemmx {
namespace {

struct Key {
  Problem problem;
  int ordinal;
  friend bool operator==(const Key&, const Key&) = default;
};
struct KeyHash {
  size_t operator()(const Key& key) const { return hash(key.problem) + 0x9e3779b97f4a7c15u * (key.ordinal + 1); }
};

// 8192 plans are about 7 MB. A full cache is emptied: the working set of a model is a few hundred Problems,
// so that eviction by age would buy nothing and cost a write to shared state on every hit.
constexpr size_t kCapacity = 8192;

struct Cache {
  std::shared_mutex mutex;
  std::unordered_map<Key, std::shared_ptr<const ReadyPlan>, KeyHash> plans;
  std::shared_ptr<const Selector> selector;
  uint64_t generation = 0;  // of the selector: a plan decided by an older one is not kept
  std::atomic<uint64_t> hits{0}, misses{0};
};

Cache& cache() {
  static auto* const c = new Cache;  // never destroyed: threads may still run at exit
  return *c;
}

// One sentence on why no kernel runs the problem: the reason of the requested kernel, or of the nearest one.
[[noreturn]] void throw_unsupported(const Problem& problem, const Device& device) {
  if (problem.kernel >= 0) {
    throw std::runtime_error("kernel: " + std::string(kernel_specs()[problem.kernel].name) + " can't run " +
                             to_string(problem) + " on " + device.name + ": it " +
                             supports(problem.kernel, problem, device));
  }
  std::string nearest;
  int best = -1;
  const auto specs = kernel_specs();
  for (int i = 0; i < static_cast<int>(specs.size()); ++i) {
    const KernelSpec& s = specs[i];
    if (s.teaching || s.dtype_a != problem.a.dtype || device.capability < s.min_capability ||
        device.capability > s.max_capability || s.priority <= best) {
      continue;
    }
    best = s.priority;
    nearest = std::string(s.name) + " " + supports(i, problem, device);
  }
  throw std::runtime_error("no kernel can run " + to_string(problem) + " on " + device.name +
                           (nearest.empty() ? "" : "; the nearest, " + nearest));
}

// Bytes of the Z of a call in two steps, whole units of 256 so that the kernel's own workspace is aligned.
int64_t z_bytes_of(const Problem& plain) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(plain.batch * plain.d.row_stride, plain.m, &bytes) ||
      __builtin_mul_overflow(bytes, int64_t{size_of(plain.d.dtype)}, &bytes) ||
      __builtin_add_overflow(bytes, 255, &bytes)) {
    throw std::runtime_error("the workspace of the product of " + to_string(plain) + " takes more than 2^63 bytes");
  }
  return bytes & ~int64_t{255};
}

// Fields that no kernel could run, or that are not what the caller asked for.
std::string check_fields(const Plan& plan, const Problem& problem) {
  if (plan.kernel < 0 || plan.kernel >= static_cast<int>(kernel_specs().size())) return "names no kernel";
  if (plan.schedule == Schedule::automatic) return "has schedule auto, which is a request and not a schedule";
  if (plan.splits < 1) return "has " + std::to_string(plan.splits) + " splits, the least is 1";
  const bool in_one_cta = plan.schedule == Schedule::data_parallel && problem.numerics == Numerics::batch_invariant &&
                          adds_cuts_itself(kernel_specs()[plan.kernel]);
  if (plan.splits > 1 && plan.schedule != Schedule::split_k && !in_one_cta) {
    return "has " + std::to_string(plan.splits) + " splits without schedule split_k";
  }
  // Only the kernels of the ladder walk their tiles along Hilbert's curve.
  const bool hilbert = plan.swizzle == device::kHilbert && kernel_specs()[plan.kernel].teaching;
  if (plan.swizzle < 1 && !hilbert) return "has swizzle " + std::to_string(plan.swizzle) + ", the least is 1";
  if (problem.kernel >= 0 && plan.kernel != problem.kernel) return "has another kernel than the one asked for";
  if (problem.schedule != Schedule::automatic && plan.schedule != problem.schedule) {
    return "has another schedule than the one asked for";
  }
  if (problem.splits > 0 && plan.splits != problem.splits) return "has other splits than those asked for";
  return {};
}

// The splits asked for, those that batch_invariant prescribes, or 1.
int32_t default_splits(const Problem& p) {
  if (p.splits > 0) return p.splits;
  if (p.numerics != Numerics::batch_invariant || p.k == 0) return 1;
  return static_cast<int32_t>(splits_for(p.b_columns(), p.k, size_of(p.a.dtype)));
}

// Whether the cuts of K, and fp32 partials of D for each, can be counted in 63 bits.
bool cuts_are_countable(const Plan& plan, const Problem& p) {
  int64_t x = 0;
  return !__builtin_mul_overflow(max_splits(p.k, size_of(p.a.dtype)), int64_t{plan.splits}, &x) &&
         !__builtin_mul_overflow(int64_t{plan.splits}, p.batch, &x) && !__builtin_mul_overflow(x, p.m, &x) &&
         !__builtin_mul_overflow(x, p.b_columns(), &x) && !__builtin_mul_overflow(x, int64_t{sizeof(float)}, &x);
}

std::shared_ptr<ReadyPlan> make_ready(const Plan& plan, const Problem& problem, const Device& device) {
  std::string reason = check_plan(plan, problem, device);
  if (reason.empty()) reason = supports(plan.kernel, problem, device);  // and built
  if (!reason.empty()) {
    throw std::runtime_error("the selected plan [" + to_string(plan) + "] can't run " + to_string(problem) + " on " +
                             device.name + ": it " + reason);
  }
  auto ready = std::make_shared<ReadyPlan>();
  ready->problem = problem;
  ready->plan = plan;
  ready->spec = &kernel_specs()[plan.kernel];
  ready->kernel = kernel(plan.kernel);
  ready->workspace_bytes = workspace_size(plan.kernel, problem, plan, device);
  if (ready->kernel->prepare != nullptr) {
    ready->prepared = ready->kernel->prepare(*ready->spec, problem, plan, device);
  }
  if (ready->kernel->workspace_bytes != nullptr) {
    ready->workspace_bytes = ready->kernel->workspace_bytes(ready->prepared.get());
  }
  return ready;
}

// How the problem runs. The caller holds no lock: the selector may be Python.
std::shared_ptr<const ReadyPlan> decide(const Problem& problem, const Device& device) {
  if (!takes_two_steps(problem, device)) return make_ready(select(problem, device), problem, device);
  const Problem plain = plain_problem(problem);
  const int64_t z_bytes = z_bytes_of(plain);
  const auto ready = make_ready(select(plain, device), plain, device);
  ready->two_steps = true;
  ready->z_bytes = z_bytes;
  if (__builtin_add_overflow(ready->workspace_bytes, z_bytes, &ready->workspace_bytes)) {
    throw std::runtime_error("the workspace of " + to_string(problem) + " takes more than 2^63 bytes");
  }
  return ready;
}

}  // namespace

bool takes_two_steps(const Problem& problem, const Device& device) {
  if (!problem.gated && !problem.aux && !problem.gate_gradient) return false;
  const auto specs = kernel_specs();
  if (problem.kernel >= 0) {
    const KernelSpec& named = specs[problem.kernel];
    return !named.has_form() && !has_custom_function(named);
  }
  for (int i = 0; i < static_cast<int>(specs.size()); ++i) {
    const KernelSpec& s = specs[i];
    if (s.has_form_of(problem) && !s.teaching && supports(i, problem, device).empty()) return false;
  }
  return true;
}

Problem plain_problem(const Problem& problem) {
  Problem plain = problem;
  plain.n = problem.b_columns();
  plain.gated = false;
  plain.aux = false;
  plain.activation = Activation::none;
  plain.accumulate_in_place = false;
  plain.gate_gradient = false;
  if (problem.gate_gradient) {  // Z is the second step's
    plain.c = Matrix{};
    plain.beta = ScalarClass::zero;
  }
  plain.d = Matrix{};
  plain.d.dtype = problem.gate_gradient ? problem.d.dtype : DType::f32;
  // Rows of a few elements stay packed: padded they could be more than int64 counts.
  const int64_t unit = 16 / size_of(plain.d.dtype);
  const int64_t pitch = plain.n < unit ? plain.n : (plain.n + unit - 1) / unit * unit;
  plain.d.major = Major::n;
  plain.d.row_stride = pitch;
  plain.d.col_stride = 1;
  plain.d.batch_stride = plain.batch > 1 ? plain.m * pitch : 0;
  return plain;
}

std::string check_plan(const Plan& plan, const Problem& problem, const Device& device) {
  if (std::string reason = check_fields(plan, problem); !reason.empty()) return reason;
  const KernelSpec& spec = kernel_specs()[plan.kernel];
  Problem cut = problem;
  cut.schedule = plan.schedule;
  cut.splits = plan.splits;
  if (std::string reason = spec.supports(spec, cut, device); !reason.empty()) {
    return "has kernel " + std::string(spec.name) + ", which " + reason;
  }
  if (!cuts_are_countable(plan, problem)) return "cuts K into more than 63 bits can count";
  if (workspace_size(plan.kernel, problem, plan, device) < 0) return "needs a workspace of more than 2^63 bytes";
  return {};
}

void set_selector(Selector selector) {
  Cache& c = cache();
  const std::unique_lock lock(c.mutex);
  c.selector = selector ? std::make_shared<const Selector>(std::move(selector)) : nullptr;
  ++c.generation;
  c.plans.clear();
}

Plan select_by_priority(const Problem& problem, const Device& device) {
  const auto specs = kernel_specs();
  int best = -1;
  for (int i = 0; i < static_cast<int>(specs.size()); ++i) {
    const KernelSpec& s = specs[i];
    if (problem.kernel >= 0 ? i != problem.kernel : s.teaching) continue;
    const bool better = best < 0 || s.priority > specs[best].priority ||
                        (s.priority == specs[best].priority && std::string_view(s.name) < specs[best].name);
    if (better && supports(i, problem, device).empty()) best = i;
  }
  if (best < 0) throw_unsupported(problem, device);
  Plan plan;
  plan.kernel = best;
  const int32_t splits = default_splits(problem);
  const bool in_one_cta = problem.numerics == Numerics::batch_invariant && adds_cuts_itself(specs[best]);
  if (in_one_cta && problem.schedule != Schedule::split_k) {
    plan.splits = splits;
  } else if (problem.schedule == Schedule::split_k || splits > 1) {
    plan.schedule = Schedule::split_k;
    plan.splits = splits;
  } else if (problem.schedule == Schedule::stream_k || !specs[best].data_parallel) {
    plan.schedule = Schedule::stream_k;
  }
  return plan;
}

Plan select(const Problem& problem, const Device& device) {
  Cache& c = cache();
  std::shared_ptr<const Selector> selector;
  {
    const std::shared_lock lock(c.mutex);
    selector = c.selector;
  }
  return selector ? (*selector)(problem, device) : select_by_priority(problem, device);
}

std::shared_ptr<const ReadyPlan> ready_plan(const Problem& problem, int ordinal) {
  Cache& c = cache();
  const Key key{problem, ordinal};
  uint64_t generation = 0;
  {
    const std::shared_lock lock(c.mutex);
    if (const auto it = c.plans.find(key); it != c.plans.end()) {
      c.hits.fetch_add(1, std::memory_order_relaxed);
      return it->second;
    }
    generation = c.generation;
  }
  // No lock is held here: the selector may be Python and wait for the interpreter's lock. Two threads that
  // miss together decide twice and get equal plans.
  c.misses.fetch_add(1, std::memory_order_relaxed);
  const Device& device = cuda_device(ordinal);
  auto ready = decide(problem, device);
  const std::unique_lock lock(c.mutex);
  if (c.generation != generation) return ready;
  if (c.plans.size() >= kCapacity) c.plans.clear();
  return c.plans.emplace(key, std::move(ready)).first->second;
}

PlanCacheInfo plan_cache_info() {
  Cache& c = cache();
  const std::shared_lock lock(c.mutex);
  return {c.hits.load(), c.misses.load(), static_cast<int64_t>(c.plans.size()), static_cast<int64_t>(kCapacity)};
}

void clear_plan_cache() {
  Cache& c = cache();
  const std::unique_lock lock(c.mutex);
  ++c.generation;
  c.plans.clear();
}

}  // namespace gemmx
