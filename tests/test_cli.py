"""The `gemmx` command through typer's runner."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gemmx import _C

pytest.importorskip("typer", reason="the cli extra is not installed")
pytest.importorskip("rich", reason="the cli extra is not installed")

from typer.testing import CliRunner

import gemmx
from gemmx import cli


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.build_app(), list(args))
    return result.exit_code, result.output


def test_explain_prints_what_the_function_prints() -> None:
    code, out = run("explain", "16", "6144", "4096", "--bias", "--activation", "silu", "--device", "h200")
    assert code == 0
    assert out.rstrip("\n") == str(gemmx.explain.shape(16, 6144, 4096, bias="bf16", activation="silu"))


def test_explain_says_what_batch_invariant_costs() -> None:
    code, out = run("explain", "16", "6144", "4096", "--numerics", "batch_invariant")
    assert code == 0
    assert out.rstrip("\n") == str(gemmx.explain.shape(16, 6144, 4096, numerics="batch_invariant"))
    assert "numerics  batch_invariant: class wgmma" in out


def test_explain_json_is_the_explanation() -> None:
    code, out = run("explain", "64", "4096", "4096", "--dtype", "f16", "--device", "a100", "--json")
    assert code == 0
    expected = gemmx.explain.shape(64, 4096, 4096, "f16", device="a100").to_dict()
    assert json.loads(out) == json.loads(json.dumps(expected))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--device", "h900"), "which is no profile"),
        (("--dtype", "int9"), "a"),
        (("--activation", "swish"), "swish"),
        (("--kernel", "sm90_nothing"), "sm90_nothing"),
        (("--major-b", "z"), "major_b is 'z'"),
        (("--schedule", "stream_k", "--device", "a100"), "no kernel can run"),
    ],
)
def test_a_wrong_question_is_one_sentence_and_code_2(args: tuple[str, ...], words: str) -> None:
    code, out = run("explain", "64", "64", "64", *args)
    assert code == 2
    assert out.startswith("gemmx: ") and words in out and out.count("\n") == 1


def test_kernels_lists_every_kernel() -> None:
    code, out = run("kernels")
    assert code == 0
    assert all(s.name in out for s in _C.kernels())


def test_kernels_of_a_device_are_those_of_its_capability() -> None:
    code, out = run("kernels", "--device", "a100")
    assert code == 0
    for s in _C.kernels():
        assert (s.name in out) == (s.min_capability <= 80 <= s.max_capability)
    assert run("kernels", "--device", "h900")[0] == 2


def test_devices_lists_every_profile() -> None:
    code, out = run("devices")
    assert code == 0
    assert all(name in out for name in ("h200", "h100", "a100", "rtx4090", "b200", "232448", "166912", "101376"))


def test_info_names_versions_and_architectures() -> None:
    code, out = run("info")
    assert code == 0
    assert _C.version() in out and _C.source_hash() in out and "torch" in out


def test_without_typer_the_command_says_what_to_install() -> None:
    code = "import sys; sys.modules['typer'] = None\nfrom gemmx import cli\nsys.argv = ['gemmx', 'info']\ncli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == cli.NEEDS
