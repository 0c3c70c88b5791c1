"""Writes csrc/device/ptx/wgmma_shapes.cuh: one function per wgmma instruction that kernels use.

python cmake/wgmma_shapes.py > csrc/device/ptx/wgmma_shapes.cuh

The instruction takes its accumulator as N / 2 registers that inline assembly has to spell out one by one, so the file
is written by this script. tests/test_build.py checks that it is up to date. A new tile width is a number in WIDTHS.
"""

from __future__ import annotations

import sys
import textwrap

# N of the kernels' tiles: any multiple of 8 up to 256 is legal.
WIDTHS = (8, 16, 32, 40, 48, 64, 72, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256)
TYPES = {"bf16": "bf16", "f16": "f16"}

HEADER = """\
// Written by cmake/wgmma_shapes.py: wgmma.mma_async m64nNk16, A and B from shared memory, fp32 accumulator.
//   d = A @ B + (accumulate ? d : 0)
// https://docs.nvidia.com/cuda/parallel-thread-execution/#asynchronous-warpgroup-level-matrix-instructions (sm_90a)
//
// d[4 j + i] of lane l of warp w: row 16 w + l / 4 (+ 8 for i = 2, 3), column 8 j + 2 (l % 4) + i % 2.
// kMnMajorA, kMnMajorB: 1 where the operand is MN-major (the instruction's "transpose" flags), 0 where K-major.
#pragma once

#include <cstdint>

#include "core/types.h"

// clang-format off
namespace gemmx::device::ptx {

template <DType kType, int kN>
struct Wgmma;
"""


def wrapped(items: list[str], indent: int) -> str:
    pad = " " * indent
    return textwrap.fill(", ".join(items), 119, initial_indent=pad, subsequent_indent=pad)


def instruction(name: str, ptx: str, n: int) -> str:
    count = n // 2
    registers = textwrap.wrap(", ".join(f"%{i}" for i in range(count)), 104)
    spelled = "\n".join(f'        "{line} "' for line in registers)
    return f"""
template <>
struct Wgmma<DType::{name}, {n}> {{
  template <int kMnMajorA, int kMnMajorB>
  __device__ static __forceinline__ void mma(float (&d)[{count}], uint64_t a, uint64_t b, int accumulate) {{
    asm volatile(
        "{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{count + 2}, 0;\\n"
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{ptx}.{ptx} {{"
{spelled}
        "}}, %{count}, %{count + 1}, p, 1, 1, %{count + 3}, %{count + 4};\\n}}\\n"
        :
{wrapped([f'"+f"(d[{i}])' for i in range(count)], 10)}
        : "l"(a), "l"(b), "r"(accumulate), "n"(kMnMajorA), "n"(kMnMajorB));
  }}
}};
"""


def main() -> None:
    body = "".join(instruction(name, ptx, n) for name, ptx in TYPES.items() for n in WIDTHS)
    sys.stdout.write(HEADER + body + "\n}  // namespace gemmx::device::ptx\n// clang-format on\n")


if __name__ == "__main__":
    main()
