"""The analytic time model: how long a Plan of a kernel takes on a device, in microseconds.

    t = overhead + p-norm(MMA, DRAM, L2, latency) + reduction        nearly the greatest of the four

MMA, L2 and latency are counted for the busiest SM, ceil(CTAs / SMs) tiles one after the other, so that tile
tails (a tile that hangs over M or N costs a whole tile) and wave tails (the last wave costs a whole wave) are
in the terms themselves. cuBLASLt chooses its own tile and splits, so it is modelled by what it reaches.

Pure arithmetic on plain numbers: deterministic, about 10 us an estimate, nothing is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from gemmx import _C
from gemmx.select.calibration import Calibration, calibration
from gemmx.select.profiles import mma_rate, peak_flops, tensor_clock_ghz

ELEMENT_BYTES = {"f64": 8, "f32": 4, "i32": 4, "bf16": 2, "f16": 2, "e4m3": 1, "e5m2": 1, "i8": 1, "u8": 1}

# Registers an SM has, and threads it holds (CUDA C++ Programming Guide, capabilities 8.x to 12.x).
REGISTERS_PER_SM = 65536
THREADS_PER_SM = {80: 2048, 86: 1536, 89: 1536, 90: 2048, 100: 2048, 120: 1536}
# Accumulators of a lane up to which a wgmma kernel keeps the sum of cuts of K beside them (kSumsInRegisters).
RUNNING_SUM_REGISTERS = 64
# Shared memory that the driver keeps of each resident block.
SMEM_RESERVED = 1024


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """The fields of a KernelSpec that the model reads, as plain Python values (reading them costs a call)."""

    name: str
    family: str
    mma: str
    numerics: str
    tile: tuple[int, int, int]
    cluster: tuple[int, int, int]
    stages: int
    threads: int
    smem_bytes: int
    swap_ab: bool
    gated: bool
    aux: bool
    gate_gradient: bool
    teaching: bool
    schedules: tuple[str, ...]
    adds_cuts_itself: bool  # data_parallel may have splits, under batch_invariant
    priority: int
    min_capability: int
    max_capability: int
    dtype_a: str

    @property
    def form(self) -> tuple[bool, bool, bool]:
        return (self.gated, self.aux, self.gate_gradient)

    @property
    def is_library(self) -> bool:
        return self.family == "cublaslt"


@lru_cache(maxsize=1)
def kernel_infos() -> tuple[KernelInfo, ...]:
    """Every registered kernel, sorted by name."""
    return tuple(
        KernelInfo(
            name=s.name,
            family=s.family,
            mma=s.mma,
            numerics=s.numerics,
            tile=s.tile,
            cluster=s.cluster,
            stages=s.stages,
            threads=s.threads,
            smem_bytes=s.smem_bytes,
            swap_ab=s.swap_ab,
            gated=s.gated,
            aux=s.aux,
            gate_gradient=s.gate_gradient,
            teaching=s.teaching,
            schedules=tuple(s.schedules),
            adds_cuts_itself=s.adds_cuts_itself,
            priority=s.priority,
            min_capability=s.min_capability,
            max_capability=s.max_capability,
            dtype_a=s.dtype_a,
        )
        for s in sorted(_C.kernels(), key=lambda s: s.name)
    )


@dataclass(frozen=True, slots=True)
class Machine:
    """A Device and its constants as plain numbers, looked up once per selection."""

    capability: int
    sms: int
    smem_per_sm: int
    threads_per_sm: int
    l2_bytes: int
    clock_mhz: float  # bytes / (bytes per clock x MHz) is in us
    dram_bytes_per_us: float  # nominal
    mma_flops_per_us: dict[str, float]  # of one SM, by SASS mnemonic, as far as kernels reach it
    sustained_flops_per_us: dict[str, float]  # of all SMs together, by SASS mnemonic
    peak_flops_per_us: dict[tuple[str, str], float]  # of the device, by dtype and precision, nominal
    cal: Calibration


def machine_of(device: _C.Device) -> Machine:
    """The plain numbers of a Device."""
    cal = calibration(device.capability)
    dtypes = (("bf16", "ieee"), ("f16", "ieee"), ("f32", "ieee"), ("f32", "tf32"), ("f32", "3xtf32"))
    return Machine(
        capability=device.capability,
        sms=device.sm_count,
        smem_per_sm=device.smem_per_sm,
        threads_per_sm=THREADS_PER_SM.get(device.capability, 1536),
        l2_bytes=device.l2_bytes,
        clock_mhz=tensor_clock_ghz(device) * 1e3,
        dram_bytes_per_us=device.dram_gbps * 1e3,
        mma_flops_per_us={mma: mma_rate(device, mma) * e * 1e-6 for mma, e in cal.mma_efficiency.items()},
        sustained_flops_per_us={
            mma: mma_rate(device, mma) * device.sm_count * 1e-6 * cal.sustained.get(mma, math.inf)
            for mma in cal.mma_efficiency
        },
        peak_flops_per_us={key: peak_flops(device, *key) * 1e-6 for key in dtypes},
        cal=cal,
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """A Problem as plain numbers: sizes, bytes of an element, and the widest aligned access of each operand."""

    m: int
    n: int  # columns of B, which the MMA tiles: of a gated problem twice D's
    k: int
    batch: int
    dtype: str
    bytes_a: int
    bytes_b: int
    bytes_d: int
    align_a: int
    align_b: int
    align_d: int
    shared_a: bool  # one A serves all batches
    shared_b: bool
    read_bytes: float  # A, B, C and bias, each once; of a gate's gradient C is Z
    write_bytes: float  # D, and Z where it is kept
    precision: str
    has_c: bool
    c_by_tma: bool  # as far as the problem decides it
    has_activation: bool

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch


def shape_of(problem: _C.Problem) -> Shape:
    """The plain numbers of a Problem."""
    a, b, c, d = problem.a, problem.b, problem.c, problem.d
    m, n, k, batch = problem.m, problem.b_columns, problem.k, problem.batch
    written = problem.d_columns + (n if problem.aux else 0)  # columns of D and Z
    bytes_a, bytes_b, bytes_d = (ELEMENT_BYTES.get(x.dtype, 1) for x in (a, b, d))
    shared_a, shared_b = batch > 1 and a.batch_stride == 0, batch > 1 and b.batch_stride == 0
    read = float(m * k * bytes_a * (1 if shared_a else batch) + k * n * bytes_b * (1 if shared_b else batch))
    columns_of_c = 2 * n if problem.gate_gradient else n
    if c.dtype != "none":
        read += (
            ELEMENT_BYTES.get(c.dtype, 4) * (m if c.row_stride else 1) * (columns_of_c if c.col_stride else 1) * batch
        )
    if problem.bias_dtype != "none":
        read += n * ELEMENT_BYTES.get(problem.bias_dtype, 4)
    return Shape(
        m=m,
        n=n,
        k=k,
        batch=batch,
        dtype=a.dtype,
        bytes_a=bytes_a,
        bytes_b=bytes_b,
        bytes_d=bytes_d,
        align_a=a.vector_bytes,
        align_b=b.vector_bytes,
        align_d=d.vector_bytes,
        shared_a=shared_a,
        shared_b=shared_b,
        read_bytes=read,
        write_bytes=float(m * written * bytes_d * batch),
        precision=problem.precision,
        has_c=c.dtype != "none",
        c_by_tma=_tma_moves(c, n) and _tma_moves(d, n),
        has_activation=problem.activation != "none",
    )


@dataclass(frozen=True, slots=True)
class Estimate:
    """What the model says of one plan. Times in microseconds."""

    us: float
    bound: str  # the greatest term: "mma", "dram", "l2", "latency" or "overhead"
    fixed_us: float  # overhead, reduction, fix-up
    mma_us: float
    dram_us: float
    # What follows is 0 where the kernel chooses its own tiles (cuBLASLt).
    l2_us: float = 0.0
    latency_us: float = 0.0
    tiles: int = 0  # of the output
    ctas: int = 0  # tiles x splits
    resident: int = 0  # CTAs that fit on an SM
    waves: float = 0.0  # ctas / (SMs x resident)
    tail_waste: float = 0.0  # share of the MMA work that is padding or idle SMs in the last wave, 0 to 1


def _norm(terms: Iterable[float], p: float) -> float:
    """The p-norm: the greatest term, and more where others come near it and interfere."""
    return math.pow(math.fsum(math.pow(t, p) for t in terms), 1 / p)


def _bound(terms: dict[str, float], fixed: float) -> str:
    greatest = max(terms, key=lambda name: terms[name])
    return greatest if terms[greatest] >= fixed else "overhead"


def tile_grid(kernel: KernelInfo, shape: Shape) -> tuple[int, int, int, int]:
    """(rows of D in a CTA's tile, columns of D, tiles along M, tiles along N), whole clusters only."""
    tile_m, tile_n, cluster_m, cluster_n = *kernel.tile[:2], *kernel.cluster[:2]
    if kernel.mma == "UTCHMMA" and cluster_m > 1:
        tile_m //= cluster_m  # the tile of a two-SM kernel is that of the pair
    if kernel.swap_ab:
        tile_m, tile_n, cluster_m, cluster_n = tile_n, tile_m, cluster_n, cluster_m
    tiles_m = -(-shape.m // (tile_m * cluster_m)) * cluster_m
    tiles_n = -(-shape.n // (tile_n * cluster_n)) * cluster_n
    return tile_m, tile_n, tiles_m, tiles_n


def resident_ctas(kernel: KernelInfo, machine: Machine) -> int:
    """CTAs of the kernel that fit on one SM by shared memory, threads and registers; at least 1.

    Registers a thread: its share of the fp32 accumulators and 64 for addresses and fragments, at most 255.
    A warp-specialised kernel (HGMMA, UTCHMMA) takes the whole register file or tensor memory: one CTA.
    """
    if kernel.mma in ("HGMMA", "UTCHMMA"):
        return 1
    threads = max(kernel.threads, 1)
    fits = min(machine.smem_per_sm // (kernel.smem_bytes + SMEM_RESERVED), machine.threads_per_sm // threads)
    registers = min(255, 64 + kernel.tile[0] * kernel.tile[1] // threads)
    return max(1, min(fits, REGISTERS_PER_SM // (registers * threads)))


@dataclass(frozen=True, slots=True)
class TileOrder:
    """The order in which a kernel walks the output tiles, and the bytes that it reads from DRAM that way."""

    raster: str
    swizzle: int
    read_bytes: float


def dram_read_bytes(kernel: KernelInfo, shape: Shape, machine: Machine, raster: str, swizzle: int) -> float:
    """Bytes read from DRAM with this order of tiles.

    Operands that fit in L2 are read once. Beyond, each wave of CTAs reads the rows of A and the columns of B
    that its block of tiles spans: `swizzle` tiles of the minor dimension by the rest of the wave.
    """
    if _fits_l2(shape, machine):
        return shape.read_bytes
    grid = tile_grid(kernel, shape)
    return _read_by_waves(shape, grid, machine.sms * resident_ctas(kernel, machine), raster, swizzle)


def _read_by_waves(shape: Shape, grid: tuple[int, int, int, int], together: int, raster: str, swizzle: int) -> float:
    tile_m, tile_n, tiles_m, tiles_n = grid
    wave = min(together, tiles_m * tiles_n)
    major, minor = (tiles_m, tiles_n) if raster == "along_m" else (tiles_n, tiles_m)
    along = min(major, -(-wave // min(swizzle, minor)))
    across = min(minor, wave / along)
    rows, cols = (along, across) if raster == "along_m" else (across, along)
    per_wave = min(rows * tile_m, shape.m) * shape.bytes_a + min(cols * tile_n, shape.n) * shape.bytes_b
    return max(shape.read_bytes, tiles_m * tiles_n / wave * per_wave * shape.k * shape.batch)


def _fits_l2(shape: Shape, machine: Machine) -> bool:
    operands = shape.m * shape.k * shape.bytes_a + shape.k * shape.n * shape.bytes_b
    return operands <= machine.cal.l2_resident * machine.l2_bytes


def tile_order(kernel: KernelInfo, shape: Shape, machine: Machine) -> TileOrder:
    """The order with the least DRAM traffic; the plainest of those within 2 % of each other."""
    best = TileOrder("along_m", 1, dram_read_bytes(kernel, shape, machine, "along_m", 1))
    # CUTLASS's stream-K scheduler walks tiles in its own order.
    if best.read_bytes <= shape.read_bytes or "data_parallel" not in kernel.schedules:
        return best
    grid, together = tile_grid(kernel, shape), machine.sms * resident_ctas(kernel, machine)
    for swizzle in (1, 2, 4, 8):
        for raster in ("along_m", "along_n"):
            traffic = _read_by_waves(shape, grid, together, raster, swizzle)
            if traffic < 0.98 * best.read_bytes:
                best = TileOrder(raster, swizzle, traffic)
    return best


def kernel_estimate(
    kernel: KernelInfo, shape: Shape, machine: Machine, *, schedule: str, splits: int, order: TileOrder
) -> Estimate:
    """The model of a kernel whose tiles are known."""
    cal, sms = machine.cal, machine.sms
    tile_m, tile_n, tiles_m, tiles_n = tile_grid(kernel, shape)
    tiles = tiles_m * tiles_n * shape.batch
    in_grid = 1 if schedule == "data_parallel" else splits  # else a CTA adds up the cuts of its tile itself
    ctas = tiles * in_grid
    tile_k = max(1, kernel.tile[2])
    k_cta = -(-shape.k // (in_grid * tile_k)) * tile_k  # rounded up to whole K steps
    resident = resident_ctas(kernel, machine)
    # Tiles that the busiest SM computes. Stream-K deals out single K steps, so it has no wave tail.
    at_once = _sms_of_clusters(kernel.cluster[0] * kernel.cluster[1], machine)
    busiest = max(ctas / at_once, tile_k / max(k_cta, tile_k)) if schedule == "stream_k" else float(-(-ctas // at_once))

    rate = machine.mma_flops_per_us[kernel.mma] * _tile_efficiency(kernel, cal)
    if kernel.mma == "HMMA":
        vector = min(shape.align_a, shape.align_b)
        rate *= (
            cal.any_alignment if vector == 16 and _takes_any_alignment(kernel) else cal.vector_factor.get(vector, 1.0)
        )
    # With swapped operands an instruction multiplies 64 rows of weights, also where the tile has fewer.
    mma_n = max(tile_n, 64) if kernel.swap_ab and kernel.mma == "HGMMA" else tile_n
    tile_flops = 2.0 * tile_m * mma_n * k_cta
    mma_us = max(busiest * tile_flops / rate, ctas * tile_flops / machine.sustained_flops_per_us[kernel.mma])

    # Bytes that one CTA pulls through L2: rows past the end of A and B are not read, multicast ones once.
    rows, cols = min(tile_m, shape.m), min(tile_n, shape.n)
    cluster_m, cluster_n = (kernel.cluster[1], kernel.cluster[0]) if kernel.swap_ab else kernel.cluster[:2]
    cta_bytes = k_cta * (rows * shape.bytes_a / cluster_n + cols * shape.bytes_b / cluster_m)
    l2_us = max(
        busiest * cta_bytes / (cal.l2_bytes_per_clock_sm * machine.clock_mhz),
        ctas * cta_bytes / (cal.l2_bytes_per_clock * sms * machine.clock_mhz),
    )

    stream = cal.dram_efficiency * (cal.cp_async_stream if kernel.mma in ("HMMA", "FFMA") else 1.0)
    if kernel.swap_ab:
        stream *= cal.swapped_stream
    read_bytes = order.read_bytes
    if kernel.swap_ab:  # weights that stream past: a second row of tiles does not find all of them in L2
        read_bytes += cal.reread * (tiles_m - 1) * shape.n * shape.k * shape.bytes_b * shape.batch
    dram_us = (read_bytes + cal.write_cost * shape.write_bytes) / (machine.dram_bytes_per_us * stream)

    # A line that many CTAs want at the same time is handed out by one slice of L2, to one after the other.
    wave = min(ctas, sms) / in_grid
    sharers = max(min(tiles_n, -(-wave // tiles_m)) / cluster_n, min(tiles_m, wave) / cluster_m)
    lines = busiest * k_cta * max(shape.bytes_a, shape.bytes_b) / 128
    l2_us = max(l2_us, lines * sharers * cal.l2_line_clocks / machine.clock_mhz)

    # Little's law: an SM draws at most its bytes in flight per latency, which is L2's for what L2 holds.
    latency_us = 0.0
    if cta_bytes:
        together = min(resident, -(-ctas // sms))  # on the busiest SM
        steps = busiest * k_cta / (tile_k * max(1, kernel.stages - 1) * together)
        cold = min(1.0, order.read_bytes / (ctas * cta_bytes))
        latency_us = steps * (cal.l2_latency_ns + cold * (cal.dram_latency_ns - cal.l2_latency_ns)) * 1e-3

    terms = {"mma": mma_us, "dram": dram_us, "l2": l2_us, "latency": latency_us}
    fixed = cal.overhead_us[kernel.mma] - (cal.sm90_start_us if kernel.family == "sm90" else 0.0)
    fixed += _reduction_us(kernel, shape, machine, schedule, splits)
    fixed += _packing_us(kernel, shape, machine) - _early_us(kernel, shape, machine, ctas)
    fixed += _epilogue_us(kernel, shape, machine, tiles=busiest, mainloop_us=tile_flops / rate)
    fixed += busiest * (splits - in_grid) * _running_sum_us(kernel, machine) if in_grid < splits else 0.0
    useful = shape.m * shape.n * shape.batch / (tile_m * tile_n)  # tiles, if none hung over
    return Estimate(
        us=fixed + _norm(terms.values(), cal.overlap),
        bound=_bound(terms, fixed),
        fixed_us=fixed,
        mma_us=mma_us,
        dram_us=dram_us,
        l2_us=l2_us,
        latency_us=latency_us,
        tiles=tiles,
        ctas=ctas,
        resident=resident,
        waves=ctas / (sms * resident),
        tail_waste=max(0.0, 1.0 - useful * in_grid / (busiest * sms)) if ctas >= sms else 1.0 - useful / tiles,
    )


def _reduction_us(kernel: KernelInfo, shape: Shape, machine: Machine, schedule: str, splits: int) -> float:
    """Time of adding up what several CTAs computed of one tile."""
    cal = machine.cal
    if schedule == "stream_k":
        return _stream_k_us(kernel, shape, machine)
    if schedule != "split_k" or splits == 1:
        return 0.0
    if kernel.family == "sm90" and _splits_in_cluster(kernel, shape, machine, splits):
        return cal.cluster_reduce_us  # through shared memory, within the launch
    # Partials are fp32, written once and read once; they stay in L2 where they take less than half of it.
    partials = 4.0 * shape.m * shape.n * shape.batch * splits
    in_l2 = partials < machine.l2_bytes / 2
    l2_rate = cal.l2_bytes_per_clock * machine.sms * machine.clock_mhz
    return cal.reduce_us + 2 * partials / (l2_rate if in_l2 else machine.dram_bytes_per_us * cal.dram_efficiency)


def _running_sum_us(kernel: KernelInfo, machine: Machine) -> float:
    """Time that a CTA takes of a tile to keep the sum of one cut of K more: running_sum.cuh.

    Nothing where registers hold it. Else the fp32 tile goes to L2 and back, half of that behind the other consumer's
    products where they have a tile each.
    """
    one_each = "_pp_" in kernel.name
    elements = kernel.tile[0] * kernel.tile[1]
    if kernel.swap_ab or elements // (128 if one_each else 256) <= RUNNING_SUM_REGISTERS:
        return 0.0
    return (1 if one_each else 2) * 4.0 * elements / (machine.cal.l2_bytes_per_clock_sm * machine.clock_mhz)


def _splits_in_cluster(kernel: KernelInfo, shape: Shape, machine: Machine, splits: int) -> bool:
    """Whether the splits of a tile make a cluster: of up to 8 CTAs, where all clusters run at once."""
    cluster = splits * kernel.cluster[0] * kernel.cluster[1]
    _, _, tiles_m, tiles_n = tile_grid(kernel, shape)
    return cluster <= 8 and tiles_m * tiles_n * shape.batch * splits <= _sms_of_clusters(cluster, machine)


def _sms_of_clusters(ctas: int, machine: Machine) -> int:
    """SMs that clusters of so many CTAs fill: larger ones leave some of a GPC over."""
    return machine.sms if ctas <= 2 else max(1, int(machine.cal.cluster_fill * machine.sms))


def _stream_k_us(kernel: KernelInfo, shape: Shape, machine: Machine) -> float:
    """Time of stream-K's fix-up: CUTLASS's within the launch, the wgmma family's by a second one.

    There the tiles of the last wave are cut over all CTAs; each CTA writes two fp32 partial tiles at most, which stay
    in L2, and the second launch reads them.
    """
    cal = machine.cal
    if kernel.family != "sm90":
        return cal.stream_k_us
    tile_m, tile_n, tiles_m, tiles_n = tile_grid(kernel, shape)
    cut = tiles_m * tiles_n * shape.batch % machine.sms
    if not cut:
        return 0.0
    partials = 4.0 * tile_m * tile_n * (machine.sms + cut)
    return cal.reduce_us + 2 * partials / (cal.l2_bytes_per_clock * machine.sms * machine.clock_mhz)


def _packing_us(kernel: KernelInfo, shape: Shape, machine: Machine) -> float:
    """Time of the copy of operands that TMA can't read, before a kernel of the wgmma family: read and written once."""
    if kernel.family != "sm90":
        return 0.0
    elements_a = shape.m * shape.k * (1 if shape.shared_a else shape.batch)
    elements_b = shape.k * shape.n * (1 if shape.shared_b else shape.batch)
    packed = shape.bytes_a * elements_a * (shape.align_a < 16) + shape.bytes_b * elements_b * (shape.align_b < 16)
    if not packed:
        return 0.0
    return machine.cal.pack_us + 2 * packed / (machine.dram_bytes_per_us * machine.cal.pack_stream)


def _early_us(kernel: KernelInfo, shape: Shape, machine: Machine, ctas: int) -> float:
    """Time that a wgmma-family kernel saves by starting while the one before it still runs: the rules of launch.cuh."""
    if kernel.family != "sm90":
        return 0.0
    cluster = kernel.cluster[0] * kernel.cluster[1]
    room = _sms_of_clusters(cluster, machine)
    ctas = min(ctas, room)
    early = 4 * ctas >= 3 * room or (cluster == 2 and 2 * ctas > room)
    return machine.cal.early_us if early else 0.0


def _epilogue_us(kernel: KernelInfo, shape: Shape, machine: Machine, *, tiles: float, mainloop_us: float) -> float:
    """Time that the epilogues of a wgmma-family kernel add to the mainloops of an SM's tiles.

    Cooperative consumers stop multiplying for each. Of two ping-pong consumers one multiplies meanwhile: two tiles
    take as long as both mainloops, or one mainloop and one epilogue, whichever is more; the last tile's epilogue, by
    one warpgroup, is never hidden.
    """
    if kernel.family != "sm90":
        return 0.0
    cal = machine.cal
    element_ns = 0.0 if kernel.swap_ab else cal.epilogue_ns
    if shape.has_c:
        by_tma = shape.c_by_tma and not kernel.swap_ab and _whole_boxes(kernel.tile[1])
        element_ns += cal.epilogue_c_tma_ns if by_tma else cal.epilogue_c_ns
    element_ns += cal.epilogue_activation_ns * shape.has_activation
    elements = kernel.tile[0] * kernel.tile[1] // (2 if kernel.gated else 1)
    us = elements * element_ns * 1e-3
    if "_pp_" not in kernel.name:
        return tiles * us
    one_warpgroup = 2 * us
    return max(tiles - 1.0, 0.0) * max(0.0, (one_warpgroup - mainloop_us) / 2) + one_warpgroup


def _tma_moves(x: _C.Matrix, n: int) -> bool:
    """Whether a C or D of 16-bit elements goes by TMA: rows of whole 16-byte words (launch.cuh)."""
    return ELEMENT_BYTES.get(x.dtype) == 2 and x.major == "n" and x.vector_bytes >= 16 and n % 8 == 0


def _whole_boxes(tile_n: int) -> bool:
    """Whether the columns of a tile are whole boxes of box_store.cuh: 64, or the greatest power of two in fewer."""
    return tile_n % min(64, 1 << (tile_n.bit_length() - 1)) == 0


def _takes_any_alignment(kernel: KernelInfo) -> bool:
    return kernel.name.endswith("_align2")


def _tile_efficiency(kernel: KernelInfo, cal: Calibration) -> float:
    tile_m, tile_n = kernel.tile[:2]
    efficiency = tile_m * tile_n / (tile_m * tile_n + cal.tile_knee[kernel.mma] * (tile_m + tile_n))
    if kernel.mma == "HGMMA":
        # m64nNk16 reads (64 + N) * 32 bytes of shared memory at 128 B a clock in the N/2 clocks of its MMA.
        efficiency = min(efficiency, 2 * tile_n / (64 + tile_n))
    return efficiency


def library_estimate(shape: Shape, machine: Machine) -> Estimate:
    """The model of cuBLASLt: an ideal kernel at the efficiency it is known to reach."""
    cal = machine.cal
    cuda_cores = shape.dtype == "f32" and shape.precision == "ieee"
    efficiency = cal.lt_ffma_efficiency if cuda_cores else cal.lt_efficiency
    stream = cal.dram_efficiency
    operand = min(shape.align_a, shape.align_b)
    if not cuda_cores and operand < 16:
        efficiency = cal.lt_unaligned_operand[operand]
        stream = cal.lt_unaligned_stream if operand < 4 else stream
    elif not cuda_cores and shape.align_d < 16:
        efficiency = cal.lt_unaligned_output[shape.align_d]
    mma_us = shape.flops / (machine.peak_flops_per_us[shape.dtype, shape.precision] * efficiency)
    dram_us = (shape.read_bytes + cal.write_cost * shape.write_bytes) / (machine.dram_bytes_per_us * stream)
    fixed = cal.lt_overhead_us
    if min(shape.m, shape.n) <= 32:
        fixed += cal.lt_decode_us * max(0.0, 1.0 - shape.read_bytes / cal.lt_decode_bytes)
    return Estimate(
        us=fixed + _norm((mma_us, dram_us), cal.lt_overlap),
        bound=_bound({"mma": mma_us, "dram": dram_us}, fixed),
        mma_us=mma_us,
        dram_us=dram_us,
        fixed_us=fixed,
    )


def second_step_us(problem: _C.Problem, machine: Machine) -> float:
    """Time of the elementwise launch that makes D of what the product of plain_problem() left in the workspace."""
    cal, shape = machine.cal, shape_of(problem)
    product_bytes = float(shape.m * shape.n * shape.batch)
    product_bytes *= shape.bytes_d if problem.gate_gradient else 4
    stream = machine.dram_bytes_per_us * cal.dram_efficiency
    l2_rate = cal.l2_bytes_per_clock * machine.sms * machine.clock_mhz
    streamed = shape.write_bytes * (2 if problem.gate_gradient else 1)  # which reads a Z as large as D
    return (
        cal.reduce_us
        + product_bytes / (l2_rate if product_bytes < machine.l2_bytes / 2 else stream)
        + streamed / stream
    )


def predict(kernel: KernelInfo, shape: Shape, machine: Machine, plan: _C.Plan) -> Estimate:
    """The model's estimate of a Plan of this kernel."""
    if kernel.is_library:
        return library_estimate(shape, machine)
    read = dram_read_bytes(kernel, shape, machine, plan.raster, plan.swizzle)
    order = TileOrder(plan.raster, plan.swizzle, read)
    return kernel_estimate(kernel, shape, machine, schedule=plan.schedule, splits=plan.splits, order=order)
