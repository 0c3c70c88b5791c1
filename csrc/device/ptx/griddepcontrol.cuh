// griddepcontrol: programmatic dependent launch. A kernel launched with the attribute may start while the one before it
// in the stream still runs, and waits for its results itself.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-griddepcontrol
// (sm_90+)
#pragma once

namespace gemmx::device::ptx {

// Until the kernel before this one is complete and its writes visible. Nothing else orders them. Every thread of a
// kernel that starts early calls it, also one that has nothing to do: a grid that ended without waiting would be
// complete before the one that it should have waited for, and the next one waits for the last grid only.
__device__ __forceinline__ void wait_for_earlier_kernels() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// The next kernel may start once every CTA of this one has said so or ended.
__device__ __forceinline__ void let_next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;"); }

}  // namespace gemmx::device::ptx
