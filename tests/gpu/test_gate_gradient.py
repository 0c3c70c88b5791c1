"""The gradient of a gate on the GPU, against float64: by each kernel of the form, as selected, and in two steps.

And the gated MLP, whose backward takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from forms import OPS, GateCall
from gemmx import _C, reference
from gemmx.nn import GatedMLP
from gemmx.ops import op_arguments
from problems import ACTIVATIONS, ALIGNED, Case, Layout, bits

pytestmark = pytest.mark.gpu

REPEATS = 20
ALL_ACTIVATIONS = ((None, ()), ("none", ()), *ACTIVATIONS)

# (M, N, K), N the columns of gate: tails of tiles, of boxes and of vectors; halves that TMA takes and others.
SHAPES = (
    (1, 8, 8), (7, 16, 16), (17, 40, 72), (63, 64, 64), (64, 128, 64), (65, 72, 104), (129, 136, 264), (128, 192, 1000),
    (257, 264, 31), (300, 520, 136), (16, 4096, 256), (1000, 200, 512), (1, 1, 1), (33, 71, 65), (130, 100, 128),
    (33, 128, 0), (3000, 1096, 192),
)  # fmt: skip


def shape_cases() -> Iterator[Case]:
    for index, (m, n, k) in enumerate(SHAPES):
        yield Case(m, n, k, a=ALIGNED, alpha=(1.0, 0.5)[index % 2])


def layout_cases() -> Iterator[Case]:
    """Of the gradient and the weight, which any kernel takes; of Z, which TMA takes or not."""
    for m, n, k in ((65, 72, 104), (136, 264, 1024), (1, 136, 257)):
        case = Case(m, n, k, a=ALIGNED, b=ALIGNED)
        for layout in (
            Layout(ld_pad=5),
            Layout(ld_multiple=8, ld_pad=24),
            Layout(ld_multiple=8, offset=1),
            Layout(ld_multiple=8, expand="minor"),
            Layout(ld_multiple=8, expand="both"),
            Layout(step=2),
        ):
            yield replace(case, a=layout)
            yield replace(case, b=layout)
        for layout in (
            Layout(ld_multiple=8, ld_pad=24),
            Layout(ld_multiple=8, offset=8),
            Layout(ld_pad=5),
            Layout(ld_multiple=8, offset=4),
            Layout(ld_multiple=8, offset=1),
            Layout(step=2),
            Layout(along="cols"),
            Layout(ld_multiple=8, expand="minor"),
        ):
            yield replace(case, out=layout)


def activation_cases() -> Iterator[Case]:
    for m, n, k in ((130, 200, 64), (65, 75, 264)):
        for activation, args in ALL_ACTIVATIONS:
            yield Case(m, n, k, a=ALIGNED, activation=activation, activation_args=args, alpha=0.125)
        for alpha in (0.0, -0.75):
            yield Case(m, n, k, a=ALIGNED, alpha=alpha)


GROUPS: dict[str, Callable[[], Iterator[Case]]] = {
    "shapes": shape_cases,
    "layouts": layout_cases,
    "activations": activation_cases,
}


def z_is_moved_by_tma(call: GateCall) -> bool:
    z = call.problem().c
    return bool(call.case.n % 8 == 0 and z.vector_bytes >= 16 and z.major == "n" and z.leading_dimension > 0)


def reads_nothing_or_another_major(call: GateCall) -> bool:
    """A row without a unit stride counts as M-major."""
    problem = call.problem()
    return bool(problem.k == 0 or problem.a.major == "m" or problem.b.major == "k")


def run(call: GateCall, kernel: str | None, device: _C.Device) -> list[str]:
    two_steps = not _C.form_supported(call.problem(kernel), device)
    return call.faults(*call.run(kernel), two_steps=two_steps)


@pytest.mark.parametrize("group", GROUPS)
def test_kernel_of_the_gradient(gate_kernel: str, group: str, device: _C.Device) -> None:
    spec = next(spec for spec in _C.kernels() if spec.name == gate_kernel)
    faults: list[str] = []
    ran = refused = 0
    for case in GROUPS[group]():
        call = GateCall(case.with_majors("k", "n"), spec.dtype_a)
        if _C.supports(gate_kernel, call.problem(gate_kernel), device):
            refused += 1
            assert not z_is_moved_by_tma(call) or reads_nothing_or_another_major(call)
            continue
        ran += 1
        faults += run(call, gate_kernel, device)
    assert not faults, f"{len(faults)} faults in {ran} cases:\n" + "\n".join(faults[:20])
    assert ran
    assert refused


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("group", GROUPS)
def test_as_selected(dtype: str, group: str, device: _C.Device) -> None:
    faults: list[str] = []
    for case in GROUPS[group]():
        for major_b in ("n", "k"):
            faults += run(GateCall(case.with_majors("k", major_b), dtype), None, device)
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults[:20])


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("group", GROUPS)
def test_in_two_steps(dtype: str, group: str, device: _C.Device) -> None:
    """By a plain kernel that is named: with the bits of gemm and gated_backward."""
    faults: list[str] = []
    for case in GROUPS[group]():
        call = GateCall(case.with_majors("k", "n"), dtype)
        kernel = _C.select(_C.plain_problem(call.problem()), device).kernel
        assert not _C.form_supported(call.problem(kernel), device)
        before = _C.launch_counts()[kernel]
        (dz,) = call.run(kernel)
        assert _C.launch_counts()[kernel] == before + 1
        faults += call.faults(dz, two_steps=True)
        if case.n % 8:  # D of gemm has other rows than the workspace, for which another plan may be best
            continue
        dh = OPS.gemm(call.inst.a, call.inst.b, alpha=case.alpha, kernel_name=kernel)
        options = {name: call.options[name] for name in ("activation", "activation_args")}
        again, _ = OPS.gated_backward(dh, call.z, **options | {"activation": case.activation or "silu"})
        assert torch.equal(bits(dz), bits(again)), str(case)
    assert not faults, f"{len(faults)} faults:\n" + "\n".join(faults[:20])


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_gates_that_tma_does_not_move_take_two_steps(dtype: str, device: _C.Device) -> None:
    if not any(spec.gate_gradient and _C.built_for(spec.name, device.capability) for spec in _C.kernels()):
        pytest.skip("no kernel here has the form")
    case = Case(65, 72, 104, a=ALIGNED, b=Layout(along="rows"))
    assert _C.form_supported(GateCall(case, dtype).problem(), device)
    for refused in (
        replace(case, n=71),
        replace(case, n=100),
        replace(case, out=Layout(ld_multiple=8, offset=4)),
        replace(case, out=Layout(ld_pad=2)),
        replace(case, k=0),
    ):
        assert not _C.form_supported(GateCall(refused, dtype).problem(), device), refused


def test_equal_calls_give_equal_bits(device: _C.Device) -> None:
    del device
    for case in (Case(1000, 1032, 520, a=ALIGNED), Case(65, 131, 301, activation="gelu")):
        call = GateCall(case.with_majors("k", "n"), "bf16")
        first = bits(call.run()[0])
        assert all(torch.equal(first, bits(call.run()[0])) for _ in range(REPEATS)), str(case)


def test_in_a_cuda_graph(device: _C.Device) -> None:
    del device
    for n in (72, 71):
        call = GateCall(Case(65, n, 104, a=ALIGNED).with_majors("k", "n"), "bf16")
        want = bits(call.run()[0])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            dz = OPS._gated_dgrad(call.inst.a, call.inst.b, call.z, **op_arguments(call.options))
        dz.fill_(torch.nan)
        graph.replay()
        assert torch.equal(bits(dz), want)


def test_what_gates_leave_unread_is_not_written(device: _C.Device) -> None:
    """Empty gradients launch nothing."""
    del device
    for m, n in ((0, 8), (8, 0)):
        grad, b = torch.ones(m, 16, device="cuda"), torch.ones(16, n, device="cuda")
        assert OPS._gated_dgrad(grad, b, torch.ones(m, 2 * n, device="cuda")).shape == (m, 2 * n)


# ---- the gated MLP -------------------------------------------------------------------------------------------------


class Composed(nn.Module):
    """The MLP in torch's own ops."""

    def __init__(self, mlp: GatedMLP, dtype: torch.dtype) -> None:
        super().__init__()
        self.activation = mlp.activation
        self.weights = [x.detach().to(dtype).requires_grad_() for x in mlp.parameters()]

    def forward(self, x: Tensor) -> Tensor:
        gate_up, down = self.weights
        hidden: Tensor = reference.gate(x @ gate_up.t(), self.activation)
        return hidden @ down.t()


