# ruff: noqa: N999
"""The pybind11 module of csrc/bindings: problems, plans, kernel specs, checks and the selector hook. No torch inside.

Enumerators are strings: dtypes as in gemmx._dtypes.DTYPES plus "none" and "other"; majors "none", "k", "m", "n".
Strides are in elements, sizes of memory in bytes.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

class Matrix:
    """Layout of one operand; strides are canonical (csrc/core/problem.h)."""

    row_stride: int
    col_stride: int
    batch_stride: int
    dtype: str
    major: str
    pointer_align: int
    def __init__(self) -> None: ...
    @property
    def leading_dimension(self) -> int: ...
    @property
    def vector_bytes(self) -> int: ...

class Problem:
    """Everything that selection may depend on (csrc/core/problem.h)."""

    m: int
    n: int
    k: int
    batch: int
    a: Matrix
    b: Matrix
    c: Matrix
    d: Matrix
    bias_stride: int
    bias_dtype: str
    bias_align: int
    splits: int
    kernel: str
    alpha: str
    beta: str
    activation: str
    precision: str
    numerics: str
    schedule: str
    accumulate_in_place: bool
    def __init__(self) -> None: ...
    def copy(self) -> Problem: ...
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

class Plan:
    """How one Problem runs."""

    kernel: str
    schedule: str
    splits: int
    raster: str
    swizzle: int
    algo: list[int]
    algo_version: int
    def __init__(
        self,
        kernel: str,
        schedule: str = "data_parallel",
        splits: int = 1,
        raster: str = "along_m",
        swizzle: int = 1,
    ) -> None: ...
    def to_dict(self) -> dict[str, Any]: ...
    @staticmethod
    def from_dict(d: dict[str, Any]) -> Plan: ...
    def __eq__(self, other: object) -> bool: ...

class Device:
    """What selection needs to know of a GPU."""

    def __init__(
        self,
        *,
        name: str,
        capability: int,
        sm_count: int,
        smem_per_block: int,
        smem_per_sm: int,
        l2_bytes: int,
        clock_ghz: float,
        dram_gbps: float,
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def capability(self) -> int: ...
    @property
    def sm_count(self) -> int: ...
    @property
    def smem_per_block(self) -> int: ...
    @property
    def smem_per_sm(self) -> int: ...
    @property
    def l2_bytes(self) -> int: ...
    @property
    def clock_ghz(self) -> float: ...
    @property
    def dram_gbps(self) -> float: ...

class KernelSpec:
    """A row of the registry (csrc/core/kernel_spec.h)."""

    @property
    def name(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def min_capability(self) -> int: ...
    @property
    def max_capability(self) -> int: ...
    @property
    def dtype_a(self) -> str: ...
    @property
    def dtype_b(self) -> str: ...
    @property
    def dtype_acc(self) -> str: ...
    @property
    def dtype_d(self) -> str: ...
    @property
    def major_a(self) -> str: ...
    @property
    def major_b(self) -> str: ...
    @property
    def tile(self) -> tuple[int, int, int]: ...
    @property
    def cluster(self) -> tuple[int, int, int]: ...
    @property
    def stages(self) -> int: ...
    @property
    def mma(self) -> str: ...
    @property
    def numerics(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def smem_bytes(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def teaching(self) -> bool: ...
    @property
    def swap_ab(self) -> bool: ...
    @property
    def schedules(self) -> tuple[str, ...]: ...

class TensorDesc:
    """A tensor as the checks see it; data is the address of its first element, 0 where it has none."""

    def __init__(
        self,
        dtype: str,
        device_type: str,
        device_index: int,
        sizes: Sequence[int],
        strides: Sequence[int],
        data: int = 0,
    ) -> None: ...

class Checked:
    """A call that passed the checks."""

    @property
    def problem(self) -> Problem: ...
    @property
    def d_sizes(self) -> tuple[int, ...]: ...
    @property
    def d_dtype(self) -> str: ...
    @property
    def alpha(self) -> float: ...
    @property
    def beta(self) -> float: ...
    @property
    def activation_args(self) -> tuple[float, float]: ...
    @property
    def empty(self) -> bool: ...

def check_gemm(
    a: TensorDesc,
    b: TensorDesc,
    c: TensorDesc | None = None,
    bias: TensorDesc | None = None,
    scale_a: TensorDesc | None = None,
    scale_b: TensorDesc | None = None,
    scale_d: TensorDesc | None = None,
    *,
    out: TensorDesc | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    activation: str | None = None,
    activation_args: Sequence[float] | None = None,
    out_dtype: str | None = None,
    precision: str | None = None,
    numerics: str | None = None,
    schedule: str | None = None,
    splits: int = 0,
    kernel: str | None = None,
) -> Checked: ...
def cuda_device(ordinal: int) -> Device: ...
def cut_begin(k: int, element_bytes: int, i: int, s: int) -> int: ...
def max_splits(k: int, element_bytes: int) -> int: ...
def kernels() -> list[KernelSpec]: ...
def supports(kernel: str, problem: Problem, device: Device) -> str: ...
def built_for(kernel: str, capability: int) -> bool: ...
def workspace_size(kernel: str, problem: Problem, plan: Plan, device: Device) -> int: ...
def set_selector(selector: Callable[[Problem, Device], Plan] | None) -> None: ...
def select(problem: Problem, device: Device) -> Plan: ...
def select_by_priority(problem: Problem, device: Device) -> Plan: ...
def plan_cache_info() -> dict[str, int]: ...
def clear_plan_cache() -> None: ...
def launch_counts() -> dict[str, int]: ...
def reset_launch_counts() -> None: ...
def build_archs() -> tuple[str, ...]: ...
def source_hash() -> str: ...
def version() -> str: ...

# Only where the library was built with CUDA.
def lt_baseline(
    problem: Problem,
    a_ptr: int,
    b_ptr: int,
    d_ptr: int,
    workspace_ptr: int,
    workspace_bytes: int,
    stream: int,
    index: int,
) -> bool: ...
def stream_read(data_ptr: int, bytes: int, sink_ptr: int, sm_count: int, variant: int, stream: int) -> None: ...
def stream_read_variants() -> int: ...
def mma_rate(iterations: int, sink_ptr: int, sm_count: int, stream: int) -> None: ...
def mma_rate_flops() -> int: ...

testing: ModuleType  # index functions of the device code, for property tests
