"""The gated form, the form with the pre-activation and the backward ops on the GPU, against float64.

Calls run as selected, by one kernel where one has the form, and by a plain kernel named, which takes two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from forms import FORMS, OPS, Call, Form
from gemmx import _C, reference
from gemmx.ops import op_arguments
from problems import ACTIVATIONS, ALIGNED, DTYPES, Case, Layout, bits

pytestmark = pytest.mark.gpu

REPEATS = 20


forms = pytest.mark.parametrize("form", FORMS, ids=str)
dtypes = pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
ALL_ACTIVATIONS = (("none", ()), *ACTIVATIONS)


def plain_kernel(call: Call, device: _C.Device) -> str:
    """The kernel that the first of two steps would take."""
    return _C.select(_C.plain_problem(call.problem()), device).kernel


def with_every_major(case: Case) -> Iterator[Case]:
    for major_a in ("k", "m"):
        for major_b in ("k", "n"):
            yield case.with_majors(major_a, major_b)


# (M, N, K), N being D's: tails of tiles, of vectors and of the elementwise kernel's strips; K = 0; one row and column.
SHAPES = (
    (1, 1, 1), (1, 8, 7), (2, 16, 8), (7, 17, 16), (16, 63, 31), (17, 64, 32), (65, 72, 104), (64, 64, 64),
    (128, 128, 64), (129, 257, 300), (257, 40, 1000), (16, 4096, 256), (1, 300, 4096), (33, 132, 0), (300, 520, 136),
    (256, 256, 1024),
)  # fmt: skip


def shape_cases(form: Form) -> Iterator[Case]:
    for index, (m, n, k) in enumerate(SHAPES):
        layout = {"a": ALIGNED, "b": ALIGNED} if index % 2 else {}
        activation = None if form.gated else ("gelu", None)[index % 2]
        yield from with_every_major(Case(m, n, k, **layout, activation=activation))


def layout_cases(form: Form) -> Iterator[Case]:
    activation = None if form.gated else "silu"
    for m, n, k in ((65, 72, 104), (136, 264, 1024), (1, 130, 257)):
        case = Case(m, n, k, a=ALIGNED, b=ALIGNED, activation=activation)
        for layout in (
            Layout(ld_pad=5),
            Layout(ld_multiple=8, ld_pad=24),
            Layout(ld_multiple=8, offset=1),
            Layout(ld_multiple=8, offset=4),
            Layout(ld_multiple=8, expand="minor"),
            Layout(step=2),
        ):
            yield replace(case, a=layout)
            yield replace(case, b=layout)


def epilogue_cases(form: Form) -> Iterator[Case]:
    for out_dtype in (None, "f32"):
        for m, n, k in ((65, 136, 64), (130, 75, 264)):
            base = Case(m, n, k, a=ALIGNED, b=ALIGNED, out_dtype=out_dtype)
            for activation, args in ALL_ACTIVATIONS:
                yield replace(base, activation=activation, activation_args=args, alpha=0.125)
            for bias in ("a", "f32", "strided", "offset"):
                yield replace(base, bias=bias, activation="silu")
            for alpha in (0.0, -0.75):
                yield replace(base, bias="a", alpha=alpha)
            yield replace(base, special="nan")
            yield replace(base, special="inf", activation="relu")
            if not form.gated:
                for c in ("full", "aligned", "row", "column", "scalar", "f32"):
                    yield replace(base, c=c, beta=0.5, activation="gelu")
                yield replace(base, c="full", bias="a", beta=0.0)
        yield Case(33, 40, 0, bias="a", out_dtype=out_dtype, activation="silu")


def batch_cases(form: Form) -> Iterator[Case]:
    if form.gated:
        yield Case(17, 40, 64, batch=3, shared="b", bias="a")
        return
    for shared in ("", "a", "b"):
        yield Case(17, 40, 64, batch=3, shared=shared, a=ALIGNED, b=ALIGNED, activation="silu")
        yield Case(130, 137, 96, batch=3, shared=shared, bias="a", c="full", beta=0.5, activation="relu")


def schedule_cases(form: Form) -> Iterator[Case]:
    del form
    for splits in (2, 8):
        yield Case(16, 256, 4096, a=ALIGNED, b=ALIGNED, splits=splits, bias="a")
    yield Case(65, 64, 2048, a=ALIGNED, b=ALIGNED, schedule="split_k")
    yield Case(256, 256, 1024, a=ALIGNED, b=ALIGNED, schedule="data_parallel", activation="silu")


GROUPS: dict[str, Callable[[Form], Iterator[Case]]] = {
    "shapes": shape_cases,
    "layouts": layout_cases,
    "epilogues": epilogue_cases,
    "batches": batch_cases,
    "schedules": schedule_cases,
}


def skip_splits_of_float32(dtype: str, group: str) -> None:
    if dtype == "f32" and group == "schedules":
        pytest.skip("no float32 kernel cuts K")


def is_unsupported(call: Call, kernel: str, device: _C.Device) -> bool:
    problem = call.problem(kernel)
    if not _C.form_supported(problem, device):
        problem = _C.plain_problem(problem)
    return _C.supports(kernel, problem, device) != ""


@forms
@dtypes
@pytest.mark.parametrize("group", GROUPS)
def test_form_as_selected(form: Form, dtype: str, group: str) -> None:
    skip_splits_of_float32(dtype, group)
    faults: list[str] = []
    for case in GROUPS[group](form):
        call = Call(form, case, dtype)
        faults += call.faults(*call.run())
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults[:20])


@forms
@dtypes
@pytest.mark.parametrize("group", GROUPS)
def test_form_in_two_steps(form: Form, dtype: str, group: str, device: _C.Device) -> None:
    skip_splits_of_float32(dtype, group)
    faults: list[str] = []
    for case in GROUPS[group](form):
        call = Call(form, case, dtype)
        kernel = plain_kernel(call, device)
        assert not _C.form_supported(call.problem(kernel), device)
        before = _C.launch_counts()[kernel]
        faults += call.faults(*call.run(kernel))
        assert _C.launch_counts()[kernel] == before + 1
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults[:20])


@pytest.mark.parametrize("group", GROUPS)
def test_kernel_of_a_form(form_kernel: str, group: str, device: _C.Device) -> None:
    """Every kernel that has a form, by name."""
    spec = next(spec for spec in _C.kernels() if spec.name == form_kernel)
    form = Form(gated=spec.gated, aux=spec.aux)
    faults: list[str] = []
    ran = 0
    for case in GROUPS[group](form):
        call = Call(form, case, spec.dtype_a)
        if is_unsupported(call, form_kernel, device):
            continue
        ran += 1
        faults += call.faults(*call.run(form_kernel))
    assert not faults, f"{len(faults)} faults in {ran} cases:\n" + "\n".join(faults[:20])
    if ran == 0:
        assert group != "shapes", "supports() declines every shape"
        pytest.skip(f"supports() declines every case of {group}")


def test_a_form_has_the_bits_of_two_steps(form_kernel: str, device: _C.Device) -> None:
    """With a plain product of the same class of kernels: batch_invariant rests on it, where M or a stride decides."""
    spec = next(spec for spec in _C.kernels() if spec.name == form_kernel)
    form = Form(gated=spec.gated, aux=spec.aux)
    faults: list[str] = []
    ran = 0
    for m, n, k in ((130, 264, 520), (17, 72, 4096)):
        for activation, args in ALL_ACTIVATIONS:
            for out_dtype in (None, "f32"):
                case = Case(m, n, k, a=ALIGNED, b=ALIGNED, bias="a", alpha=0.5, out_dtype=out_dtype)
                # Left to itself a plain kernel that is named may cut K; forms never do.
                case = replace(case, activation=activation, activation_args=args, schedule="data_parallel")
                call = Call(form, case.with_majors(spec.major_a, spec.major_b), spec.dtype_a)
                if is_unsupported(call, form_kernel, device):
                    continue
                plain = _C.plain_problem(call.problem())
                steps = next(
                    s.name
                    for s in _C.kernels()
                    if s.numerics == spec.numerics
                    and not (s.gated or s.aux or s.teaching)
                    and _C.built_for(s.name, device.capability)
                    and not _C.supports(s.name, plain, device)
                )
                ran += 1
                pairs = zip(call.run(form_kernel), call.run(steps), strict=True)
                for name, (one, two) in zip(("D", "Z"), pairs, strict=True):
                    if one is not None and two is not None and not torch.equal(bits(one), bits(two)):
                        faults.append(f"{call.case}: {name} differs from that of {steps}")
    assert ran
    assert not faults, f"{len(faults)} faults in {ran} cases:\n" + "\n".join(faults[:20])


@forms
def test_every_plain_kernel_serves_two_steps(form: Form, device: _C.Device) -> None:
    """One case by each kernel that is built and takes it: Z is a float32 D to all of them."""
    faults: list[str] = []
    ran = 0
    for spec in _C.kernels():
        if spec.has_form or spec.teaching or not _C.built_for(spec.name, device.capability):
            continue
        if spec.dtype_a not in DTYPES:
            continue
        case = Case(130, 136, 264, a=ALIGNED, b=ALIGNED, bias="a", activation="silu")
        if spec.dtype_a == "f32" and spec.mma != "FFMA":
            case = replace(case, precision="tf32")
        case = case.with_majors(spec.major_a.replace("none", "k"), spec.major_b.replace("none", "k"))
        call = Call(form, case, spec.dtype_a)
        if is_unsupported(call, spec.name, device):
            continue
        ran += 1
        faults += [f"{spec.name}: {fault}" for fault in call.faults(*call.run(spec.name))]
    assert ran
    assert not faults, f"{len(faults)} faults in {ran} kernels:\n" + "\n".join(faults[:20])


@forms
@pytest.mark.parametrize("two_steps", [False, True])
def test_equal_calls_give_equal_bits(form: Form, two_steps: bool, device: _C.Device) -> None:
    for case in (
        Case(130, 264, 2056, a=ALIGNED, b=ALIGNED, bias="a", activation="silu"),
        Case(65, 131, 301, bias="f32", activation="gelu"),
        Case(16, 512, 4096, a=ALIGNED, b=ALIGNED, splits=4),
    ):
        call = Call(form, case, "bf16")
        kernel = plain_kernel(call, device) if two_steps else None
        first = [bits(x) for x in call.run(kernel) if x is not None]
        for _ in range(REPEATS):
            again = [bits(x) for x in call.run(kernel) if x is not None]
            assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True)), str(case)


@forms
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("k", [264, 8712])
def test_batch_invariant_rows(form: Form, dtype: str, k: int) -> None:
    """A row of D and of Z has the same bits whatever M is; a K of 8712 is cut in two."""
    assert _C.splits_for(272, k, 2) == (2 if k > 8192 else 1)
    a = torch.randn(300, k, device="cuda").to(DTYPES[dtype])
    b = (torch.randn(272, k, device="cuda") * k**-0.5).to(DTYPES[dtype]).t()
    op = partial(form.op, activation="silu", numerics="batch_invariant")
    whole = op(a, b) if form.aux else (op(a, b),)
    for rows in (slice(0, 1), slice(7, 24), slice(100, 300)):
        part = op(a[rows], b) if form.aux else (op(a[rows], b),)
        assert all(torch.equal(bits(x[rows]), bits(y)) for x, y in zip(whole, part, strict=True)), rows


@forms
def test_plan_of_two_steps_is_cached(form: Form, device: _C.Device) -> None:
    call = Call(form, Case(40, 48, 56), "bf16")
    kernel = plain_kernel(call, device)
    call.run(kernel)
    before = _C.plan_cache_info()
    call.run(kernel)
    after = _C.plan_cache_info()
    assert (after["hits"], after["misses"], after["size"]) == (before["hits"] + 1, before["misses"], before["size"])


@forms
def test_forms_in_a_cuda_graph(form: Form, device: _C.Device) -> None:
    call = Call(form, Case(65, 72, 104, activation="silu"), "bf16")
    kernel = plain_kernel(call, device)
    want = [bits(x) for x in call.run(kernel) if x is not None]
    options = op_arguments(call.terms | call.options | {"kernel": kernel})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = form.op(call.inst.a, call.inst.b, **options)
    results = result if form.aux else (result,)
    for x in results:
        x.fill_(torch.nan)
    graph.replay()
    assert all(torch.equal(bits(x), y) for x, y in zip(results, want, strict=True))


@forms
def test_empty(form: Form) -> None:
    for m, n in ((0, 8), (8, 0)):
        a = torch.ones(m, 16, device="cuda")
        b = torch.ones(16, 2 * n if form.gated else n, device="cuda")
        result = form.op(a, b)
        results = result if form.aux else (result,)
        assert results[0].shape == (m, n)
        assert not form.aux or results[1].shape == (m, b.shape[1])


# ---- backward ops ---------------------------------------------------------------------------------------------------


def transposed(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


def padded(x: Tensor) -> Tensor:
    """Rows that do not start on 16 bytes."""
    wide = torch.full((*x.shape[:-1], x.shape[-1] + 3), torch.nan, dtype=x.dtype, device=x.device)
    wide[..., : x.shape[-1]] = x
    return wide[..., : x.shape[-1]]


def wide_rows(x: Tensor) -> Tensor:
    """Rows of another tensor that do."""
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1] + 16), torch.nan, dtype=x.dtype, device=x.device)
    wide[..., : x.shape[-1]] = x
    return wide[..., : x.shape[-1]]


def batches_apart(x: Tensor) -> Tensor:
    if x.dim() != 3:
        return x
    apart = torch.full((x.shape[0], x.shape[1] + 2, x.shape[2]), torch.nan, dtype=x.dtype, device=x.device)
    apart[:, : x.shape[1]] = x
    return apart[:, : x.shape[1]]


def expanded(x: Tensor) -> Tensor:
    return x[..., :1, :1].expand(x.shape)


def expanded_rows(x: Tensor) -> Tensor:
    return x[..., :1, :].expand(x.shape)


STRIDES = (torch.clone, transposed, padded, wide_rows, batches_apart, expanded, expanded_rows)
BACKWARD_SHAPES = (
    (1, 1), (1, 8), (3, 7), (16, 256), (17, 264), (65, 1), (129, 300), (512, 512), (1000, 72), (70_000, 24),
    (8, 20_000), (2, 5, 24), (3, 130, 40), (1024, 4104),
)  # fmt: skip


def backward(  # noqa: PLR0917
    gated: bool, grad: Tensor, saved: Tensor, activation: str, args: tuple[float, ...], bias_grad: bool
) -> tuple[Tensor, Tensor]:
    poison = [torch.full_like(saved, torch.nan), torch.full((1 << 20,), torch.nan, device="cuda")]
    del poison
    op = OPS.gated_backward if gated else OPS.activation_backward
    result: tuple[Tensor, Tensor] = op(
        grad, saved, activation=activation, activation_args=list(args) or None, bias_grad=bias_grad
    )
    return result


def backward_faults(  # noqa: PLR0917
    gated: bool, grad: Tensor, saved: Tensor, activation: str, args: tuple[float, ...], bias_grad: bool = True
) -> list[str]:
    """Against float64 from the same, rounded, inputs."""
    dz, dbias = backward(gated, grad, saved, activation, args, bias_grad)
    exact_of = reference.gated_backward if gated else reference.activation_backward
    exact = exact_of(grad, saved, activation=activation, activation_args=args)
    g, x = grad.double().abs(), saved.double().abs()
    # act' and act are within 2^-19 (1 + |z|) of what they are (device/epilogue/activation_gradient.cuh).
    slope = max(1.0, abs(args[0])) if activation == "leaky_relu" and args else 1.0
    if gated:
        z, up = x.chunk(2, -1)
        error = 2.0**-19 * slope * torch.cat((g * up * (1 + z), g * (1 + z)), -1)
    else:
        error = 2.0**-19 * slope * g * (1 + x)
    bound = error + 1.01 * reference.UNIT_ROUNDOFF[saved.dtype] * exact.abs() + reference.tiny(saved.dtype, 0)
    faults = []
    if dz.shape != saved.shape or dz.dtype != saved.dtype or not dz.is_contiguous():
        faults.append(f"dz is {tuple(dz.shape)} of {dz.dtype}, strides {dz.stride()}")
    elif (wrong := reference.outside_bound(dz, exact, bound)).any():
        faults.append(f"dz: {int(wrong.sum())} of {dz.numel()} outside the bound")
    if dbias.dtype != torch.float32 or dbias.shape != ((saved.shape[-1],) if bias_grad else (0,)):
        faults.append(f"dbias is {tuple(dbias.shape)} of {dbias.dtype}")
    elif bias_grad:
        rows = exact.flatten(0, -2)
        sums_bound = error.flatten(0, -2).sum(0) + rows.shape[0] * 2.0**-24 * rows.abs().sum(0) + 1e-35
        if ((dbias.double() - rows.sum(0)).abs() > sums_bound).any():
            faults.append("dbias is outside the bound")
    what = f"{'gated ' if gated else ''}{activation}{args}, grad {tuple(grad.shape)} {grad.stride()}, {saved.dtype}"
    return [f"{what}: {fault}" for fault in faults]


def backward_tensors(shape: tuple[int, ...], dtype: str, gated: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(sum(shape))
    *rows, n = shape
    random = partial(torch.randn, generator=generator, device="cuda")
    return random(*shape).to(DTYPES[dtype]), (2 * random(*rows, 2 * n if gated else n)).to(DTYPES[dtype])


@dtypes
@pytest.mark.parametrize("gated", [False, True])
def test_backward_of_every_activation(dtype: str, gated: bool) -> None:
    faults: list[str] = []
    for shape in ((130, 264), (65, 75)):
        grad, z = backward_tensors(shape, dtype, gated)
        for activation, args in ALL_ACTIVATIONS:
            saved = z
            if not gated and activation in reference.SAVE_D and args != (-1.5,):
                saved = reference.activate(z.double(), activation, args).to(z.dtype)
            faults += backward_faults(gated, grad, saved, activation, args)
    assert not faults, "\n".join(faults[:20])


@dtypes
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("bias_grad", [False, True])
def test_backward_shapes_and_strides(dtype: str, gated: bool, bias_grad: bool) -> None:
    faults: list[str] = []
    for shape in BACKWARD_SHAPES:
        grad, z = backward_tensors(shape, dtype, gated)
        for lay in STRIDES:
            faults += backward_faults(gated, lay(grad), z, "silu", (), bias_grad)
            if lay not in (expanded, expanded_rows):
                faults += backward_faults(gated, grad, lay(z), "silu", (), bias_grad)
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults[:20])


@pytest.mark.parametrize("gated", [False, True])
def test_backward_at_the_kinks(gated: bool) -> None:
    """An infinite gradient beside a piece of slope 0 is dropped and not multiplied; the kinks are torch's."""
    z = torch.tensor([[-torch.inf, -4.0, -3.0, -0.0, 0.0, 1.0, 3.0, 4.0]], device="cuda")
    grad = torch.full_like(z, torch.inf)
    saved = torch.cat((z, torch.ones_like(z)), -1) if gated else z
    inf = torch.inf
    for activation, args, want in (
        ("relu", (), [0, 0, 0, 0, 0, inf, inf, inf]),
        ("hardswish", (), [0, 0, 0, inf, inf, inf, inf, inf]),
        ("clamp", (-3.0, 3.0), [0, 0, inf, inf, inf, inf, inf, 0]),
    ):
        dz, _ = backward(gated, grad, saved, activation, args, bias_grad=False)
        assert dz[0, :8].tolist() == want, activation
    dz, _ = backward(gated, torch.ones_like(z), saved, "leaky_relu", (0.5,), bias_grad=False)
    assert dz[0, :8].tolist() == [0.5] * 5 + [1.0] * 3


