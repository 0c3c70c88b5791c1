"""Constants of the time model, one Calibration per compute capability, each with the measurement it comes from.

Measured means: NVIDIA H200, torch 2.11.0+cu130, cuBLAS 13.1, CUDA graphs, cold L2, 2026-11-30. Everything else is
an estimate and says so. Fitted means: chosen together, by random search, for the least error and regret over the
bf16 products that benchmarks/variants.py and benchmarks/tune.py timed (M 1 to 8192, the rows of the wgmma family in
all schedules) before boxes ended with the matrix. Timing a few plans (benchmarks/tune.py) pays, and a measured table
(tables.py) overrules the model wherever it has a row; docs/selection.md says how far the model's choice is off.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Calibration:
    # --- memory ---
    # Share of the nominal bandwidth that a GEMM reads at. Fitted (below); a streaming read of 1 GB reaches 0.97.
    dram_efficiency: float = 0.93
    # A byte written counts as this many read: 8192 x 8192 x 128 (134 MB of D) takes 47.3-52.5 us.
    write_cost: float = 1.3
    # Bytes per clock that L2 delivers to one SM, and to all SMs together, per SM. Fitted.
    l2_bytes_per_clock_sm: float = 90.0
    l2_bytes_per_clock: float = 88.0
    # Clocks in which L2 hands one line to one of the SMs that want it. Fitted.
    l2_line_clocks: float = 1.0
    # Nanoseconds from request to data; they set the bandwidth that S stages in flight can draw. Fitted.
    dram_latency_ns: float = 1160.0
    l2_latency_ns: float = 544.0
    # Share of the weights that each further row of tiles reads again with operands swapped. M = 16 in tiles of 8 and
    # of 16, us: 6144x4096 17.6 and 16.0, 28672x4096 62.2 and 59.6.
    reread: float = 0.1
    # Operands below this share of L2 are read from DRAM once, whatever the order of the tiles. Estimate.
    l2_resident: float = 0.6

    # --- fixed cost of a launch, us: launch, barrier set-up, first stage's latency, last tile's epilogue ---
    # HGMMA: fitted. Others: estimates.
    overhead_us: dict[str, float] = field(
        default_factory=lambda: {"FFMA": 2.5, "HMMA": 3.0, "HGMMA": 3.0, "UTCHMMA": 4.0}
    )
    # ... by which the wgmma family's own kernels now take less: their first load comes sooner (docs/experiments.md).
    sm90_start_us: float = 0.6
    # ... of which an early start hides this much: 1x4096x4096 11.6 us without, 10.8 with it.
    early_us: float = 0.8
    # The second launch of a split-K or stream-K reduction. Fitted.
    reduce_us: float = 3.5
    # Split-K inside a cluster: two cluster barriers and the reads of the neighbours' shared memory. 16x1024x4096 takes
    # 8.4 us in 16 CTAs of 64x16 tiles, 6.8 in two cuts, 6.1 in four. Fitted to the table's ranks.
    cluster_reduce_us: float = 2.0
    # The packing copy of unaligned operands: its launch, and the share of DRAM's bandwidth that it reaches.
    # 2048x4096x4097 takes 32 us more than 2048x4096x4096, 1001^3 6 us more than 1000^3.
    pack_us: float = 4.0
    pack_stream: float = 0.7
    # The epilogue of the wgmma family, nanoseconds per element of D, two warpgroups at work. Fitted.
    epilogue_ns: float = 0.008
    # ... and more with C element by element (4096x8192x2048 took 150 us longer in 128x256 tiles) or with an activation
    # (80 us). With C by TMA the same takes 274 us; what it takes there without C was not measured: estimate.
    epilogue_c_ns: float = 0.59
    epilogue_c_tma_ns: float = 0.27
    epilogue_activation_ns: float = 0.31
    # Share of the SMs that clusters of more than two CTAs fill: 30 of four run at once on an H200.
    cluster_fill: float = 0.91
    # CUTLASS's stream-K: its fix-up waits for a neighbour's partial tile through L2. Estimate.
    stream_k_us: float = 2.0

    # --- arithmetic ---
    # Share of mma_rate (profiles.py) that one SM sustains with an infinite tile. HGMMA: fitted; above 1 because the
    # clock is above the nominal one where not all SMs are busy. HMMA: with its knee 0.68 of the 0.62 in profiles.py at
    # 128x256: 54 % of cuBLAS at 4096^3. FFMA: a 128x128x8 rung reaches 43 % of cuBLAS's 50 of 67 TFLOP/s, a
    # double-buffered one more: estimate.
    mma_efficiency: dict[str, float] = field(
        default_factory=lambda: {"FFMA": 0.70, "HMMA": 0.84, "HGMMA": 1.2, "UTCHMMA": 1.15}
    )
    # A tile of intensity i = m*n/(m+n) runs at i/(i + knee) of that. HMMA at 128x256 0.81, 64x64 0.62.
    tile_knee: dict[str, float] = field(
        default_factory=lambda: {"FFMA": 20.0, "HMMA": 20.0, "HGMMA": 0.06, "UTCHMMA": 0.06}
    )
    # Share of the nominal peak that all SMs together sustain: power. Fitted.
    sustained: dict[str, float] = field(default_factory=lambda: {"HGMMA": 0.70, "UTCHMMA": 0.70})
    # mma.sync with 8-, 4- and 2-byte loads instead of 16-byte ones, share of its rate. Estimates: twice the
    # cp.async instructions at 8 bytes, and plain loads through registers at 2.
    vector_factor: dict[int, float] = field(default_factory=lambda: {16: 1.0, 8: 0.9, 4: 0.75, 2: 0.5, 1: 0.4})
    # Share of their rate that mma.sync kernels for any alignment keep on operands that have 16 bytes: H200, 4096^3,
    # 24.6 % of torch.mm where the aligned kernel of the same tile has 54.2.
    any_alignment: float = 0.45
    # mma.sync kernels stream at this share of what TMA does: estimate, to be replaced by a measurement.
    cp_async_stream: float = 0.85
    # ... of kernels with swapped operands, whose weights stream past on every SM. Fitted to the decode rows.
    swapped_stream: float = 1.07

    # Exponent of the p-norm over MMA, DRAM, L2 and latency: two equal terms cost 2^(1/2.4), 33 % more than one. Fitted.
    overlap: float = 2.4

    # --- cuBLASLt, which picks its own kernel ---
    # At the power limit, where a model's layers run and our own constants were fitted: 4096^3 216 us = 635 TFLOP/s of
    # 989, 8192^3 1690 us = 651. A cooler GPU reaches 0.78: 2048x4096x4096 at 781.
    lt_efficiency: float = 0.66
    # 13.8 us at 1x4096x4096: 7.8 streaming + lt_overhead + lt_decode; 12.3 at M=64, where lt_decode is 0.
    lt_overhead_us: float = 3.0
    # Extra time for min(M, N) <= 32, shrinking to 0 at 240 MB of operands: 1x4096x4096 13.8 us, 1x6144x4096
    # 16.0, 1x4096x14336 31.8, 1x28672x4096 56.3 (at which it equals the streaming floor).
    lt_decode_us: float = 3.0
    lt_decode_bytes: float = 240e6
    # 128x4096x4096 takes 13.9 us, 8.5 of DRAM and 5.6 of MMA: the two overlap less than perfectly.
    lt_overlap: float = 3.0
    # Operands without 16-byte alignment, share of peak. A or B on 2 bytes: 2048x4096x4097 541 us = 127
    # TFLOP/s, 4001^3 1029 us = 124. D on 2 bytes: 2048x4097x4096 734 us, 2048x50257x768 1682 us = 94. The operands'
    # alignment decides where both are bad. Operands on 4 bytes: 2048x4096x4098 285 us = 241; on 8: 9477x1152x588
    # 85 us = 152, a quarter of its tiles padding. D on 8: 2048x4100x4096 263 us = 262. The rest are estimates.
    lt_unaligned_operand: dict[int, float] = field(default_factory=lambda: {8: 0.24, 4: 0.24, 2: 0.128, 1: 0.10})
    lt_unaligned_output: dict[int, float] = field(default_factory=lambda: {8: 0.265, 4: 0.25, 2: 0.095, 1: 0.08})
    # ... and the same without alignment where memory bounds it: 16x4096x4097 37 us = 0.96 TB/s of 4.8.
    lt_unaligned_stream: float = 0.2
    # fp32 on the CUDA cores: 50-51 of 67 TFLOP/s from 2048^3 up.
    lt_ffma_efficiency: float = 0.76


SM90 = Calibration()

# Ampere and Ada: mma.sync is the native instruction, and CUTLASS 2.x is known to reach 85 % of an A100's 312
# TFLOP/s, as cuBLAS does. cp.async is as good as it gets there. Estimates: no measurement of this project.
SM80 = replace(
    SM90,
    mma_efficiency={"FFMA": 0.70, "HMMA": 1.0},
    tile_knee={"FFMA": 20.0, "HMMA": 15.0},
    lt_efficiency=0.85,
    cp_async_stream=1.0,
    lt_unaligned_operand={8: 0.70, 4: 0.60, 2: 0.30, 1: 0.20},
    lt_unaligned_output={8: 0.70, 4: 0.60, 2: 0.30, 1: 0.20},
)

# Blackwell: Hopper's constants until the first measurement.
SM100 = SM90

CALIBRATIONS: dict[int, Calibration] = {80: SM80, 90: SM90, 100: SM100, 120: SM80}


def calibration(capability: int) -> Calibration:
    """The constants of a capability; those of the nearest lower one where it has none of its own."""
    known = [c for c in CALIBRATIONS if c <= capability]
    return CALIBRATIONS[max(known) if known else min(CALIBRATIONS)]
