"""`cosine-node learned`: what this user's drafters have kept and learned, and how to delete it."""

import json
import sqlite3
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from cosine_node.cli.options import AsJson
from cosine_node.cli.printing import printable
from cosine_protocol.errors import UsageError


class Action(StrEnum):
    """What is to be done with what was learned."""

    SHOW = "show"
    FORGET = "forget"


def learned(
    action: Annotated[str, typer.Argument(metavar="[ACTION]", help="show, or forget the texts.")] = Action.SHOW,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only of drafters with this model, as `learned` shows it.")
    ] = None,
    versions: Annotated[
        bool, typer.Option("--versions", metavar="", help="Forget the learned weights as well.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show or delete what drafters with `join --learn` keep on this machine; those that run go on."""
    from cosine_node.learning.home import find_homes

    if action not in set(Action):
        raise UsageError(f"learned does {' or '.join(Action)}, not {action!r}.")
    if versions and action != Action.FORGET:
        raise UsageError("--versions goes with `learned forget`.")
    homes = [(folder, about) for folder, about in find_homes() if model in (None, about.get("model"))]
    if model is not None and not homes:
        raise UsageError(f"No drafter with the model {model!r} has learned here.")
    if action == Action.FORGET:
        for folder, _ in homes:
            _forget(folder, with_versions=versions)
    facts = [_facts(folder, about) for folder, about in homes]
    if as_json:
        sys.stdout.write(json.dumps({"drafters": facts}) + "\n")
        return
    lines = [line for one in facts for line in _lines(one)] or ["No drafter has learned here."]
    sys.stdout.write("\n".join(lines) + "\n")


def _forget(folder: Path, *, with_versions: bool) -> None:
    from cosine_node.learning.stream_store import forget_streams
    from cosine_node.learning.versions import Versions

    forget_streams(folder)
    if with_versions:
        Versions(folder).forget()


def _facts(folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """What a folder holds, for machines."""
    from cosine_node.learning.learning_state import LearningState
    from cosine_node.learning.stream_store import KeptStreams, read_kept
    from cosine_node.learning.versions import Versions

    try:
        kept = read_kept(folder)
    except sqlite3.Error:
        # The learner itself moves it aside when it starts next.
        kept = KeptStreams()
    state, versions = LearningState.read(folder), Versions(folder)
    return {
        "model": str(about.get("model", "")),
        "target": str(about.get("target", "")),
        "peer_id": str(about.get("peer_id", "")),
        "folder": str(folder),
        "streams": kept.streams,
        "tokens": kept.tokens,
        "clients": kept.clients,
        "stream_bytes": kept.disk_bytes,
        "versions": versions.all(),
        "live": versions.word().number,
        "added_expertise": list(versions.word().expertise),
        "rounds": state.rounds,
        "rollbacks": state.rollbacks,
        "acceptance_before": round(state.before.share, 4),
        "acceptance_after": round(state.after.share, 4),
        "disk_bytes": sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
    }


def _lines(facts: dict[str, Any]) -> list[str]:
    """The same for people."""
    serves = f"version {facts['live']}" if facts["live"] else "the model as it came"
    gained = (
        f"; held out it was right at {100 * facts['acceptance_before']:.1f} % before, "
        f"{100 * facts['acceptance_after']:.1f} % after"
        if facts["live"]
        else ""
    )
    learned = ", ".join(map(str, facts["versions"])) or "none"
    return [
        printable(f"{facts['model']} for {facts['target']}, {facts['peer_id']}"),
        f"  texts: {facts['streams']} of {facts['clients']} clients, {facts['tokens']} tokens, "
        f"{facts['stream_bytes'] / 1e6:.1f} MB",
        f"  learned: {facts['rounds']} rounds, versions kept {learned}, taken back {facts['rollbacks']}",
        f"  serves: {serves}{gained}",
        f"  folder: {facts['folder']}, {facts['disk_bytes'] / 1e6:.1f} MB",
    ]
