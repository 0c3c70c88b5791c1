"""Fixtures of the tests that need a GPU. Without one that the library was built for they skip, saying why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gemmx import _C


def missing() -> str:
    """Why no kernel can run here; "" where one can."""
    if not _C.build_archs():
        return "the library was built with GEMMX_CUDA_ARCHS=none"
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    capability = _C.cuda_device(0).capability
    if not any(_C.built_for(spec.name, capability) for spec in _C.kernels() if spec.family != "cublaslt"):
        return f"the library was built for {', '.join(_C.build_archs())}, not for compute capability {capability / 10}"
    return ""


@pytest.fixture(scope="session")
def device() -> _C.Device:
    reason = missing()
    if reason:
        pytest.skip(reason)
    return _C.cuda_device(0)


@pytest.fixture
def kernel(request: pytest.FixtureRequest, device: _C.Device, record_property: Callable[[str, object], None]) -> str:
    """The name of a registered kernel of the present architecture: one test for each."""
    spec = next(spec for spec in _C.kernels() if spec.name == request.param)
    if not spec.min_capability <= device.capability <= spec.max_capability:
        pytest.skip(f"a kernel of compute capability {spec.min_capability / 10}")
    if not _C.built_for(spec.name, device.capability):
        pytest.skip(f"not built for compute capability {device.capability / 10}")
    record_property("kernel", spec.name)
    return spec.name


# The same for the kernels that compute gated products or write the pre-activation, and for those of a gate's gradient.
form_kernel = gate_kernel = kernel


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # Kernels with a form run no plain product and have tests of their own (test_forms.py, test_gate_gradient.py).
    if "kernel" in metafunc.fixturenames:
        metafunc.parametrize("kernel", [s.name for s in _C.kernels() if not s.has_form], indirect=True)
    if "form_kernel" in metafunc.fixturenames:
        metafunc.parametrize("form_kernel", [s.name for s in _C.kernels() if s.gated or s.aux], indirect=True)
    if "gate_kernel" in metafunc.fixturenames:
        metafunc.parametrize("gate_kernel", [s.name for s in _C.kernels() if s.gate_gradient], indirect=True)
