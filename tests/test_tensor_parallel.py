"""Tensor parallelism on two CPU processes: tests/tensor_parallel_cases.py."""

from __future__ import annotations

import pytest
import torch

import tensor_parallel_cases


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if not torch.distributed.is_available():
        pytest.skip("this torch has no torch.distributed")
    return tensor_parallel_cases.run("cpu", tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", tensor_parallel_cases.CASES)
def test_as_on_one_device(name: str, said: dict[str, str]) -> None:
    if said[name]:
        pytest.fail(said[name], pytrace=False)
