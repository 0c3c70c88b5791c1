"""Measured tables: the plans that were measured on one GPU model, per problem, the best first.

A table is a JSON file, shipped in tables/ or the user's own (`gemmx.load_table(path)`):

    {"format": 1, "gpu": "NVIDIA H200", "rows": [
      {"m": 16, "n": 4096, "k": 4096, "batch": 1, "dtypes": "bf16,bf16,bf16", "majors": "kkn",
       "epilogue": "bias+silu", "align": 16, "us": 11.6,
       "plan": {"kernel": "...", "schedule": "data_parallel", "splits": 1, "raster": "along_m", "swizzle": 1}}]}

A row that was measured with numerics batch_invariant has a further column, "numerics": "batch_invariant"; one of a
gated problem has "gated": true, of a problem that keeps Z "aux": true. n counts D's columns.

A row serves problems of the same form, N, K, batch, dtypes, majors, epilogue and alignment: first of the same M, then
of the nearest M within a factor of two. A row of batch_invariant serves such problems only; one of the default serves
them after those, where its plan is one that batch_invariant allows, or with the cuts of K that it prescribes where a
CTA adds them up itself. Of several rows of one problem the first in the
file that can run is taken: the others are for a library without the first's kernel, a caller who excludes its family,
or an epilogue that no row has and the first's kernel does not take. A table serves only the GPU model it was measured
on, by the driver's name.

A table is data, whoever wrote it: it is parsed as JSON and nothing else, a malformed one is one ValueError, and
every row that would serve is checked against the problem by _C.check_plan, as C++ does once more before it keeps the
plan. So a row can choose a slower plan, and nothing worse.
"""

from __future__ import annotations

import json
import math
import threading
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemmx import _C

FORMAT = 1
SHIPPED = Path(__file__).parent / "tables"
# A row measured at M serves M/2 to 2M: beyond, another tile wins more often than not.
MAX_M_RATIO = 2.0
# More than a thousand times the shipped table. A file that never ends, such as a device, ends here.
MAX_BYTES = 64 << 20
_INT64 = range(-(2**63), 2**63)

# n, k, batch, dtypes, majors, epilogue, align, numerics, gated, aux, gate_gradient
Key = tuple[int, int, int, str, str, str, int, str, bool, bool, bool]

_COLUMNS: dict[str, type] = {
    "m": int,
    "n": int,
    "k": int,
    "batch": int,
    "dtypes": str,
    "majors": str,
    "epilogue": str,
    "align": int,
    "us": float,
    "plan": dict,
}
DEFAULT_NUMERICS = "deterministic"  # of a row without the column
# Columns that a row has only where the problem is of that form.
FORMS = ("gated", "aux", "gate_gradient")
NUMERICS = (DEFAULT_NUMERICS, "batch_invariant")
_PLAN_COLUMNS: dict[str, type] = {"kernel": str, "schedule": str, "splits": int, "raster": str, "swizzle": int}
_ALGORITHM = {"algo", "algo_version"}


@dataclass(frozen=True, slots=True)
class TableRow:
    m: int
    us: float
    plan: _C.Plan
    source: str  # the file's name
    epilogue: str = "none"
    numerics: str = DEFAULT_NUMERICS


