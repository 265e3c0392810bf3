"""`cosine audit`: let others or this machine judge a stored text, check evidence, or judge an endpoint."""

import asyncio
import json
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import ne
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cosine_engine.load_options import EngineKind, LoadOptions
from cosine_engine.pool_size import AUTO
from cosine_node.cli.asking import joining_once
from cosine_node.cli.node_options import model_option
from cosine_node.verifier.admission import VerifierConfig
from cosine_p2p.access import Access
from cosine_p2p.request.options import ClientOptions
from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.storage.state_file import replace_text
from cosine_p2p.trust.audit_rule import AuditState, accuses
from cosine_p2p.trust.evidence import Evidence, EvidenceFile, evidence_of_json
from cosine_p2p.trust.peer_memory import PeerFailures
from cosine_protocol.audit import AuditVerdict
from cosine_protocol.errors import CosineError, RemoteProtocolError, UsageError
from cosine_terminal.help_screen import actions, everyday
from cosine_terminal.interrupts import run_interruptibly
from cosine_terminal.options import (
    DEFAULT_TARGET,
    ENTRANCE,
    AsJson,
    IdentityFile,
    InitialPeers,
    option,
    several,
    takes_options,
)
from cosine_terminal.printing import FAILURE_EXIT, json_safe, short_peer_id, show
from cosine_terminal.waiting import Stage, WaitingLine, telling_stages

if TYPE_CHECKING:
    from cosine_p2p.client import Join, Swarm

MAX_FILE_BYTES: Final = 64 << 20
"""Far more than the longest generation."""
WAIT_S: Final = 600.0
MAX_QUESTIONS: Final = 400


WORDS: Final[Mapping[AuditState, str]] = {
    AuditState.UNANSWERED: "nobody has judged it",
    AuditState.PASSED: "most of its judges agree",
    AuditState.SUSPECTED: "one judge accuses, and there is no other",
    AuditState.DISPUTED: "its judges disagree",
    AuditState.CONVICTED: "most of its judges accuse",
}
"""The judgement of others. Signatures prove who judged; the reader decides whom to believe."""
OWN_WORDS: Final[Mapping[AuditState, str]] = {
    AuditState.PASSED: "this machine would have written the same",
    AuditState.CONVICTED: "this machine would have written something else",
}


@dataclass(frozen=True, slots=True)
class CheckedPiece:
    """One signed part of a text, and its judgements.

    problem: The reason why it proves nothing. "" if it holds.
    is_own_word: True if this machine judged it with the target's weights.
    """

    author: str
    tokens: int
    state: str
    said: tuple[str, ...] = ()
    problem: str = ""
    is_own_word: bool = False

    def sentence(self) -> str:
        if self.problem:
            return f"This proves nothing: {self.problem}."
        told = "".join(f"; {each}" for each in self.said)
        words = OWN_WORDS if self.is_own_word else WORDS
        return (
            f"Verifier {short_peer_id(self.author)}, {self.tokens} tokens: {words[AuditState(self.state)]}{told}."
        )


endpoint_option = partial(option, panel="Is it the model?", envvar=None)
"""These options are of one command, which no environment variable gives but the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointOptions:
    """An endpoint to be tried, and the numerics that it claims."""

    model: Annotated[str, everyday(metavar="MODEL", help="The claimed model. As of `join`.")] = DEFAULT_TARGET
    key: Annotated[
        str | None,
        endpoint_option("key", "KEY", "API key of the endpoint.", envvar="COSINE_ENDPOINT_KEY"),
    ] = None
    questions: Annotated[int, endpoint_option("questions", "COUNT", "Questions to ask, 10 to 400.")] = 100
    seed: Annotated[int | None, endpoint_option("seed", "NUMBER", "Draws the questions. Default: a new one.")] = (
        None
    )
    only_claimed: Annotated[
        bool, endpoint_option("only-claimed", "", "Load the model once, without other numerics to compare with.")
    ] = False
    out: Annotated[
        Path | None,
        endpoint_option("out", "FILE", "Write the signed report. `audit FILE` checks it.", everyday=True),
    ] = None
    engine: Annotated[str, model_option("engine", "ENGINE", "As of `join`, like the following.")] = AUTO
    device: Annotated[str, model_option("device", "DEVICE", "Where the model runs.")] = AUTO
    dtype: Annotated[str, model_option("dtype", "DTYPE", "auto, float32, bfloat16 or float16.")] = AUTO
    quantize: Annotated[str | None, model_option("quantize", "KIND", "float16, int8, int4 or stored.")] = None

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
    from cosine_node.endpoint_audit.examination import LEAST_ANSWERS, questions_of, read_answers

    if not LEAST_ANSWERS <= tried.questions <= MAX_QUESTIONS:
        raise UsageError(f"--questions must lie between {LEAST_ANSWERS} and {MAX_QUESTIONS}.")
    if tried.out is not None and not tried.out.parent.is_dir():
        raise UsageError(f"There is no folder {tried.out.parent} to write {tried.out.name} into.")
    model, claimed = tried.model, tried.choice()
    endpoint = AskedEndpoint.parse(address, model=model, key=tried.key)
    seed = secrets.randbelow(1 << 31) if tried.seed is None else tried.seed
    line, stage = WaitingLine(sys.stderr), Stage(f"Asking {endpoint.url}")
    try:
        async with telling_stages(line, lambda: stage.sentence):
            answers = await endpoint.ask_all(questions_of(tried.questions, seed))
            reading = partial(read_answers, only_claimed=tried.only_claimed, note=stage.change)
            read = await asyncio.to_thread(reading, answers, model, claimed)
            return {
                "endpoint": f"{endpoint.url}#{endpoint.model}",
                "model": model,
                "seed": seed,
                "asked_at_s": round(time.time()),
                "refused_fields": sorted(endpoint.dropped),
                "unanswered": endpoint.faults,
                **await asyncio.to_thread(read.judged),
                "answers": [asdict(answer) for answer in answers],
            }
    finally:
        line.end()


def _tell_report(report: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a report without its answers. Exits with 1 unless the endpoint runs the model."""
    from cosine_node.endpoint_audit.report import sentences

    found = {name: value for name, value in report.items() if name != "answers"}
    show(sys.stdout, json.dumps(found) + "\n" if as_json else sentences(report))
    if report.get("verdict") != "this model":
        raise typer.Exit(FAILURE_EXIT)