@dtypes
@pytest.mark.parametrize("gated", [False, True])
def test_backward_repeats_its_bits(dtype: str, gated: bool) -> None:
    for shape in ((1000, 520), (257, 75), (20_000, 64)):
        grad, z = backward_tensors(shape, dtype, gated)
        first = backward(gated, grad, z, "silu", (), True)
        for _ in range(REPEATS):
            again = backward(gated, grad, z, "silu", (), True)
            assert all(torch.equal(bits(x), bits(y)) for x, y in zip(first, again, strict=True)), shape


def test_backward_of_nothing() -> None:
    z = torch.empty(0, 16, device="cuda")
    dz, dbias = backward(True, z[:, :8], z, "silu", (), True)
    assert dz.shape == (0, 16)
    assert torch.equal(dbias, torch.zeros(16, device="cuda"))
    assert backward(False, z, z, "relu", (), False)[1].shape == (0,)


# ---- autograd's key --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad_mode", [False, True])
def test_errors_pass_through_nested_ops(grad_mode: bool) -> None:
    """On CUDA gemm calls an op that computes or records: what that raises keeps its type and sentence."""
    a = torch.ones(4, 8, device="cuda", requires_grad=grad_mode)
    with torch.set_grad_enabled(grad_mode):
        with pytest.raises(ValueError, match="b: K is 7 but a has K = 8"):
            OPS.gemm(a, torch.ones(7, 4, device="cuda"))
        with pytest.raises(ValueError, match="b: has 5 columns, an odd number"):
            OPS.gemm_gated(a, torch.ones(8, 5, device="cuda"))
        with pytest.raises(RuntimeError, match="stream_k"):
            OPS.gemm(a, torch.ones(8, 4, device="cuda"), schedule="stream_k")  # float32 has no such kernel


def test_values_are_the_same_in_every_mode() -> None:
    a = torch.randn(40, 72, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(72, 96, device="cuda", dtype=torch.bfloat16)
    for op in (OPS.gemm, OPS.gemm_gated):
        with torch.inference_mode():
            want = op(a, b, activation="silu").clone()
        with torch.no_grad():
            assert torch.equal(bits(op(a, b, activation="silu")), bits(want))
        d = op(a.requires_grad_(), b, activation="silu")
        assert torch.equal(bits(d.detach()), bits(want))
        d.float().square().sum().backward()
        assert a.grad is not None
        a = a.detach()
