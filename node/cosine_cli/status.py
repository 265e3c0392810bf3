"""`cosine status`: the nodes of a swarm, as seen from this machine."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cosine_cli.asking import joining_once
from cosine_cli.swarm import ban_text, bans_as_object
from cosine_p2p.access import Access
from cosine_p2p.directory.coverage import bars, coverage_as_objects, gaps_sentence, holders, kinds_of, unheld
from cosine_p2p.directory.draft_cost import drafts_sentence
from cosine_p2p.directory.served_targets import ServedTarget, served_targets
from cosine_p2p.invitation import follow_invitations
from cosine_p2p.request.options import ClientOptions
from cosine_p2p.survey import first_survey
from cosine_p2p.transport.reach import is_relayed
from cosine_p2p.trust.denied_peers import Ban, BanFile
from cosine_p2p.trust.evidence import EvidenceFile
from cosine_protocol.numerics import repeats
from cosine_protocol.records import ALL_TARGETS, NodeRecord, Role
from cosine_terminal.companions import PARTS, installed_part
from cosine_terminal.help_screen import everyday
from cosine_terminal.interrupts import run_interruptibly
from cosine_terminal.options import ENTRANCE, AsJson, InitialPeers, Link, peers_of, takes_options
from cosine_terminal.printing import FAILURE_EXIT, json_safe, printable, short_peer_id, show
from cosine_terminal.waiting import Stage, WaitingLine, telling_stages

if TYPE_CHECKING:
    from cosine_p2p.client import Join
    from cosine_p2p.survey import NodeSight, Survey, Surveyor

WATCH_EVERY_S: Final = 2.0
"""For a node far less work than a generation."""

# The columns of the table. In a narrow terminal some are left out, so that a node fits on a line of 80 columns.
HEADINGS: Final = (
    *("role", "peer", "model", "numerics", "good at", "load"),
    *("ms/pass", "RTT ms", "accepted", "version", "emulated", "reached"),
)
NUMBERS: Final = frozenset({"load", "ms/pass", "RTT ms", "accepted"})
NEVER_FOLDED: Final = frozenset({"role", "peer", "reached"}) | NUMBERS
ONLY_WIDE: Final = frozenset({"numerics", "version"})
ONLY_USED: Final = frozenset({"accepted", "emulated"})
WIDE_COLUMNS: Final = 100
MAX_BANS_SHOWN: Final = 8
"""`cosine-node ban` shows all."""

SHOWN_LAYERS: Final = 64
"""Number of bars that fit on a line of 80 columns; a bar of a deeper model is several layers."""
SHOWN_KINDS: Final = 4
"""Maximum number of data types and models whose stages are shown."""


@takes_options
def status(
    options: Annotated[ClientOptions, (*ENTRANCE, "target")],
    link: Link = None,
    initial_peers: InitialPeers = None,
    watch: Annotated[bool, everyday("--watch", help="Refresh every 2 s until interrupted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the targets and the nodes of a network.

    It shows the model, load and distance of each node.
    """
    peers, access = follow_invitations(peers_of(link, initial_peers), Access.of(options))
    joining = Stage("Looking for peers")
    join = joining_once(peers, access, note=joining.change)
    target = options.get("target") or ALL_TARGETS
    is_anybody = run_interruptibly(_status(join, joining, access.network, target, watch=watch, as_json=as_json))
    if not is_anybody:
        raise typer.Exit(FAILURE_EXIT)


async def _status(join: "Join", joining: Stage, network: str, target: str, *, watch: bool, as_json: bool) -> bool:
    """Show the swarm once, or until cancelled. Returns False if there is no node."""
    from cosine_p2p.survey import Surveyor

    line = WaitingLine(sys.stderr)
    async with AsyncExitStack() as stack:
        async with telling_stages(line, lambda: joining.sentence):
            swarm = await join()
            stack.push_async_callback(swarm.close)
        surveyor = Surveyor(swarm, target=target)
        stack.push_async_callback(surveyor.close)
        async with telling_stages(line, lambda: stage_of(len(surveyor.asked), target)):
            survey = await first_survey(surveyor)
        line.end()
        convicted = EvidenceFile().convicted()
        for peer_id in sorted({sight.record.peer_id for sight in survey.nodes} & convicted):
            show(sys.stderr, f"{short_peer_id(peer_id)} was convicted (see `cosine audit`): asked last.\n")
        if watch:
            await _watch(surveyor, survey, network, as_json=as_json)
        _tell(survey, network, as_json=as_json)
        return bool(survey.nodes)


def stage_of(asked: int, target: str) -> str:
    """The stage of a survey after `asked` nodes were asked."""
    return (
        f"Asking {asked} node{'' if asked == 1 else 's'}"
        if asked
        else f"Looking for nodes of {target or 'every target'}"
    )


