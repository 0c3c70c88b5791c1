"""Modules of gemmx in place of torch.nn's, and convert, which puts them into a model.

gemmx.nn.parallel has the same over several GPUs. It is imported by name (`import gemmx.nn.parallel`), because it
imports torch.distributed.tensor.
"""

from gemmx.nn.convert import Left, Report, Swap, convert, restore
from gemmx.nn.gated_mlp import GatedMLP
from gemmx.nn.linear import Linear

__all__ = ["GatedMLP", "Left", "Linear", "Report", "Swap", "convert", "restore"]
