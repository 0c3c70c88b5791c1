"""Device profiles and arithmetic rates: what selection knows of a GPU that is not present.

A profile is the `_C.Device` that `_C.cuda_device` would return on that GPU, so that a plan chosen for a
profile on a laptop is the plan chosen on the machine. Bandwidths and clocks are the vendor's nominal figures;
what is reached of them is in model.py's calibration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gemmx import _C

MIB = 1 << 20

# Dynamic shared memory that one block may opt in to, and shared memory of one SM, by compute capability:
# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (163, 227 and 99 KiB a block).
SMEM_PER_BLOCK = {80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
SMEM_PER_SM = {80: 167936, 86: 102400, 89: 102400, 90: 233472, 100: 233472, 120: 102400}


def _device(name: str, capability: int, sms: int, *, l2_mib: int, clock_ghz: float, dram_gbps: float) -> _C.Device:
    return _C.Device(
        name=name,
        capability=capability,
        sm_count=sms,
        smem_per_block=SMEM_PER_BLOCK[capability],
        smem_per_sm=SMEM_PER_SM[capability],
        l2_bytes=l2_mib * MIB,
        clock_ghz=clock_ghz,
        dram_gbps=dram_gbps,
    )


def h200() -> _C.Device:
    """NVIDIA H200 SXM 141 GB: data sheet (4.8 TB/s HBM3e); 60 MiB of L2 and 1.98 GHz as the driver reports."""
    return _device("NVIDIA H200", 90, 132, l2_mib=60, clock_ghz=1.98, dram_gbps=4800.0)


def h100() -> _C.Device:
    """NVIDIA H100 SXM5 80 GB: H100 whitepaper, table 3 (132 SMs, 50 MB of L2, 3.35 TB/s HBM3)."""
    return _device("NVIDIA H100 80GB HBM3", 90, 132, l2_mib=50, clock_ghz=1.98, dram_gbps=3350.0)


def a100() -> _C.Device:
    """NVIDIA A100 SXM4 80 GB: data sheet (2,039 GB/s) and A100 whitepaper, table 1 (108 SMs, 40 MB, 1.41 GHz)."""
    return _device("NVIDIA A100-SXM4-80GB", 80, 108, l2_mib=40, clock_ghz=1.41, dram_gbps=2039.0)


def rtx4090() -> _C.Device:
    """GeForce RTX 4090: Ada whitepaper, appendix A (128 SMs, 72 MB of L2, 2.52 GHz, 1,008 GB/s GDDR6X)."""
    return _device("NVIDIA GeForce RTX 4090", 89, 128, l2_mib=72, clock_ghz=2.52, dram_gbps=1008.0)


def b200() -> _C.Device:
    """NVIDIA B200 SXM 180 GB: data sheet (8 TB/s HBM3e); 148 SMs, 126 MiB of L2, 1.965 GHz. Never run here."""
    return _device("NVIDIA B200", 100, 148, l2_mib=126, clock_ghz=1.965, dram_gbps=8000.0)


PROFILES: dict[str, Callable[[], _C.Device]] = {
    "a100": a100,
    "b200": b200,
    "h100": h100,
    "h200": h200,
    "rtx4090": rtx4090,
}


def profile(name: str) -> _C.Device:
    """The Device of a profile. ValueError for a name that is none of PROFILES."""
    if name not in PROFILES:
        raise ValueError(f"device is {name!r}, which is no profile: use one of {', '.join(PROFILES)}.")
    return PROFILES[name]()


@dataclass(frozen=True, slots=True)
class Rates:
    """Dense FLOP per clock and SM, fp32 accumulation. A multiply-add is two FLOP; 0: no such instruction."""

    ffma: int  # CUDA cores, fp32
    hmma: int  # mma.sync, fp16 and bf16
    wgmma: int = 0  # wgmma, fp16 and bf16
    tcgen05: int = 0  # tcgen05.mma, fp16 and bf16
    # The clock at which the data sheet quotes its tensor peak, where that is below the boost clock.
    tensor_clock_ghz: float = 99.0
    # Consumer cards accumulate in fp32 at half the rate of the same chip sold for servers.
    geforce_halves: bool = False


RATES: dict[int, Rates] = {
    # A100 whitepaper: 312 TFLOP/s = 108 SMs x 2048 x 1.41 GHz; 19.5 TFLOP/s fp32 = 64 cores an SM.
    80: Rates(ffma=128, hmma=2048),
    # A10: 125 TFLOP/s = 72 x 1024 x 1.695 GHz. GeForce RTX 3090: 71 TFLOP/s = 82 x 512 x 1.695 GHz.
    86: Rates(ffma=256, hmma=1024, geforce_halves=True),
    # L40S: 362 TFLOP/s = 142 x 1024 x 2.49 GHz. GeForce RTX 4090: 165.2 TFLOP/s = 128 x 512 x 2.52 GHz.
    89: Rates(ffma=256, hmma=1024, geforce_halves=True),
    # H100 and H200: 989.4 TFLOP/s = 132 x 4096 x 1.83 GHz; 67 TFLOP/s fp32 = 132 x 256 x 1.98 GHz.
    # mma.sync: the best CUTLASS 2.x kernels reach 54-62 % of cuBLAS (H200, 2026-11-30): 0.62 x 4096.
    90: Rates(ffma=256, hmma=2540, wgmma=4096, tensor_clock_ghz=1.83),
    # B200: 2.25 PFLOP/s = 148 x 8192 x 1.85 GHz. mma.sync: no public figure; taken as sm_80's.
    100: Rates(ffma=256, hmma=2048, tcgen05=8192, tensor_clock_ghz=1.85),
    # RTX PRO 6000: 503.8 TFLOP/s = 188 x 1024 x 2.617 GHz. GeForce RTX 5090: 209.5 = 170 x 512 x 2.407 GHz.
    120: Rates(ffma=256, hmma=1024, geforce_halves=True),
}

# SASS mnemonic of KernelSpec.mma -> field of Rates.
MMA_FIELD = {"FFMA": "ffma", "HMMA": "hmma", "HGMMA": "wgmma", "UTCHMMA": "tcgen05"}


def rates(capability: int) -> Rates:
    """The rates of a capability; those of the nearest lower one in RATES where it has no row."""
    known = [c for c in RATES if c <= capability]
    return RATES[max(known) if known else min(RATES)]


def tensor_clock_ghz(device: _C.Device) -> float:
    """The clock of the quoted tensor peak, GHz."""
    return min(device.clock_ghz, rates(device.capability).tensor_clock_ghz)


def mma_rate(device: _C.Device, mma: str) -> float:
    """FLOP per second of one SM for a SASS mnemonic of KernelSpec.mma at the nominal clock; 0 where absent."""
    table = rates(device.capability)
    if mma == "FFMA":
        return table.ffma * device.clock_ghz * 1e9
    flop = float(getattr(table, MMA_FIELD.get(mma, "hmma")))
    if table.geforce_halves and "GeForce" in device.name:
        flop /= 2
    return flop * tensor_clock_ghz(device) * 1e9


def peak_flops(device: _C.Device, dtype: str, precision: str = "ieee") -> float:
    """The device's nominal dense peak for a product of `dtype` operands ("bf16", "f16", "f32"), FLOP/s.

    fp32 runs on the CUDA cores in `ieee`, on the tensor cores at half the 16-bit rate in `tf32`, and at a
    third of that in `3xtf32`.
    """
    if dtype == "f32" and precision == "ieee":
        return mma_rate(device, "FFMA") * device.sm_count
    tensor = max(mma_rate(device, mma) for mma in ("HMMA", "HGMMA", "UTCHMMA")) * device.sm_count
    if dtype == "f32":
        return tensor / (2.0 if precision == "tf32" else 6.0)
    return tensor
