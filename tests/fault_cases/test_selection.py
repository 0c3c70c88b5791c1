"""B59-B62: tables as shared files, what a row may serve, candidates that can't run."""

from __future__ import annotations

import json
import multiprocessing
import os
import stat
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from every_way import SPECS, assert_every_way_is_right, normal
from gemmx import _C
from gemmx._files import write_atomically
from gemmx.select import tables
from gemmx.select.explain import check_shape
from gemmx.select.profiles import profile
from gemmx.select.selector import choose, decide

MODELS = ("h200", "h100", "a100", "rtx4090", "b200")


def row_for(problem: _C.Problem, model: str = "h200") -> dict[str, Any]:
    """A row that prescribes the plan that the model likes least, so that following it shows."""
    plan = decide(problem, profile(model), only_built=False).candidates[-1].plan
    return tables.row_dict(problem, plan, 9.0)


def write_table(path: Path, rows: list[dict[str, Any]], gpu: str = "NVIDIA H200") -> Path:
    write_atomically(path, json.dumps({"format": 1, "gpu": gpu, "rows": rows}))
    return path


# ---- B59: several processes, broken files --------------------------------------------------------------------------


def rewrite(path: str, number: int) -> None:
    for i in range(20):
        write_atomically(Path(path), json.dumps({"format": 1, "gpu": f"{number} {i}", "rows": [0] * 20_000}))


def test_b59_a_table_that_is_being_written_is_never_read_in_part(tmp_path: Path) -> None:
    """Eight processes replace one file while this one reads it."""
    path = tmp_path / "table.json"
    rewrite(str(path), 0)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=rewrite, args=(str(path), number)) for number in range(8)]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers):
        assert len(json.loads(path.read_text())["rows"]) == 20_000
        reads += 1
    for writer in writers:
        writer.join()
    assert reads
    assert [x.name for x in tmp_path.iterdir()] == ["table.json"]


