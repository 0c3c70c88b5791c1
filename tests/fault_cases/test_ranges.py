"""B20-B26: 32-bit offsets, grid limits, tails, workspaces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from every_way import (
    OP,
    OP_OUT,
    SPECS,
    assert_every_way_is_right,
    every_way,
    normal,
    on_every_device,
    oracle,
    results,
    ways,
)
from gemmx import _C, reference
from gemmx.ops import check
from gemmx.select.explain import check_shape
from gemmx.select.profiles import profile
from problems import DTYPES, bits

dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)


def test_b20_strides_are_64_bit() -> None:
    """What reaches the kernels of a batch whose last matrix lies beyond 2^31 elements."""
    a = _C.TensorDesc("bf16", "cuda", 0, (512, 8209, 1), (8209, 1, 1))
    b = _C.TensorDesc("bf16", "cuda", 0, (512, 1, 512), (512, 512, 1))
    problem = _C.check_gemm(a, b).problem
    assert problem.d.batch_stride * (problem.batch - 1) == 511 * 8209 * 512 > 2**31


@pytest.mark.gpu
@pytest.mark.parametrize("m", [8208, 8209, 8216])
def test_b20_offsets_beyond_32_bits(m: int) -> None:
    """Every kernel, D inside a larger buffer; K of 1, and of 8 for kernels that need whole vectors."""
    batch, n = 512, 512
    k = 8 if m == 8216 else 1
    numel = batch * m * n
    if torch.cuda.mem_get_info()[0] < 3 * 2 * numel:
        pytest.skip("needs 13 GB of free memory")
    rows = torch.arange(batch, device="cuda")[:, None] + torch.arange(m, device="cuda")[None]
    a = (rows % 7).to(torch.bfloat16)[:, :, None].repeat(1, 1, k)
    b = (torch.arange(n, device="cuda") % 5).to(torch.bfloat16)[None, :, None].repeat(batch, 1, k).mT
    buffer = torch.full((numel + 2048,), torch.nan, dtype=torch.bfloat16, device="cuda")
    out = buffer[1024 : 1024 + numel].view(batch, m, n)
    for way in [x for x in ways(a, b, out=out) if x.splits <= 1]:
        out[[0, 255, 511]] = torch.nan
        OP_OUT(a, b, kernel_name=way.kernel, schedule=way.schedule, out=out)
        for i in (0, 255, 511):
            assert torch.equal(out[i].float(), a[i].float() @ b[i].float()), f"{way}, batch {i}"
        assert buffer[:1024].isnan().all(), way
        assert buffer[-1024:].isnan().all(), way


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [65_535, 65_536, 131_072])
@pytest.mark.parametrize("shape", [(8, 8, 8), (225, 1, 4)])
@dtypes
def test_b21_more_batches_than_a_grid_dimension(batch: int, shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, n, k = shape
    a = normal(batch, m, k, dtype=dtype, device="cuda")
    b = normal(batch, k, n, dtype=dtype, device="cuda")
    exact, bound = oracle(a, b)
    for way in ways(a, b, splits=()):
        for what, d in results(a, b, way=way, outs=(None,)):
            assert not reference.outside_bound(d, exact, bound).any(), what
    assert OP(a[:1], b[:1]).shape == (1, m, n)  # the context is usable


def test_b21_no_kernel_takes_more_than_its_grid() -> None:
    """supports() counts, so that a launch never fails for its grid."""
    for name, spec in SPECS.items():
        problem = check_shape(64, 64, 64, spec.dtype_a, batch=2**31 + 5).problem
        device = profile("h200" if spec.min_capability <= 90 else "b200")
        if spec.family not in ("simt",):  # whose grid walks over batches
            assert _C.supports(name, problem, device), name


TAILS = (1, 127, 129, 255, 257)


@on_every_device
@dtypes
def test_b23_vectors_are_not_read_past_their_end(place: str, dtype: torch.dtype) -> None:
    """C of one value a row and bias of one a column, alone in their buffers: NaN begins where they end."""
    for extent in TAILS if place == "cuda" else (1, 7, 17):
        for m, n in ((extent, 40), (40, extent)):
            a, b = normal(m, 64, dtype=dtype, device=place), normal(n, 64, dtype=dtype, device=place).t()
            column = torch.full((m + 512,), torch.nan, dtype=dtype, device=place)
            row = torch.full((n + 512,), torch.nan, dtype=dtype, device=place)
            column[:m], row[:n] = normal(m, device=place), normal(n, device=place)
            assert_every_way_is_right(a, b, c=column[:m, None], bias=row[:n], outs=(None,))
            assert_every_way_is_right(a, b, c=row[None, :n], beta=0.5, outs=(None,))


def test_b23_scales_are_refused() -> None:
    a, b = torch.ones(1, 64), torch.ones(64, 8)
    for name, scale in (("scale_a", torch.ones(1, 1)), ("scale_b", torch.ones(1, 8)), ("scale_d", torch.ones(1))):
        with pytest.raises(RuntimeError, match=f"^{name}: scale tensors are not supported"):
            OP(a, b, **{name: scale})


def surrounded(values: Tensor, filling: int, *, offset: int) -> Tensor:
    """A copy of the values in the middle of a buffer whose other bytes are `filling`."""
    buffer = torch.full(((values.numel() + 1024) * values.element_size(),), filling, dtype=torch.uint8)
    placed = buffer.to(values.device).view(values.dtype)[512 + offset : 512 + offset + values.numel()]
    return placed.view(values.shape).copy_(values)


@on_every_device
@dtypes
@pytest.mark.parametrize("shape", [(1000, 999, 1001), (1000, 1000, 1000), (65, 72, 104), (16, 64, 257)], ids=str)
def test_b25_what_lies_around_operands_is_not_multiplied(
    place: str, dtype: torch.dtype, shape: tuple[int, int, int]
) -> None:
    """Bytes of 0xFF are NaN in every type here, 0x00 and 0xFE are not: not one bit of D may depend on them."""
    m, n, k = shape if place == "cuda" else tuple(x % 41 for x in shape)
    a, b = normal(m, k, dtype=dtype, device=place), normal(n, k, dtype=dtype, device=place)
    bias = normal(n, dtype=dtype, device=place)
    offset = 0 if k % 8 == 0 else 1
    filled = [[surrounded(x, filling, offset=offset) for x in (a, b, bias)] for filling in (0xFF, 0x00, 0xFE)]
    exact, bound = oracle(a, b.t(), bias=bias)
    for way in ways(filled[0][0], filled[0][1].t(), bias=filled[0][2]):
        found = [next(iter(results(x, y.t(), bias=z, way=way, outs=(None,))))[1] for x, y, z in filled]
        assert not reference.outside_bound(found[0], exact, bound).any(), way
        assert all(torch.equal(bits(d), bits(found[0])) for d in found), way


SM_COUNTS = (1, 7, 84, 132, 188, 1000)


def with_sms(device: _C.Device, sms: int) -> _C.Device:
    fields = ("name", "capability", "smem_per_block", "smem_per_sm", "l2_bytes", "clock_ghz", "dram_gbps")
    return _C.Device(**{name: getattr(device, name) for name in fields}, sm_count=sms)


def test_b26_workspaces_hold_every_partial() -> None:
    """Split-K has a float32 partial of D for each split, or none in memory, whatever M and the number of SMs are."""
    for spec in SPECS.values():
        if "split_k" not in spec.schedules:
            continue
        for m in range(1, 65):
            majors = {"major_a": spec.major_a, "major_b": spec.major_b}
            majors = {name: major for name, major in majors.items() if major != "none"}
            problem = check_shape(m, 2560, 4096, spec.dtype_a, **majors).problem
            whole = _C.workspace_size(spec.name, problem, _C.Plan(spec.name), profile("h200"))
            for splits in (2, 8, 16):
                plan = _C.Plan(spec.name, "split_k", splits)
                sizes = {_C.workspace_size(spec.name, problem, plan, with_sms(profile("h200"), x)) for x in SM_COUNTS}
                # Nothing more than without splits where the partials stay in shared memory or registers.
                assert sizes == {whole} or min(sizes) >= whole + splits * m * 2560 * 4, (spec.name, m, splits)


@pytest.mark.gpu
def test_b26_partials_stay_in_the_workspace() -> None:
    """The workspace is a hole between two canaries: the allocator's only free block of its size."""
    device = _C.cuda_device(0)
    checked = 0
    for spec in SPECS.values():
        if "split_k" not in spec.schedules or not _C.built_for(spec.name, device.capability):
            continue
        for m in (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 48, 63, 64):
            dtype = DTYPES[spec.dtype_a]
            a = normal(m, 4096, dtype=dtype, device="cuda")
            b = normal(4096, 640, dtype=dtype, device="cuda")
            a = a.t().contiguous().t() if spec.major_a == "m" else a
            b = b.t().contiguous().t() if spec.major_b == "k" else b
            request: dict[str, Any] = {"kernel": spec.name, "schedule": "split_k", "splits": 16}
            problem = check(a, b, **request).problem
            if _C.supports(spec.name, problem, device):
                continue
            size = _C.workspace_size(spec.name, problem, _C.Plan(spec.name, "split_k", 16), device)
            if not size:  # the partials stay in shared memory
                continue
            out = torch.empty(m, 640, dtype=dtype, device="cuda")
            OP_OUT(a, b, kernel_name=spec.name, schedule="split_k", splits=16, out=out)  # decided and prepared
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            left, hole, right = (torch.full((size,), 0xA5, dtype=torch.uint8, device="cuda") for _ in range(3))
            adjacent = -(-size // 512) * 512
            between = hole.data_ptr() - left.data_ptr(), right.data_ptr() - hole.data_ptr()
            del hole
            OP_OUT(a, b, kernel_name=spec.name, schedule="split_k", splits=16, out=out)
            assert (left == 0xA5).all(), (spec.name, m)
            assert (right == 0xA5).all(), (spec.name, m)
            checked += between == (adjacent, adjacent)
    assert checked, "no workspace lay between its canaries"


@on_every_device
def test_b26_4_bit_weights_are_refused(place: str) -> None:
    from every_way import assert_no_op

    assert_no_op("gemm_w4")
    packed = torch.zeros(64, 8, dtype=torch.uint8, device=place)
    with pytest.raises(RuntimeError, match=r"^[ab]: dtype is uint8 but gemm takes"):
        OP(torch.ones(1, 64, device=place, dtype=torch.bfloat16), packed)


@on_every_device
def test_b26_small_m_with_every_split(place: str) -> None:
    for m in (1, 5, 16) if place == "cuda" else (1,):
        a, b = normal(m, 4096, device=place, dtype=torch.bfloat16), normal(64, 4096, device=place, dtype=torch.bfloat16)
        for what, d in every_way(a, b.t(), splits=(2, 5, 8, 16)):
            assert not reference.outside_bound(d, *oracle(a, b.t())).any(), what
