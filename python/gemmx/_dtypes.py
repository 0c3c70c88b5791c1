"""Element types: gemmx's names, as in csrc/core/types.h, and torch's dtypes."""

from __future__ import annotations

from typing import Final

import torch

DTYPES: Final[dict[str, torch.dtype]] = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f64": torch.float64,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
    "complex64": torch.complex64,
}
_NAMES: Final[dict[torch.dtype, str]] = {dtype: name for name, dtype in DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a torch dtype in gemmx; "other" where it has none."""
    return _NAMES.get(dtype, "other")
