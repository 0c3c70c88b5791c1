"""Importing gemmx: what it must not do."""

from __future__ import annotations

import os
import subprocess
import sys

PROBE = """
import sys
import torch
before = set(sys.modules)
import gemmx
assert gemmx.nn.Linear and gemmx.convert
imported = {name for name in set(sys.modules) - before if name.startswith("torch.")}
assert not any("distributed" in name or "_dynamo" in name or "inductor" in name for name in imported), imported
from gemmx import _C
assert _C.kernels()
torch.ops.gemmx.gemm(torch.ones(2, 3), torch.ones(3, 2))
assert not torch.cuda.is_initialized()
"""


def test_import_does_not_initialise_cuda() -> None:
    """A process may import gemmx, fork, and use the GPU in its children. Nor is torch.distributed.tensor imported."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", PROBE], check=True, timeout=120, env=environment)