def check(piece: Evidence, written: object = None) -> CheckedPiece:
    """Check signatures, and that `written`, the tokens of a text if they are a list, are those that were signed."""
    try:
        opened = piece.open()
    except RemoteProtocolError as error:
        return CheckedPiece("", 0, AuditState.UNANSWERED, problem=str(error))
    tokens, author = opened.claim.tokens, opened.claim.author
    if isinstance(written, list) and any(map(ne, written, tokens)):
        problem = "the tokens of the file are not those that the verifier signed"
        return CheckedPiece(author, len(tokens), opened.state, problem=problem)
    said = [
        f"{short_peer_id(statement.auditor)} {'accuses' if accuses(verdict, opened.claim.request) else 'agrees'}: "
        f"{_counted(verdict)}"
        for statement, verdict in zip(piece.statements, opened.verdicts, strict=True)
    ]
    return CheckedPiece(author, len(tokens), opened.state, tuple(said))


def _counted(verdict: AuditVerdict) -> str:
    counts = f"{verdict.equal} equal, {verdict.near_ties} near ties, {verdict.different} different"
    if verdict.widest_gap is None:
        return counts
    return f"{counts}, log-probabilities off by {verdict.widest_gap:.2g} at most"


async def _judged_here(pieces: Sequence[Evidence], model: str, written: object) -> list[CheckedPiece]:
    line = WaitingLine(sys.stderr)
    try:
        async with telling_stages(line, lambda: f"Judging with {model}"):
            return await asyncio.to_thread(judged_here, pieces, model, written)
    finally:
        line.end()


def judged_here(pieces: Sequence[Evidence], model: str, written: object) -> list[CheckedPiece]:
    """Judge each piece with the target's weights on this machine, as verifiers do. Blocks.

    Raises `UsageError` if the model is not available, or is not the target of the texts.
    """
    from cosine_engine.constraints.grammars import Grammars
    from cosine_engine.models.loading import load, open_model
    from cosine_engine.models.served import ModelNames
    from cosine_node.verifier.audited_stream import verdict_on

    checked = [check(piece, written) for piece in pieces]
    claims = {index: piece.open().claim for index, piece in enumerate(pieces) if not checked[index].problem}
    if not claims:
        return checked
    files = open_model(model)
    facts = ModelNames.read(model, model, files.folder).facts
    config = VerifierConfig(target_digest=facts.digest(), tokenizer_digest=facts.tokenizer_digest)
    wanted = {claim.request.target_digest for claim in claims.values()}
    if config.target_digest not in wanted:
        raise UsageError(
            f"{model} is not the target of this text, {wanted.pop().hex()}: name the target's weights with --model."
        )
    engine = load(files, LoadOptions(is_served=True, grammars=Grammars.of(files.folder, waits=True)))
    for index, claim in claims.items():
        try:
            verdict = verdict_on(claim, engine, config)
        except CosineError as error:
            checked[index] = replace(checked[index], problem=f"this machine cannot judge it, {error}")
            continue
        is_wrong = accuses(verdict, claim.request, numerics=engine.numerics)
        state = AuditState.CONVICTED if is_wrong else AuditState.PASSED
        said = (f"{_counted(verdict)}, in {engine.numerics}",)
        checked[index] = replace(checked[index], state=state, said=said, is_own_word=True)
    return checked


async def _judged(
    pieces: Sequence[Evidence], join: "Join", joining: Stage, trust: Sequence[str]
) -> tuple[Evidence, ...]:
    """Join, and add the statements of other verifiers to the pieces."""
    line = WaitingLine(sys.stderr)
    async with telling_stages(line, lambda: joining.sentence):
        swarm = await join()
    try:
        async with telling_stages(line, lambda: "Asking other verifiers"):
            return await judged(swarm, pieces, trust)
    finally:
        line.end()
        await swarm.close()


async def judged(swarm: "Swarm", pieces: Sequence[Evidence], trust: Sequence[str]) -> tuple[Evidence, ...]:
    """Add the statements of a swarm's verifiers. Claims that do not hold are not sent."""
    from cosine_p2p.session.auditing import Auditing
    from cosine_p2p.trust.standing import Standings

    auditing = Auditing(swarm.transport, PeerFailures(), Standings(), file=EvidenceFile())
    try:
        return await auditing.judged(pieces, swarm.directory, trust=trust, wait_s=WAIT_S)
    finally:
        await auditing.close()
