"""Tensor parallelism on two GPUs by NCCL: the cases of tests/tensor_parallel_cases.py."""

from __future__ import annotations

import pytest
import torch

import tensor_parallel_cases

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    if torch.cuda.device_count() < tensor_parallel_cases.RANKS:
        pytest.skip(f"needs {tensor_parallel_cases.RANKS} GPUs, and there is {torch.cuda.device_count()}")
    return tensor_parallel_cases.run("cuda", tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", tensor_parallel_cases.CASES)
def test_as_on_one_gpu(name: str, said: dict[str, str]) -> None:
    if said[name]:
        pytest.fail(said[name], pytrace=False)
