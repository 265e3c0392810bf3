"""`cosine audit`: let others or this machine judge a stored text, check evidence, or judge an endpoint."""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cosine_cli.asking import joining_once
from cosine_cli.endpoint_report import NAME, open_report, tell_report
from cosine_cli.judged_texts import CheckedPiece, check, judged
from cosine_p2p.access import Access
from cosine_p2p.request.options import ClientOptions
from cosine_p2p.trust.audit_rule import AuditState
from cosine_p2p.trust.evidence import Evidence, EvidenceFile, evidence_of_json
from cosine_protocol.errors import UsageError
from cosine_terminal.companions import NODES, PARTS, installed_part
from cosine_terminal.help_screen import actions, everyday
from cosine_terminal.interrupts import run_interruptibly
from cosine_terminal.options import (
    DEFAULT_TARGET,
    ENTRANCE,
    AsJson,
    InitialPeers,
    several,
    takes_options,
)
from cosine_terminal.printing import FAILURE_EXIT, json_safe, show
from cosine_terminal.waiting import Stage, waiting_for

if TYPE_CHECKING:
    from cosine_p2p.client import Join

MAX_FILE_BYTES: Final = 64 << 20
"""Far more than the longest generation."""


@takes_options
def audit_text(
    options: Annotated[ClientOptions, (*ENTRANCE, "trust")],
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="Output of `generate --json`, or a report. Default: the evidence kept here."
        ),
    ] = None,
    initial_peers: InitialPeers = None,
    offline: Annotated[
        bool,
        everyday("--offline", help="Check signatures; ask no peer. And earlier findings."),
    ] = False,
    local: Annotated[
        bool, everyday("--local", help="Judge with the target's weights here. It asks no peer.")
    ] = False,
    model: Annotated[
        str, everyday("--model", metavar="MODEL", help="Weights for `--local`. As in `join`.")
    ] = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Let other verifiers or this machine judge a text, or read a report."""
    result = None if file is None else read_object(file)
    if result is not None and NAME in result:
        tell_report(open_report(result), as_json=as_json)
        return
    if local and offline:
        raise UsageError("--local judges the text again and --offline does not: give one of them.")
    pieces, written = read_evidence(file, result), (result or {}).get("token_ids")
    if local:
        checked = run_interruptibly(_judged_here(pieces, model, written))
    else:
        if pieces and not offline:
            joining = Stage("Looking for peers")
            join = joining_once(several(initial_peers), Access.of(options), note=joining.change)
            pieces = run_interruptibly(_judged(pieces, join, joining, options["trust"]))
        checked = [check(piece, written) for piece in pieces]
    if as_json:
        written = {"evidence": json_safe(pieces), "checked": json_safe(checked)}
        sys.stdout.write(json.dumps(written) + "\n")
    else:
        show(sys.stdout, "".join(f"{piece.sentence()}\n" for piece in checked))
    # Offline any evidence that holds is fine.
    fine = {AuditState.PASSED} if not offline else set(AuditState)
    if any(piece.problem or piece.state not in fine for piece in checked):
        raise typer.Exit(FAILURE_EXIT)


audit = actions(
    "audit",
    "Let others or this machine judge a text, or an endpoint.",
    {
        "text": audit_text,
        "endpoint": installed_part(PARTS, "audit_endpoint") or NODES.absent("endpoint", "Judge an endpoint."),
    },
    usual="text",
)


def read_evidence(file: Path | None, result: Mapping[str, Any] | None) -> tuple[Evidence, ...]:
    """The evidence in a file's result of `generate --json` or of this command, else in the state folder.

    Raises `UsageError` if there is none.
    """
    if result is None:
        kept = EvidenceFile()
        if found := kept.read():
            return found
        raise UsageError(f"No evidence is kept in {kept.path}; name a file that `generate --json` wrote.")
    inner = result.get("audit")
    pieces = evidence_of_json((inner if isinstance(inner, dict) else result).get("evidence"))
    if not pieces:
        raise UsageError(f"{file} holds nothing that a verifier signed; `generate --json` writes it.")
    return pieces


def read_object(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{file} is too large for a result of `generate --json`.")
        value: Any = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not a result of `generate --json`: {error}.") from None
    return value if isinstance(value, dict) else {}


async def _judged_here(pieces: Sequence[Evidence], model: str, written: object) -> list[CheckedPiece]:
    async with waiting_for(Stage(f"Judging with {model}")):
        return await asyncio.to_thread(NODES.part(PARTS, "judged_here"), pieces, model, written)


async def _judged(
    pieces: Sequence[Evidence], join: "Join", stage: Stage, trust: Sequence[str]
) -> tuple[Evidence, ...]:
    """Join, and add the statements of other verifiers to the pieces."""
    async with waiting_for(stage), AsyncExitStack() as stack:
        swarm = await join()
        stack.push_async_callback(swarm.close)
        stage.change("Asking other verifiers")
        return await judged(swarm, pieces, trust)
