"""Rewrites of torch.compile's graphs into gemmx's fused ops, behind gemmx.compile_pass.

nodes        facts about nodes of a graph: shapes, dtypes, views
activations  activations as they look after decomposition
products     products, what is added to them, gates
rewrite      which matches are kept, and the new nodes
report       what was rewritten and why the rest was left
inductor     the pass as Inductor takes it; the only module that imports torch._inductor
"""
