"""`cosine-node demo`: a whole swarm on this machine, plain and `cosine` side by side."""

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cosine_node.cli.exit_codes import FAILURE_EXIT
from cosine_node.cli.options import AsJson
from cosine_node.cli.printing import say
from cosine_protocol.errors import UsageError

if TYPE_CHECKING:
    from cosine_node.demo.report import Report


def demo(
    max_new_tokens: Annotated[int, typer.Option(help="Output tokens of each prompt.")] = 96,
    emulate: Annotated[
        str, typer.Option(envvar="COSINE_EMULATE", help="VERIFIER_MS/DRAFTER_MS@RTT_MS")
    ] = "60/6@10",
    as_json: AsJson = False,
) -> None:
    """Start a verifier and six drafters with the embedded models and compare plain decoding with cosine."""
    from cosine_node.demo.swarm import run_demo
    from cosine_node.emulation import Emulation

    if max_new_tokens < 1:
        raise UsageError("--max-new-tokens must be 1 or more.")
    report = asyncio.run(run_demo(Emulation.parse(emulate), max_new_tokens=max_new_tokens, say=say))
    if as_json:
        sys.stdout.write(json.dumps(report.as_json()) + "\n")
    else:
        print_report(report)
    if not all(row.identical for row in report.rows):
        raise typer.Exit(FAILURE_EXIT)


def print_report(report: "Report") -> None:
    """Print the table for people."""
    from rich.console import Console
    from rich.table import Table

    from cosine_node.demo.report import helpers, summary

    console = Console(width=None if sys.stdout.isatty() else 100)
    table = Table(title="Plain decoding and cosine, side by side (emulated devices and links)")
    for heading in ("domain", "tokens", "plain s", "cosine s", "speedup", "passes", "identical", "drafted by"):
        table.add_column(heading, justify="left" if heading in ("domain", "drafted by") else "right")
    for row in report.rows:
        table.add_row(
            row.domain,
            str(row.cosine.tokens),
            f"{row.plain.seconds:.2f}",
            f"{row.cosine.seconds:.2f}",
            f"{row.speedup:.2f}x" if report.pacing.is_honest else "-",
            f"{row.plain.rounds} / {row.cosine.rounds}",
            "yes" if row.identical else "NO",
            helpers(row.cosine),
        )
    console.print(table)
    for sentence in summary(report):
        console.print(sentence, highlight=False, soft_wrap=True)