def test_b59_a_writer_killed_before_the_end_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    write_atomically(path, "old")
    code = (
        "import os, sys; from pathlib import Path; import gemmx._files as f; os.fsync = lambda fd: os._exit(9);"
        "f.write_atomically(Path(sys.argv[1]), 'new' * 100000)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code, str(path)], env=env, check=False).returncode == 9
    assert path.read_text() == "old"


def test_b59_files_are_the_owners_alone_and_keep_their_permissions(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "table.json"
    write_atomically(path, "{}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    write_atomically(path, "[]")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    with pytest.raises(OSError, match="not-a-folder"):
        (tmp_path / "not-a-folder").write_text("")
        write_atomically(tmp_path / "not-a-folder" / "table.json", "{}")


@pytest.mark.parametrize("damage", ["truncated", "empty", "not UTF-8", "bytes flipped", "another file"])
def test_b59_a_broken_table_is_one_error_and_changes_nothing(damage: str, tmp_path: Path, user_tables: None) -> None:
    problem = check_shape(64, 4096, 4096).problem
    path = write_table(tmp_path / "t.json", [row_for(problem)])
    tables.load_table(path)
    chosen = choose(problem, profile("h200"), only_built=False)
    content = path.read_bytes()
    path.write_bytes({
        "truncated": content[: len(content) // 2],
        "empty": b"",
        "not UTF-8": b"\xff\xfe" + content,
        "bytes flipped": bytes(x ^ 0x20 for x in content),
        "another file": b"\x7fELF" + bytes(1000),
    }[damage])  # fmt: skip
    with pytest.raises(ValueError, match=r"^table .*t.json"):
        tables.load_table(path)
    assert choose(problem, profile("h200"), only_built=False) == chosen


def test_b59_nothing_is_compiled_or_cached_on_disk_at_run_time() -> None:
    """So there is no kernel cache that processes could race for: no module of the package knows a cache folder."""
    package = Path(tables.__file__).parents[1]
    for path in package.rglob("*.py"):
        text = path.read_text()
        for word in ("XDG_CACHE", ".cache/", "gettempdir", "user_cache"):
            assert word not in text, path


# ---- B61: the key of a row -----------------------------------------------------------------------------------------

BASE: dict[str, Any] = {"dtype": "bf16"}
CHANGES: dict[str, dict[str, Any]] = {
    "major of A": {"major_a": "m"}, "major of B": {"major_b": "n"}, "dtype": {"dtype": "f16"},
    "dtype of D": {"out_dtype": "f32"}, "activation": {"activation": "silu"}, "bias": {"bias": "bf16"},
    "C": {"c": "bf16"}, "alpha": {"alpha": 0.5}, "batch": {"batch": 3}, "alignment": {"align_bytes": 2},
    "leading dimension": {"lda": 4100}, "leading dimension of D": {"ldd": 4097},
    "schedule": {"schedule": "data_parallel"},
    "splits": {"splits": 1},
}  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("change", CHANGES)
def test_b61_a_row_misses_or_is_legal_for_another_problem(
    change: str, model: str, tmp_path: Path, user_tables: None
) -> None:
    device = profile(model)
    rows = [row_for(check_shape(64, 4096, 4096, **BASE).problem, model)]
    tables.load_table(write_table(tmp_path / "t.json", rows, device.name))
    problem = check_shape(64, 4096, 4096, **{**BASE, **CHANGES[change]}).problem
    decision = decide(problem, device, only_built=False)
    assert _C.check_plan(decision.chosen.plan, problem, device) == ""
    if change in ("dtype", "dtype of D", "major of A", "major of B", "batch", "alignment", "schedule", "splits"):
        assert decision.table_row is None


def test_b61_a_tuned_bucket_is_hit_and_counted(tmp_path: Path, user_tables: None) -> None:
    device = profile("h200")
    tables.load_table(write_table(tmp_path / "t.json", [row_for(check_shape(2048, 4096, 4096).problem)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        served = {
            m: decide(check_shape(m, 4096, 4096).problem, device, only_built=False) for m in (1024, 2048, 4096, 100)
        }
    assert [m for m, decision in served.items() if decision.table_row is not None] == [1024, 2048, 4096]
    assert served[100].reason == "model"
    assert {"hits", "misses", "size", "capacity"} == _C.plan_cache_info().keys()


def test_b61_a_row_of_another_gpu_is_never_used(tmp_path: Path, user_tables: None) -> None:
    problem = check_shape(64, 4096, 4096).problem
    tables.load_table(write_table(tmp_path / "t.json", [row_for(problem)], "NVIDIA H100 PCIe"))
    for model in MODELS:
        assert decide(problem, profile(model), only_built=False).table_row is None


# ---- B62: candidates -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_b62_candidates_are_legal(model: str) -> None:
    """Every candidate of a decision passes the check that C++ makes before it runs one."""
    device = profile(model)
    for align_bytes in (16, 8, 4, 2):
        for k in (3520, 3521):
            problem = check_shape(256, 2048, k, bias="bf16", align_bytes=align_bytes).problem
            for candidate in decide(problem, device, only_built=False).candidates:
                assert _C.check_plan(candidate.plan, problem, device) == "", candidate.plan


def test_b62_a_plan_that_can_not_run_is_refused_before_it_runs() -> None:
    device = profile("h200")
    unaligned = check_shape(256, 2048, 3521, align_bytes=2).problem
    for spec in SPECS.values():
        if reason := _C.supports(spec.name, unaligned, device):
            found = _C.check_plan(_C.Plan(spec.name, spec.schedules[0]), unaligned, device)
            assert reason in found


@pytest.mark.gpu
def test_b62_every_candidate_of_the_reported_call_is_right() -> None:
    """Bias and a at odd offsets: each kernel that takes the call computes it, and none faults."""
    for offset in (0, 1):
        a = normal(256 * 3520 + 8, dtype=torch.bfloat16, device="cuda")[offset : offset + 256 * 3520].view(256, 3520)
        b = normal(2048, 3520, dtype=torch.bfloat16, device="cuda").t()
        bias = normal(2056, dtype=torch.bfloat16, device="cuda")[offset : offset + 2048]
        assert assert_every_way_is_right(a, b, bias=bias) > 2