async def _watch(surveyor: "Surveyor", survey: "Survey", network: str, *, as_json: bool) -> None:
    """Show the swarm until cancelled: on a terminal one picture that is updated."""
    console = Console()
    live = Live(console=console, auto_refresh=False) if console.is_terminal and not as_json else None
    with live or nullcontext():
        while True:
            if live is not None:
                live.update(picture(survey, network, own_bans(), columns=console.width), refresh=True)
            else:
                _tell(survey, network, as_json=as_json)
            await asyncio.sleep(WATCH_EVERY_S)
            survey = await surveyor.survey()


def _tell(survey: "Survey", network: str, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(as_object(survey, network, own_bans())) + "\n")
        sys.stdout.flush()
    elif survey.nodes:
        console = Console()
        console.print(picture(survey, network, own_bans(), columns=console.width))
    else:
        show(sys.stderr, f"Error: {problem_of(survey, network)}\n")


def own_bans() -> tuple[Ban, ...]:
    """The bans of this user, the latest end last."""
    return tuple(BanFile().read().values())


def of_one_target(survey: "Survey") -> "Survey":
    """The survey with the name of its target, if a survey of all targets has found a single one."""
    names = {sight.record.target for sight in survey.nodes}
    return replace(survey, target=names.pop()) if survey.target == ALL_TARGETS and len(names) == 1 else survey


def problem_of(survey: "Survey", network: str) -> str:
    """The reason why nothing can be generated, and what to do. "" if there is none."""
    survey = of_one_target(survey)
    if survey.problem:
        return f"The look-up failed ({survey.problem}); `cosine-node doctor` looks for the reason."
    if not survey.nodes and survey.target == ALL_TARGETS:
        return (
            f"No node in the network {network!r} lists a target; check --network and --initial-peers, name one "
            "with --target, or start a verifier: `cosine-node verify --model MODEL`."
        )
    if not survey.nodes:
        return (
            f"No node serves {survey.target!r} in the network {network!r}; check --network, --target and "
            f"--initial-peers, or start a node: `cosine-node verify --model {survey.target}`."
        )
    if not any(sight.record.role == Role.VERIFIER for sight in survey.nodes) and survey.target != ALL_TARGETS:
        has_stages = any(sight.record.stage is not None for sight in survey.nodes)
        missing, verb = ("head of the stages", "head") if has_stages else ("verifier", "verify")
        return (
            f"No {missing} of {survey.target!r}, so nothing can be generated; start one with "
            f"`cosine-node {verb} --model {survey.target}`."
        )
    if not any(sight.record.role == Role.VERIFIER and not sight.reason for sight in survey.nodes):
        return "No verifier can be reached from here; run `cosine-node doctor` on its machine."
    return ""


def as_object(survey: "Survey", network: str, bans: Sequence[Ban]) -> dict[str, Any]:
    nodes = [
        json_safe(sight.record)
        | {
            "rtt_ms": None if sight.rtt_s is None else round(1e3 * sight.rtt_s, 3),
            "requests": sight.requests,
            "passes": sight.passes,
            "uptime_s": sight.uptime_s,
            "accepted": sight.accepted,
            "text_tokens": sight.text_tokens,
            "reachable": not sight.reason,
            "relayed": is_relayed(sight.record.addresses),
            "reason": sight.reason,
        }
        for sight in survey.nodes
    ]
    return {
        "target": of_one_target(survey).target or None,
        "targets": json_safe(served_targets(sight.record for sight in survey.nodes)),
        "network": network,
        "nodes": nodes,
        "coverage": coverage_as_objects(_reached_records(survey)),
        "outlook": [facts for facts, _ in outlooks(survey)],
        "bans": bans_as_object(bans),
        "problem": problem_of(survey, network),
    }


def picture(survey: "Survey", network: str, bans: Sequence[Ban], *, columns: int) -> RenderableType:
    """The survey for a terminal: targets, nodes, bans and totals."""
    targets = served_targets(sight.record for sight in survey.nodes)
    parts: list[RenderableType] = [_targets_table(targets)] if survey.target == ALL_TARGETS else []
    survey = of_one_target(survey)
    lines = [
        Text(printable(f"{short_peer_id(sight.record.peer_id)}: {sight.reason}"), "red")
        for sight in survey.nodes
        if sight.reason
    ]
    unreached = f", {len(lines)} not reached" if lines else ""
    if survey.target == ALL_TARGETS:
        said = f"{len(targets)} targets in the network {network}{unreached}; --target NAME shows the nodes of one."
        return Group(*parts, *lines, Text(said))
    lines += [
        Text(f"{short_peer_id(sight.record.peer_id)}: {said}.")
        for sight in survey.nodes
        if (said := drafts_sentence(sight.record.four_tokens_permille))
    ]
    lines += [Text(printable(line)) for line in coverage_lines(_reached_records(survey))]
    # The outlook of the kind with most stages.
    lines += [Text(sentence) for _, sentence in outlooks(survey)[:1] if sentence]
    lines += [
        Text(printable(f"{short_peer_id(ban.peer_id)}: banned here {ban_text(ban)}"), "red")
        for ban in bans[-MAX_BANS_SHOWN:]
    ]
    if len(bans) > MAX_BANS_SHOWN:
        lines.append(Text(f"{len(bans)} are banned here; `cosine-node ban` shows all.", "red"))
    roles = Counter(sight.record.role for sight in survey.nodes)
    told = (Role.VERIFIER, Role.DRAFTER, *([Role.STAGE] if roles[Role.STAGE] else []))
    counts = [f"{roles[role]} {role}{'' if roles[role] == 1 else 's'}" for role in told]
    named = f"{', '.join(counts[:-1])} and {counts[-1]}"
    lines.append(Text(f"{named} of {survey.target} in the network {network}{unreached}."))
    verifiers = (sight.record for sight in survey.nodes if sight.record.role == Role.VERIFIER)
    if differing := sorted({each.numerics for each in verifiers if not repeats(each.numerics)}):
        lines.append(Text(printable(f"Texts may differ at near ties: of verifiers with {', '.join(differing)}.")))
    if problem := problem_of(survey, network):
        lines.append(Text(printable(problem), "yellow"))
    return Group(*parts, _table(survey, columns=columns), *lines)


