"""gemmx: D = act(alpha * A @ B + beta * C + bias) on NVIDIA GPUs, as torch ops.

    gemmx.gemm(x, weight.t(), bias=bias, activation="silu")

The op itself is torch.ops.gemmx.gemm. gemmx.explain says which kernel a call runs and why; gemmx.strict() makes a
slower path an error. gemmx.nn has modules, and gemmx.convert puts them into a model.
"""

from gemmx import _library as _library  # first: loads what the rest needs
from gemmx._C import version as _version
from gemmx._strict import strict
from gemmx.nn import convert
from gemmx.ops import gemm, gemm_aux, gemm_gated
from gemmx.roofline import roofline
from gemmx.select.explain import explain
from gemmx.select.selector import install as _install_selector
from gemmx.select.tables import load_table

__version__ = _version()
__all__ = [
    "__version__",
    "convert",
    "explain",
    "gemm",
    "gemm_aux",
    "gemm_gated",
    "load_table",
    "nn",
    "roofline",
    "strict",
]

_install_selector()
