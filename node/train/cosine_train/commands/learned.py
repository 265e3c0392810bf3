"""`cosine-node learned`: what this user's drafters have kept and learned, and how to delete it."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cosine_protocol.errors import UsageError
from cosine_terminal.help_screen import actions, everyday
from cosine_terminal.options import AsJson
from cosine_terminal.printing import printable

if TYPE_CHECKING:
    from cosine_train.learning.learner_report import LearnerFacts


Model = Annotated[str | None, everyday(metavar="NAME", help="Only drafters with this model.")]


def show(model: Model = None, as_json: AsJson = False) -> None:
    """Show what drafters with `draft --learn` keep on this machine."""
    _tell(_found(model), as_json=as_json)


def forget(
    model: Model = None,
    versions: Annotated[bool, everyday("--versions", help="Forget the learned weights as well.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the texts that drafters keep; running ones continue."""
    from cosine_train.learning.stream_store import forget_streams
    from cosine_train.learning.versions import Versions

    for report in _found(model):
        forget_streams(report.folder)
        if versions:
            Versions(report.folder).forget()
    _tell(_found(model), as_json=as_json)


learned = actions(
    "learned",
    "Show or delete what drafters with `draft --learn` keep.",
    {"show": show, "forget": forget},
    usual="show",
)


def _found(model: str | None) -> list["LearnerFacts"]:
    """The user's drafters that learn. Raises `UsageError` if none has the model."""
    from cosine_train.learning.learner_report import read_reports

    found = [report for report in read_reports() if model in (None, report.model)]
    if model is not None and not found:
        raise UsageError(f"No drafter with the model {model!r} has learned here.")
    return found


def _tell(found: list["LearnerFacts"], *, as_json: bool) -> None:
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