@dataclass(slots=True)
class Tables:
    """Rows by GPU model, key and M, in order of preference. A problem that a later table measured is its alone."""

    gpus: dict[str, dict[Key, dict[int, list[TableRow]]]] = field(default_factory=dict)

    def add(self, gpu: str, rows: Iterable[tuple[Key, TableRow]]) -> None:
        added: dict[tuple[Key, int], list[TableRow]] = {}
        for key, row in rows:
            added.setdefault((key, row.m), []).append(row)
        table = self.gpus.setdefault(gpu, {})
        for (key, m), plans in added.items():
            table.setdefault(key, {})[m] = plans

    def find(self, problem: _C.Problem, device: _C.Device) -> list[TableRow]:
        """Rows that may serve the problem, the best first: M itself, then nearer before farther, ties lower.

        Rows of another epilogue come last: those of the plain product, whose best tile is mostly the best with an
        epilogue too, and of problems with a gate those of silu alone. Of one epilogue the rows of the problem's own
        numerics come first, then those of the default. That their plans may serve is for the caller to ask
        (_C.check_plan).
        """
        table = self.gpus.get(device.name, {})
        n, k, batch, dtypes, majors, own, align, numerics, gated, aux, gradient = table_key(problem)
        keys: list[Key] = [
            (n, k, batch, dtypes, majors, epilogue, align, of, gated, aux, gradient)
            for epilogue in (own, "silu" if gated or gradient else "none")
            for of in (numerics, DEFAULT_NUMERICS)
        ]
        m = problem.m
        rows: list[TableRow] = []
        for by_m in [table.get(k, {}) for k in dict.fromkeys(keys)]:
            # A copy in one step: another thread may be in add().
            near = [x for x in list(by_m) if max(m, x) <= MAX_M_RATIO * min(m, x)]
            near.sort(key=lambda x: (abs(math.log(x / m)), x))
            rows += [row for x in near for row in by_m[x]]
        return rows


def epilogue_kind(problem: _C.Problem) -> str:
    """The parts of the epilogue joined by +, as in "c+bias+silu"; "none" where it has none."""
    parts = [
        name
        for name, present in (
            ("alpha", problem.alpha != "one"),
            ("c", problem.c.dtype != "none" and not problem.gate_gradient),
            ("bias", problem.bias_dtype != "none"),
            (problem.activation, problem.activation != "none"),
        )
        if present
    ]
    return "+".join(parts) or "none"


def table_key(problem: _C.Problem) -> Key:
    """What a row and a problem must have in common."""
    a, b, d = problem.a, problem.b, problem.d
    dtypes = f"{a.dtype},{b.dtype},{d.dtype}"
    if problem.precision != "ieee":
        dtypes += f",{problem.precision}"
    majors = "".join("x" if x.major == "none" else x.major for x in (a, b, d))
    align = min(a.vector_bytes, b.vector_bytes, d.vector_bytes)
    of_call = (epilogue_kind(problem), align, problem.numerics)
    form = (problem.gated, problem.aux, problem.gate_gradient)
    return (problem.n, problem.k, problem.batch, dtypes, majors, *of_call, *form)


def row_dict(problem: _C.Problem, plan: _C.Plan, us: float) -> dict[str, Any]:
    """The row of a table for a measured plan."""
    n, k, batch, dtypes, majors, epilogue, align, numerics, *form = table_key(problem)
    return {
        "m": problem.m,
        "n": n,
        "k": k,
        "batch": batch,
        "dtypes": dtypes,
        "majors": majors,
        "epilogue": epilogue,
        "align": align,
        **({} if numerics == DEFAULT_NUMERICS else {"numerics": numerics}),
        **{name: True for name, present in zip(FORMS, form, strict=True) if present},
        "us": us,
        "plan": plan.to_dict(),
    }


def _check_columns(where: str, got: Any, columns: dict[str, type]) -> None:
    if not isinstance(got, dict):
        raise ValueError(f"{where} is {got!r:.60}, it must be an object with {', '.join(columns)}.")
    for name, kind in columns.items():
        value = got.get(name)
        numeric = kind in (int, float) and isinstance(value, (int, kind)) and not isinstance(value, bool)
        if not (numeric or (kind in (str, dict) and isinstance(value, kind))):
            raise ValueError(f"{where} has {name} = {value!r:.60}, it must be of type {kind.__name__}.")
        if isinstance(value, int) and value not in _INT64:
            raise ValueError(f"{where} has {name} of more than 64 bits.")


def _parse_plan(where: str, got: dict[str, Any], numerics: str) -> _C.Plan:
    """The plan of a row whose kernel is known."""
    cutting = ("split_k", "data_parallel") if numerics == "batch_invariant" else ("split_k",)
    if got["splits"] < 1 or (got["splits"] > 1 and got["schedule"] not in cutting) or got["swizzle"] < 1:
        raise ValueError(
            f"{where} has a plan with schedule {got['schedule']!r:.60}, {got['splits']} splits and swizzle "
            f"{got['swizzle']}; splits and swizzle must be at least 1, and more than one split needs "
            f"{' or '.join(cutting)}."
        )
    if got["schedule"] == "auto":
        raise ValueError(f"{where} has a plan with schedule 'auto', which is a request and not a schedule.")
    try:
        return _C.Plan.from_dict(got)
    except (ValueError, RuntimeError, TypeError) as error:
        raise ValueError(f"{where} has a plan that can't be read: {error}.") from None


