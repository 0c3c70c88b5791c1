"""Every test here needs a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gemmx import _C
from gpu_fixtures import device, form_kernel, gate_kernel, kernel, pytest_generate_tests

__all__ = ["device", "form_kernel", "gate_kernel", "kernel", "pytest_generate_tests"]


@pytest.fixture(autouse=True)
def _gpu(device: _C.Device) -> Iterator[None]:
    """Ends each test with the context usable, so that a fault is reported where it happened."""
    yield
    torch.cuda.synchronize()
