"""`cosine audit`: let others or this machine judge a stored text, check evidence, or judge an endpoint."""

import asyncio
import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cosine_engine.load_options import EngineKind, LoadOptions
from cosine_engine.pool_size import AUTO
from cosine_node.cli.asking import joining_once
from cosine_node.cli.node_flags import model_option
from cosine_node.verifier.judged_texts import CheckedPiece, check, judged, judged_here
from cosine_p2p.access import Access
from cosine_p2p.request.options import ClientOptions
from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.storage.state_file import replace_text
from cosine_p2p.trust.audit_rule import AuditState
from cosine_p2p.trust.evidence import Evidence, EvidenceFile, evidence_of_json
from cosine_protocol.errors import UsageError
from cosine_terminal.help_screen import actions, everyday
from cosine_terminal.interrupts import run_interruptibly
from cosine_terminal.options import (
    DEFAULT_TARGET,
    ENTRANCE,
    AsJson,
    IdentityFile,
    InitialPeers,
    declared,
    several,
    takes_options,
)
from cosine_terminal.printing import FAILURE_EXIT, json_safe, show
from cosine_terminal.waiting import Stage, waiting_for

if TYPE_CHECKING:
    from cosine_p2p.client import Join

MAX_FILE_BYTES: Final = 64 << 20
"""Far more than the longest generation."""
MAX_QUESTIONS: Final = 400


# These options are of one command, which no environment variable gives but the key.
endpoint_option = partial(declared, panel="Is it the model?", envvar=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """An endpoint to be tried, and the numerics that it claims."""

    model: Annotated[str | None, everyday(metavar="MODEL", help="The claimed model. As of `join`.")] = None
    key: str | None = endpoint_option(None, "KEY", "API key of the endpoint.", envvar="COSINE_ENDPOINT_KEY")
    questions: int = endpoint_option(100, "COUNT", "Questions to ask, 10 to 400.")
    seed: int | None = endpoint_option(None, "NUMBER", "Draws the questions. Default: a new one.")
    only_claimed: bool = endpoint_option(False, "", "Load the model once, without other numerics to compare with.")
    out: Path | None = endpoint_option(
        None, "FILE", "Write the signed report. `audit FILE` checks it.", everyday=True
    )
    engine: str = model_option(AUTO, "ENGINE", "As of `join`, like the following.")
    device: str = model_option(AUTO, "DEVICE", "Where the model runs.")
    dtype: str = model_option(AUTO, "DTYPE", "auto, float32, bfloat16 or float16.")
    quantize: str | None = model_option(None, "KIND", "float16, int8, int4 or stored.")

    def choice(self) -> LoadOptions:
        """Raises `UsageError`."""
        return LoadOptions(
            kind=EngineKind.parse(self.engine), device=self.device, dtype=self.dtype, quantize=self.quantize
        )


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
    from cosine_node.endpoint_audit.report import NAME, open_report

    result = None if file is None else read_object(file)
    if result is not None and NAME in result:
        _tell_report(open_report(result), as_json=as_json)
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


@takes_options
def audit_endpoint(
    endpoint: Annotated[
        str, typer.Argument(metavar="URL#NAME", help="OpenAI's API, and what it calls the model if not --model.")
    ],
    tried: EndpointOptions,
    identity: IdentityFile = None,
    as_json: AsJson = False,
) -> None:
    """Judge which model an endpoint runs, in a signed report."""
    from cosine_node.endpoint_audit.report import open_report, sign_report

    signed = sign_report(run_interruptibly(_examined(endpoint, tried)), load_identity(identity))
    if tried.out is not None:
        replace_text(tried.out, json.dumps(signed))
    _tell_report(open_report(signed), as_json=as_json)


audit = actions(
    "audit",
    "Let others or this machine judge a text, or an endpoint.",
    {"text": audit_text, "endpoint": audit_endpoint},
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


async def _examined(address: str, tried: EndpointOptions) -> dict[str, Any]:
    """Ask an endpoint, and judge its answers with the weights of a model."""
    from cosine_node.endpoint_audit.asking import AskedEndpoint
    from cosine_node.endpoint_audit.examination import LEAST_ANSWERS, examine

    if tried.model is None:
        raise UsageError("Name the model that the endpoint claims to run with --model.")
    if not LEAST_ANSWERS <= tried.questions <= MAX_QUESTIONS:
        raise UsageError(f"--questions must lie between {LEAST_ANSWERS} and {MAX_QUESTIONS}.")
    if tried.out is not None and not tried.out.parent.is_dir():
        raise UsageError(f"There is no folder {tried.out.parent} to write {tried.out.name} into.")
    claimed = tried.choice()
    endpoint = AskedEndpoint.parse(address, model=tried.model, key=tried.key)
    stage = Stage(f"Asking {endpoint.url}")
    async with waiting_for(stage):
        return await examine(
            endpoint,
            tried.model,
            claimed,
            count=tried.questions,
            seed=secrets.randbelow(1 << 31) if tried.seed is None else tried.seed,
            only_claimed=tried.only_claimed,
            note=stage.change,
        )


def _tell_report(report: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a report without its answers. Exits with 1 unless the endpoint runs the model."""
    from cosine_node.endpoint_audit.report import sentences

    found = {name: value for name, value in report.items() if name != "answers"}
    show(sys.stdout, json.dumps(found) + "\n" if as_json else sentences(report))
    if report.get("verdict") != "this model":
        raise typer.Exit(FAILURE_EXIT)


async def _judged_here(pieces: Sequence[Evidence], model: str, written: object) -> list[CheckedPiece]:
    async with waiting_for(Stage(f"Judging with {model}")):
        return await asyncio.to_thread(judged_here, pieces, model, written)


async def _judged(
    pieces: Sequence[Evidence], join: "Join", stage: Stage, trust: Sequence[str]
) -> tuple[Evidence, ...]:
    """Join, and add the statements of other verifiers to the pieces."""
    async with waiting_for(stage), AsyncExitStack() as stack:
        swarm = await join()
        stack.push_async_callback(swarm.close)
        stage.change("Asking other verifiers")
        return await judged(swarm, pieces, trust)
