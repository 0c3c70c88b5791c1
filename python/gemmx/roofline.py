"""The roofline of a GEMM: how fast the device's arithmetic and memory let it be.

    FLOPs      2 M N K batch                                  a multiply-add is two
    intensity  FLOPs / bytes moved between DRAM and the SMs   FLOP per byte
    ridge      peak FLOP/s / peak bytes/s                     intensity at which both bind
    time       max(FLOPs / peak, bytes / bandwidth)

so that FLOP/s are at most min(peak, intensity * bandwidth). Three counts of bytes: naive, every element of D reads
its row and its column; tiled, every T x T tile of D does; ideal, each operand moves once.

After Williams, Waterman, Patterson: "Roofline: an insightful visual performance model", CACM 52(4), 2009.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gemmx import _C
from gemmx.select.model import ELEMENT_BYTES
from gemmx.select.profiles import peak_flops, profile

# Bytes of an element of A, B and D.
Sizes = tuple[int, int, int]


def flops(m: int, n: int, k: int, batch: int = 1) -> float:
    """Floating-point operations of `batch` products (M, K) x (K, N): 2 M N K each, epilogue not counted."""
    return 2.0 * m * n * k * batch


def naive_bytes(m: int, n: int, k: int, sizes: Sizes, batch: int = 1) -> float:
    """Bytes when every element of D reads its row of A and its column of B from memory: M N (K (a + b) + d)."""
    return float(m * n * (k * (sizes[0] + sizes[1]) + sizes[2]) * batch)


def tiled_bytes(m: int, n: int, k: int, sizes: Sizes, tile: tuple[int, int], *, batch: int = 1) -> float:
    """Bytes when every tile of D, (tile_m, tile_n), reads its rows of A and columns of B once and no cache helps.

    A is read once for each of the ceil(N / tile_n) columns of tiles, B once for each of the ceil(M / tile_m) rows.
    """
    tiles_m, tiles_n = -(-m // tile[0]), -(-n // tile[1])
    return float((tiles_n * m * k * sizes[0] + tiles_m * k * n * sizes[1] + m * n * sizes[2]) * batch)


def ideal_bytes(m: int, n: int, k: int, sizes: Sizes, batch: int = 1) -> float:
    """The least bytes: every element of A, B and D moves once."""
    return float((m * k * sizes[0] + k * n * sizes[1] + m * n * sizes[2]) * batch)


@dataclass(frozen=True, slots=True)
class Roofline:
    """FLOPs, bytes, and the time that the device's peaks allow."""

    device: str
    flops: float
    bytes_naive: float
    bytes_tiled: float
    bytes: float  # ideal: each operand once
    tile: tuple[int, int]
    intensity_naive: float  # FLOP per naive byte: about 1 / b for elements of b bytes
    intensity_tiled: float  # FLOP per tiled byte: about T / b for a tile of T x T
    intensity: float  # FLOP per ideal byte
    ridge: float  # FLOP per byte
    peak_tflops: float
    dram_gbps: float
    time_us: float
    bound: str  # "compute" or "memory"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.flops / 1e9:.2f} GFLOP, {self.bytes / 1e6:.2f} MB (naive {self.bytes_naive / 1e6:.2f}, "
            f"tiled {self.tile[0]}x{self.tile[1]} {self.bytes_tiled / 1e6:.2f}): {self.intensity:.1f} FLOP/B, "
            f"ridge {self.ridge:.1f}: {self.bound}-bound, {self.time_us:.2f} us on {self.device}"
        )


def roofline(
    m: int,
    n: int,
    k: int,
    dtypes: str | tuple[str, str] = "bf16",
    device: str | _C.Device = "h200",
    *,
    batch: int = 1,
    tile: tuple[int, int] = (128, 128),
    precision: str = "ieee",
    extra_bytes: float = 0.0,
) -> Roofline:
    """The roofline of D (M, N) = A (M, K) @ B (K, N).

    dtypes: of A, B and D ("bf16", "f16", "f32"), or (of A and B, of D).
    device: a profile's name or a Device; its peaks are nominal, dense, fp32 accumulation.
    tile: rows and columns of the tile of bytes_tiled. extra_bytes: of C and bias, where they are read.

    Raises ValueError for a negative size, a tile of no rows or columns, an unknown dtype or device.
    """
    for name, size in (("M", m), ("N", n), ("K", k), ("batch", batch)):
        if size < 0:
            raise ValueError(f"{name} is {size}, it must be at least 0.")
    if min(tile) < 1:
        raise ValueError(f"tile is {tile}, it must have at least 1 row and 1 column.")
    dtype, dtype_d = (dtypes, dtypes) if isinstance(dtypes, str) else dtypes
    for dtype_name in (dtype, dtype_d):
        if dtype_name not in ("bf16", "f16", "f32"):
            raise ValueError(f"dtype is {dtype_name!r}, it must be bf16, f16 or f32.")
    target = profile(device) if isinstance(device, str) else device
    sizes = (ELEMENT_BYTES[dtype], ELEMENT_BYTES[dtype], ELEMENT_BYTES[dtype_d])
    work = flops(m, n, k, batch)
    naive = naive_bytes(m, n, k, sizes, batch)
    tiled = tiled_bytes(m, n, k, sizes, tile, batch=batch)
    least = ideal_bytes(m, n, k, sizes, batch) + extra_bytes
    peak, bandwidth = peak_flops(target, dtype, precision), target.dram_gbps * 1e9
    compute_us, memory_us = work / peak * 1e6, least / bandwidth * 1e6
    return Roofline(
        device=target.name,
        flops=work,
        bytes_naive=naive,
        bytes_tiled=tiled,
        bytes=least,
        tile=tile,
        intensity_naive=work / naive if naive else 0.0,
        intensity_tiled=work / tiled if tiled else 0.0,
        intensity=work / least if least else 0.0,
        ridge=peak / bandwidth,
        peak_tflops=peak / 1e12,
        dram_gbps=target.dram_gbps,
        time_us=max(compute_us, memory_us),
        bound="compute" if compute_us > memory_us else "memory",
    )
