"""The `gemmx` command: what would run, what is there, what this library was built for.

gemmx explain M N K [--dtype bf16] [--device h200] ...
gemmx kernels [--device h200]
gemmx devices
gemmx info
"""

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import torch

from gemmx import _C
from gemmx.select.explain import explain as explain_call
from gemmx.select.profiles import PROFILES, peak_flops, profile

if TYPE_CHECKING:
    import typer

NEEDS = 'The gemmx command needs typer and rich: install them with `pip install "gemmx[cli]"`.'


def _table(title: str, columns: list[str], rows: list[list[str]]) -> None:
    """Prints a table with rich."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        numeric = all(row[i].replace(".", "", 1).isdigit() for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    # Piped output keeps its lines whole; a terminal folds them to its width.
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _explain_options(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value not in (None, 0)}


def build_app() -> "typer.Typer":
    """The typer application. ImportError where typer is missing."""
    import typer

    app = typer.Typer(help="Explain and list gemmx's kernels.", no_args_is_help=True, add_completion=False)

    @app.command()
    def explain(  # noqa: PLR0917  typer reads them by name
        m: Annotated[int, typer.Argument(help="Rows of A and D.")],
        n: Annotated[int, typer.Argument(help="Columns of B and D.")],
        k: Annotated[int, typer.Argument(help="Columns of A, rows of B.")],
        dtype: Annotated[str, typer.Option(help="Of A and B: bf16, f16, f32.")] = "bf16",
        out_dtype: Annotated[str | None, typer.Option(help="Of D; by default as A.")] = None,
        device: Annotated[str, typer.Option(help="Profile; `gemmx devices` lists them.")] = "h200",
        batch: Annotated[int, typer.Option(help="Number of products.")] = 1,
        major_a: Annotated[str, typer.Option(help="k: (M, K) row-major; m: stored (K, M).")] = "k",
        major_b: Annotated[str, typer.Option(help="k: stored (N, K), a weight; n: (K, N) row-major.")] = "k",
        bias: Annotated[bool, typer.Option(help="Add a bias of D's dtype.")] = False,
        c: Annotated[bool, typer.Option("--c", help="Add C of D's dtype.")] = False,
        activation: Annotated[str | None, typer.Option(help="silu, gelu, relu, ...")] = None,
        numerics: Annotated[str | None, typer.Option(help="batch_invariant: bits that do not depend on M.")] = None,
        schedule: Annotated[str | None, typer.Option(help="data_parallel, split_k, stream_k.")] = None,
        splits: Annotated[int, typer.Option(help="Cuts of K; 0: the selector decides.")] = 0,
        kernel: Annotated[str | None, typer.Option(help="Ask for a kernel by name.")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Which kernel runs D (M, N) = A (M, K) @ B (K, N), why, and how far it is from the roofline."""
        out = out_dtype or dtype
        options = _explain_options(
            out_dtype=out_dtype,
            bias=out if bias else None,
            c=out if c else None,
            activation=activation,
            numerics=numerics,
            schedule=schedule,
            splits=splits,
            kernel=kernel,
        )
        try:
            explanation = explain_call.shape(
                m, n, k, dtype, device=device, batch=batch, major_a=major_a, major_b=major_b, **options
            )
        except (ValueError, RuntimeError) as error:
            typer.echo(f"gemmx: {error}", err=True)
            raise typer.Exit(2) from None
        typer.echo(json.dumps(explanation.to_dict(), indent=2) if as_json else str(explanation))

    @app.command()
    def kernels(
        device: Annotated[str | None, typer.Option(help="Only kernels for this profile's capability.")] = None,
    ) -> None:
        """Every registered kernel, and whether this library has its code."""
        try:
            target = profile(device) if device else None
        except ValueError as error:
            typer.echo(f"gemmx: {error}", err=True)
            raise typer.Exit(2) from None
        rows = []
        for s in _C.kernels():
            if target is not None and not s.min_capability <= target.capability <= s.max_capability:
                continue
            capability = target.capability if target else s.min_capability
            rows.append(
                [
                    s.name,
                    s.family,
                    "x".join(map(str, s.tile)),
                    "x".join(map(str, s.cluster[:2])),
                    str(s.stages),
                    s.mma,
                    str(s.smem_bytes),
                    " ".join(s.schedules),
                    "yes" if _C.built_for(s.name, capability) else "no",
                ]
            )
        columns = ["kernel", "family", "tile", "cluster", "stages", "MMA", "smem", "schedules", "built"]
        _table(f"{len(rows)} kernels", columns, rows)

    @app.command()
    def devices() -> None:
        """The device profiles that --device takes."""
        rows = []
        for name, make in PROFILES.items():
            d = make()
            rows.append(
                [
                    name,
                    d.name,
                    f"{d.capability / 10:.1f}",
                    str(d.sm_count),
                    str(d.smem_per_block),
                    str(d.l2_bytes >> 20),
                    f"{d.dram_gbps:.0f}",
                    f"{peak_flops(d, 'bf16') / 1e12:.0f}",
                ]
            )
        columns = ["profile", "GPU", "capability", "SMs", "smem a block", "L2 MiB", "GB/s", "bf16 TFLOP/s"]
        _table("Device profiles", columns, rows)

    @app.command()
    def info() -> None:
        """Versions, the architectures of this library, and the GPUs present."""
        typer.echo(f"gemmx     {_C.version()} (sources {_C.source_hash()})")
        typer.echo(f"archs     {' '.join(_C.build_archs()) or 'none: CPU reference, selection and explain only'}")
        typer.echo(f"kernels   {len(_C.kernels())}")
        typer.echo(f"torch     {torch.__version__}, CUDA {torch.version.cuda or 'none'}")
        count = torch.cuda.device_count()
        typer.echo(f"GPUs      {', '.join(torch.cuda.get_device_name(i) for i in range(count)) or 'none'}")

    return app


def main() -> None:
    """Entry point of the `gemmx` command."""
    try:
        app = build_app()
        import rich  # noqa: F401  tables need it: say so before half an answer
    except ImportError:
        sys.exit(NEEDS)
    app()


if __name__ == "__main__":
    main()
