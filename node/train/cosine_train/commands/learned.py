"""`cosine-node learned`: what this user's drafters have kept and learned, and how to delete it."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cosine_node.cli.options import AsJson
from cosine_node.terminal.printing import printable
from cosine_protocol.errors import UsageError

if TYPE_CHECKING:
    from cosine_train.learning.learner_report import LearnerReport


def learned(
    action: Annotated[str, typer.Argument(metavar="[ACTION]", help="show, or forget the texts.")] = "show",
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Show only drafters with this model.")] = None,
    versions: Annotated[
        bool, typer.Option("--versions", metavar="", help="Forget the learned weights as well.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show or delete what drafters with `join --learn` keep on this machine. Running drafters continue."""
    from cosine_train.learning.learner_report import read_reports

    if action not in ("show", "forget"):
        raise UsageError(f"learned does show or forget, not {action!r}.")
    if versions and action != "forget":
        raise UsageError("--versions goes with `learned forget`.")

    def reports() -> list["LearnerReport"]:
        return [report for report in read_reports() if model in (None, report.model)]

    found = reports()
    if model is not None and not found:
        raise UsageError(f"No drafter with the model {model!r} has learned here.")
    if action == "forget":
        from cosine_train.learning.stream_store import forget_streams
        from cosine_train.learning.versions import Versions

        for report in found:
            forget_streams(report.folder)
            if versions:
                Versions(report.folder).forget()
        found = reports()
    if as_json:
        shown = [report.as_object() | {"disk_bytes": _disk_bytes(report.folder)} for report in found]
        sys.stdout.write(json.dumps({"drafters": shown}) + "\n")
        return
    lines = []
    for report in found:
        lines.append(printable(f"{report.model} for {report.target}, {report.peer_id}"))
        lines += [f"  {name}: {text}" for name, text in report.facts()]
        lines.append(f"  folder: {report.folder}, {_disk_bytes(report.folder) / 1e6:.1f} MB")
    sys.stdout.write("\n".join(lines or ["No drafter has learned here."]) + "\n")


def _disk_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