def gradients(call: Callable[[Tensor], Tensor], leaves: list[Any], x: Tensor, weights: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(call(x), [x, *leaves], weights))


def error(x: Tensor, exact: Tensor) -> float:
    return float((x.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_gated_mlp_has_the_gradients_of_its_parts(dtype: torch.dtype, compiled: bool) -> None:
    """Against float64, no worse than torch's own; D with the bits of two calls; the gate's backward in one launch."""
    if compiled and dtype != torch.bfloat16:
        pytest.skip("compiled: one dtype")
    torch.manual_seed(0)
    mlp = GatedMLP(256, 520, device="cuda", dtype=dtype)
    x = torch.randn(3, 100, 256, device="cuda").to(dtype)
    weights = torch.randn(3, 100, 256, device="cuda").to(dtype)
    with torch.no_grad():
        expected = mlp(x)
    torch._dynamo.reset()
    call: Any = torch.compile(mlp, fullgraph=True) if compiled else mlp
    leaf = x.clone().requires_grad_()
    d = call(leaf)
    assert torch.equal(bits(d.detach()), bits(expected))
    before = _C.launch_counts()
    own = list(torch.autograd.grad(d, [leaf, *mlp.parameters()], weights))
    launched = {name for name, count in _C.launch_counts().items() if count > before[name]}
    of_form = [s for s in _C.kernels() if s.gate_gradient and _C.built_for(s.name, _C.cuda_device(0).capability)]
    if dtype != torch.float32 and of_form:
        assert any("_gate_gradient_" in name for name in launched)
    exact_mlp, torch_mlp = Composed(mlp, torch.float64), Composed(mlp, dtype)
    exact, of_torch = (
        gradients(module, module.weights, x.to(t).requires_grad_(), weights.to(t))
        for module, t in ((exact_mlp, torch.float64), (torch_mlp, dtype))
    )
    for g, of, reference_ in zip(own, of_torch, exact, strict=True):
        assert g.dtype == dtype
        assert error(g, reference_) <= max(1.1 * error(of, reference_), 1e-5)
