"""Tests marked gpu get the GPU's fixtures, and end with the context usable; the others run anywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from gpu_fixtures import device, kernel, pytest_generate_tests

__all__ = ["device", "kernel", "pytest_generate_tests"]


@pytest.fixture(autouse=True)
def _gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("gpu") is None:
        yield
        return
    request.getfixturevalue("device")
    yield
    torch.cuda.synchronize()
