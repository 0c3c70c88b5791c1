"""The shape manifests: one CSV per suite, one row per problem (benchmarks/manifests/README.md)."""

from __future__ import annotations

import csv
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

FLOAT_DTYPES = ("bf16", "f16", "f32")
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hardswish")
FLOOR_SUITES, FLOOR_MAX_M = ("decode", "mid"), 64  # rows with a streaming read beside them
PRECISIONS = {"f32": None, "tf32": "tf32", "3xtf32": "3xtf32"}  # the compute column -> the op's argument
_VALUES = {
    "major_a": ("k", "m"),
    "major_b": ("k", "n"),
    "major_d": ("n",),
    "compute": ("f32", "s32", "tf32", "3xtf32"),
    "scaling": ("none", "tensor", "row", "block", "group128"),
    "tokens": ("", "uniform", "zipf"),
    "compile": ("", "max-autotune"),
}
_DTYPES = (*FLOAT_DTYPES, "e4m3", "s8", "s4")


@dataclass(frozen=True)
class Row:
    """One problem. Field names are the manifest's columns; leading dimensions in elements, 0 = packed."""

    suite: str
    name: str
    M: int
    N: int
    K: int
    batch: int
    major_a: str
    major_b: str
    major_d: str
    dtype_a: str
    dtype_b: str
    dtype_c: str
    dtype_d: str
    compute: str
    alpha: float
    beta: float
    epilogue: str
    scaling: str
    lda: int
    ldb: int
    ldc: int
    ldd: int
    align_bytes: int
    workspace_mb: int
    tokens: str
    weight: float
    compile: str = ""  # torch.compile's mode of the compile arm: "" its default, or max-autotune; suite epilogue

    @property
    def epilogue_terms(self) -> tuple[str, ...]:
        """() for none, else the parts: ("bias", "gelu")."""
        return () if self.epilogue == "none" else tuple(self.epilogue.split("+"))

    @property
    def has_bias(self) -> bool:
        return "bias" in self.epilogue_terms

    @property
    def activation(self) -> str | None:
        return next((t for t in self.epilogue_terms if t in ACTIVATIONS), None)

    @property
    def gated(self) -> bool:
        """D = silu(gate) * up of one product: its N columns are gate | up and D has half as many."""
        return "swiglu" in self.epilogue_terms

    @property
    def d_columns(self) -> int:
        return self.N // 2 if self.gated else self.N

    @property
    def plain(self) -> bool:
        """D = A @ B and nothing else."""
        return self.alpha == 1 and not self.dtype_c and not self.epilogue_terms

    @property
    def flops(self) -> int:
        return 2 * self.M * self.N * self.K * self.batch

    @property
    def shape(self) -> str:
        text = f"{self.M}x{self.N}x{self.K}"
        return f"{self.batch}x({text})" if self.batch > 1 else text

    def unsupported(self) -> str:
        """Why this version of gemmx has no op for the row, in one sentence; "" when it has one."""
        if self.tokens:
            return "grouped GEMM needs the op grouped_gemm, which this version does not have"
        for column in ("dtype_a", "dtype_b", "dtype_c", "dtype_d"):
            dtype = getattr(self, column)
            if dtype and dtype not in FLOAT_DTYPES:
                return f"{column} is {dtype}; this version takes {', '.join(FLOAT_DTYPES)}"
        if self.scaling != "none":
            return f"scaling is {self.scaling}; this version has no scaled GEMM"
        return ""

    def without_floor(self) -> str:
        """Why no streaming read is measured beside the row, in one sentence; "" when one is."""
        if self.suite in FLOOR_SUITES and self.M <= FLOOR_MAX_M:
            return ""
        return f"measured for rows of the suites {' and '.join(FLOOR_SUITES)} with M of at most {FLOOR_MAX_M}"


def load(path: Path) -> list[Row]:
    """The rows of a manifest. ValueError naming file, row and column for anything the columns do not allow."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        expected = [f.name for f in fields(Row)]
        required = [f.name for f in fields(Row) if f.default is MISSING]
        if reader.fieldnames is None or list(reader.fieldnames) not in (expected, required):
            raise ValueError(f"{path}: the columns are {reader.fieldnames}; expected {expected}, the last if needed")
        try:
            rows = [_parse(path, record) for record in reader]
        except csv.Error as error:  # a NUL, or a field without end
            raise ValueError(f"{path}: {error}") from None
    names = [row.name for row in rows]
    if len(set(names)) != len(names):
        raise ValueError(f"{path}: row names repeat; every row of a suite needs its own")
    return rows


def _parse(path: Path, record: dict[str, str]) -> Row:
    where = f"{path}: row {record.get('name')}"
    kinds = {"str": str, "int": int, "float": float}
    try:
        row = Row(**{f.name: kinds[str(f.type)](record[f.name]) for f in fields(Row) if f.name in record})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None
    for column in ("M", "N", "K", "batch"):
        if not 0 <= getattr(row, column) < 2**31:
            raise ValueError(f"{where}: {column} is {getattr(row, column)}; it takes 0 to 2147483647")
    for column, allowed in _VALUES.items():
        if getattr(row, column) not in allowed:
            raise ValueError(f"{where}: {column} is {getattr(row, column)!r}; it takes {', '.join(map(repr, allowed))}")
    for column in ("dtype_a", "dtype_b", "dtype_d"):
        if getattr(row, column) not in _DTYPES:
            raise ValueError(f"{where}: {column} is {getattr(row, column)!r}; it takes {', '.join(_DTYPES)}")
    known = {"bias", "residual", "swiglu", *ACTIVATIONS}
    if not set(row.epilogue_terms) <= known:
        raise ValueError(f"{where}: epilogue is {row.epilogue!r}; it takes none or a + of {', '.join(sorted(known))}")
    if ("residual" in row.epilogue_terms) != bool(row.dtype_c):
        raise ValueError(f"{where}: the epilogue has a residual exactly when dtype_c is given")
    if row.gated and (set(row.epilogue_terms) - {"bias", "swiglu"} or row.N % 2 or row.batch != 1):
        raise ValueError(
            f"{where}: swiglu takes a bias and nothing else beside it, one batch and an even N (gate | up)"
        )
    return row