def parse_table(text: str, source: str) -> tuple[str, list[tuple[Key, TableRow]]]:
    """(GPU model, rows) of a table's text. ValueError, one sentence, for anything that is not a table.

    Rows of kernels that this version no longer has are left out with one warning for the file.
    """
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: nested more deeply than any table
        raise ValueError(f"table {source} is no JSON: {error}.") from None
    _check_columns(f"table {source}", table, {"format": int, "gpu": str})
    if table["format"] != FORMAT:
        raise ValueError(f"table {source} has format {table['format']}, this version reads {FORMAT}; measure it again.")
    if not isinstance(table.get("rows"), list):
        raise ValueError(f"table {source} has no list of rows.")
    known = {spec.name for spec in _C.kernels()}
    rows, stale = [], set()
    for i, row in enumerate(table["rows"]):
        where = f"table {source}, row {i},"
        _check_columns(where, row, _COLUMNS)
        _check_columns(f"{where} plan", row["plan"], _PLAN_COLUMNS)
        if row["m"] < 1 or not (row["us"] > 0 and math.isfinite(row["us"])):
            raise ValueError(f"{where} has m = {row['m']} and us = {row['us']}, both must be positive.")
        if not _ALGORITHM.isdisjoint(row["plan"]):
            raise ValueError(f"{where} stores an algorithm of cuBLASLt, which no table may; measure it again.")
        numerics = row.get("numerics", DEFAULT_NUMERICS)
        if numerics not in NUMERICS:
            raise ValueError(f"{where} has numerics = {numerics!r:.60}, it is one of {', '.join(NUMERICS)}.")
        form = [row.get(name, False) for name in FORMS]
        if not all(isinstance(x, bool) for x in form):
            raise ValueError(f"{where} has {', '.join(FORMS)} that are not true or false.")
        if row["plan"]["kernel"] not in known:
            stale.add(row["plan"]["kernel"])
            continue
        key = (*(row[c] for c in ("n", "k", "batch", "dtypes", "majors", "epilogue", "align")), numerics, *form)
        plan = _parse_plan(where, row["plan"], numerics)
        rows.append((key, TableRow(row["m"], float(row["us"]), plan, source, row["epilogue"], numerics)))
    if stale:
        warnings.warn(
            f"table {source} names {len(stale)} kernels that this version does not have ({min(stale)!r:.80}, ...); "
            "their rows are ignored, measure it again.",
            stacklevel=3,
        )
    return table["gpu"], rows


_loaded: Tables | None = None
_loading = threading.RLock()  # a selection in one thread and load_table in another must get one Tables


def tables() -> Tables:
    """The tables in use: those shipped, read on first use, then the user's."""
    global _loaded  # noqa: PLW0603
    if (ready := _loaded) is not None:
        return ready
    with _loading:
        if _loaded is None:
            loaded = Tables()
            for path in sorted(SHIPPED.glob("*.json")):
                loaded.add(*parse_table(path.read_text(encoding="utf-8"), path.name))
            _loaded = loaded
        return _loaded


def load_table(path: str | Path) -> int:
    """Reads a measured table from a JSON file and puts it before those already loaded; empties the plan cache.

    Returns the number of rows taken. Raises ValueError when the file is not a table, OSError when it can't be
    read. Nothing changes where it raises.
    """
    path = Path(path)
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"table {path} has more than {MAX_BYTES >> 20} MiB, which no table needs.")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"table {path} is not UTF-8 text.") from None
    gpu, rows = parse_table(text, str(path))
    with _loading:
        tables().add(gpu, rows)
    _C.clear_plan_cache()
    return len(rows)


def reset_tables() -> None:
    """Forgets the user's tables: the shipped ones are read again. Empties the plan cache."""
    global _loaded  # noqa: PLW0603
    with _loading:
        _loaded = None
    _C.clear_plan_cache()