def _targets_table(targets: Sequence[ServedTarget]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("target", "verifiers", "drafters", "stages", "numerics"):
        is_number = heading.endswith("s") and heading != "numerics"
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold", no_wrap=is_number)
    names = Counter(target.name for target in targets)
    for target in targets:
        name = target.name if names[target.name] == 1 else f"{target.name}@{target.digest.hex()}"
        counts = map(str, (target.verifiers, target.drafters, target.stages))
        table.add_row(*(Text(printable(cell)) for cell in (name, *counts, ", ".join(target.numerics))))
    return table


def _table(survey: "Survey", *, columns: int) -> Table:
    """A row for each node, without empty columns and those that do not fit."""
    rows = [_cells(sight) for sight in survey.nodes]
    shown = [
        heading
        for heading in HEADINGS
        if not (heading in ONLY_WIDE and columns < WIDE_COLUMNS)
        and not (heading in ONLY_USED and not any(cells[heading] for cells in rows))
    ]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in shown:
        side: Literal["left", "right"] = "right" if heading in NUMBERS else "left"
        table.add_column(heading, justify=side, overflow="fold", no_wrap=heading in NEVER_FOLDED)
    for cells in rows:
        table.add_row(*(cells[heading] for heading in shown))
    return table


def outlooks(survey: "Survey") -> list[tuple[dict[str, Any], str]]:
    """Return the expected speed over stages of each kind of model, with a sentence, where nodes are installed."""
    tell: Callable[[Sequence[NodeRecord]], list[tuple[dict[str, Any], str]]] | None
    tell = installed_part(PARTS, "outlooks")
    return [] if tell is None else tell(_reached_records(survey))


def _reached_records(survey: "Survey") -> list[NodeRecord]:
    return [sight.record for sight in survey.nodes if not sight.reason]


def _cells(sight: "NodeSight") -> dict[str, Text]:
    record, stage = sight.record, sight.record.stage
    load = f"{record.load_requests if sight.requests is None else sight.requests}/{record.capacity_requests}"
    texts = {
        "role": record.role,
        "peer": short_peer_id(record.peer_id),
        "model": record.model,
        "numerics": record.numerics,
        "good at": ", ".join(record.expertise) if stage is None else f"layers {stage.held}",
        "load": load if stage is None else f"{stage.busy_permille / 10:.0f} %",
        "ms/pass": f"{record.pass_us / 1e3:.1f}",
        "RTT ms": "" if sight.rtt_s is None else f"{1e3 * sight.rtt_s:.1f}",
        "accepted": f"{sight.accepted:,} of {sight.text_tokens:,}" if sight.text_tokens else "",
        "version": record.software.removeprefix("cosine-p2p/"),
        "emulated": record.emulated,
    }
    reached = Text("no", "red") if sight.reason else Text("yes", "green")
    if not sight.reason and is_relayed(record.addresses):
        reached = Text("relayed", "yellow")
    return {heading: Text(printable(text)) for heading, text in texts.items()} | {"reached": reached}


def coverage_lines(records: Iterable[NodeRecord]) -> Iterator[str]:
    """Lines for each kind of model that stages announce.

    The height of a bar is the number of a layer's stages; a cross marks a layer without one.
    """
    kinds = kinds_of(records)
    for (digest, numerics, layers), held in kinds[:SHOWN_KINDS]:
        counts = holders(held, layers=layers)
        least, most = min(counts), max(counts)
        span = f"{least} to {most} stages" if least < most else f"{most} stage{'' if most == 1 else 's'}"
        name = f"layers of {digest[:8]} in {numerics}" if len(kinds) > 1 else f"layers in {numerics}"
        yield f"{name}: 0 {bars(shortened(counts))} {layers}, each held by {span}"
        gaps = unheld(held, layers=layers)
        if gaps:
            yield f"{gaps_sentence(gaps)} `cosine-node stage` takes them."


def shortened(counts: Sequence[int]) -> list[int]:
    """At most `SHOWN_LAYERS` numbers: the minimum of the layers that share a bar."""
    step = -(-len(counts) // SHOWN_LAYERS)
    return [min(counts[first : first + step]) for first in range(0, len(counts), step)]
