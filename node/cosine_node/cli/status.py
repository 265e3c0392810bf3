"""`cosine-node status`: who is in the swarm, as seen from this machine."""

import asyncio
import json
import sys
from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cosine_node.cli.events import json_safe, several
from cosine_node.cli.options import AsJson, InitialPeers, Network, Target
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_protocol.records import Role

if TYPE_CHECKING:
    from cosine_p2p.survey import NodeSight, Survey, Surveyor

WATCH_EVERY_S: Final = 2.0
# A DHT may take a moment to show a node to somebody who has just joined.
LOOK_AGAIN_S: Final = (0.5, 1.5)
TAIL: Final = 8
OURS: Final = "cosine-p2p/"
HEADINGS: Final = (
    "role",
    "peer",
    "model",
    "numerics",
    "good at",
    "load",
    "ms/pass",
    "RTT ms",
    "version",
    "emulated",
    "reached",
)
ONLY_WIDE: Final = ("numerics", "version")
WIDE_COLUMNS: Final = 100
NUMBERS: Final = frozenset({"load", "ms/pass", "RTT ms"})
WHOLE: Final = frozenset({"role", "peer", "reached"})
FAILURE_EXIT: Final = 1


def status(
    initial_peers: InitialPeers = None,
    network: Network = DEFAULT_NETWORK,
    target: Target = "zoo:target",
    watch: Annotated[bool, typer.Option("--watch", help="Look again every 2 s until interrupted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show every verifier and drafter of a target: what it runs, how busy and far it is, or why it is silent."""
    try:
        is_anybody = asyncio.run(_status(several(initial_peers), network, target, watch=watch, as_json=as_json))
    except KeyboardInterrupt:
        if not watch:
            raise
        return
    if not is_anybody:
        raise typer.Exit(FAILURE_EXIT)


async def _status(peers: tuple[str, ...], network: str, target: str, *, watch: bool, as_json: bool) -> bool:
    from cosine_p2p.network import joining
    from cosine_p2p.survey import Surveyor

    swarm = await joining(peers, network=network)()
    try:
        surveyor = Surveyor(swarm, target=target)
        try:
            survey = await _first_look(surveyor)
            if watch:
                await _watch(surveyor, survey, network, as_json=as_json)
            _tell(survey, network, as_json=as_json)
            return bool(survey.nodes)
        finally:
            await surveyor.close()
    finally:
        await swarm.close()


async def _first_look(surveyor: "Surveyor") -> "Survey":
    survey = await surveyor.survey()
    for pause_s in LOOK_AGAIN_S:
        if survey.nodes:
            break
        await asyncio.sleep(pause_s)
        survey = await surveyor.survey()
    return survey


async def _watch(surveyor: "Surveyor", survey: "Survey", network: str, *, as_json: bool) -> None:
    """Until cancelled: one picture that changes on a terminal, one after the other elsewhere."""
    console = Console()
    is_one_picture = console.is_terminal and not as_json
    live = Live(console=console, auto_refresh=False) if is_one_picture else None
    with live or nullcontext():
        while True:
            if live is not None:
                live.update(picture(survey, network, columns=console.width), refresh=True)
            else:
                _tell(survey, network, as_json=as_json)
            await asyncio.sleep(WATCH_EVERY_S)
            survey = await surveyor.survey()


def _tell(survey: "Survey", network: str, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(as_object(survey, network)) + "\n")
        sys.stdout.flush()
    elif survey.nodes:
        console = Console()
        console.print(picture(survey, network, columns=console.width))
    else:
        sys.stderr.write(f"Error: {problem_of(survey, network)}\n")


def problem_of(survey: "Survey", network: str) -> str:
    """What stands in the way of generating here, and what to do next; "" if nothing does."""
    if survey.problem:
        return f"The directory did not answer ({survey.problem}); `cosine-node doctor` looks for the reason."
    if not survey.nodes:
        return (
            f"Nobody serves {survey.target!r} in the network {network!r}; check --network, --target and "
            f"--initial-peers, or start a node: `cosine-node join --role verifier --model {survey.target}`."
        )
    if not any(sight.record.role == Role.VERIFIER for sight in survey.nodes):
        return (
            f"No verifier of {survey.target!r}, so nothing can be generated; start one with "
            f"`cosine-node join --role verifier --model {survey.target}`."
        )
    if not any(sight.record.role == Role.VERIFIER and not sight.reason for sight in survey.nodes):
        return "No verifier can be reached from here; `cosine-node doctor` on its machine says what is wrong there."
    return ""


def as_object(survey: "Survey", network: str) -> dict[str, Any]:
    """All of a survey for machines; digests in hex, each node's record with what it said of itself."""
    return {
        "target": survey.target,
        "network": network,
        "nodes": [_node_object(sight) for sight in survey.nodes],
        "problem": problem_of(survey, network),
    }


def _node_object(sight: "NodeSight") -> dict[str, Any]:
    record: dict[str, Any] = json_safe(sight.record)
    return record | {
        "rtt_ms": None if sight.rtt_s is None else round(1e3 * sight.rtt_s, 3),
        "requests": sight.requests,
        "passes": sight.passes,
        "uptime_s": sight.uptime_s,
        "reachable": not sight.reason,
        "reason": sight.reason,
    }


def picture(survey: "Survey", network: str, *, columns: int) -> RenderableType:
    """The nodes, why some are not reached, and a line that sums up, for a terminal of some columns."""
    has_emulated = any(sight.record.emulated for sight in survey.nodes)
    left_out = {*(() if has_emulated else ("emulated",)), *(ONLY_WIDE if columns < WIDE_COLUMNS else ())}
    table = Table(box=None, pad_edge=False, header_style="bold")
    shown = [heading for heading in HEADINGS if heading not in left_out]
    for heading in shown:
        is_number = heading in NUMBERS
        is_whole = is_number or heading in WHOLE
        table.add_column(heading, justify="right" if is_number else "left", overflow="fold", no_wrap=is_whole)
    for cells in map(_cells, survey.nodes):
        table.add_row(*(cells[heading] for heading in shown))
    silent = [_plain(f"{_name(sight)}: {sight.reason}", "red") for sight in survey.nodes if sight.reason]
    problem = problem_of(survey, network)
    return Group(table, *silent, Text(_summary(survey, network)), *([Text(problem, "yellow")] if problem else []))


def _cells(sight: "NodeSight") -> dict[str, Text]:
    """What stands under each heading."""
    record = sight.record
    load = record.load_requests if sight.requests is None else sight.requests
    texts = {
        "role": record.role,
        "peer": _name(sight),
        "model": record.model,
        "numerics": record.numerics,
        "good at": ", ".join(record.expertise),
        "load": f"{load}/{record.capacity_requests}",
        "ms/pass": f"{record.pass_us / 1e3:.1f}",
        "RTT ms": "" if sight.rtt_s is None else f"{1e3 * sight.rtt_s:.1f}",
        "version": record.software.removeprefix(OURS),
        "emulated": record.emulated,
    }
    return {heading: _plain(text) for heading, text in texts.items()} | {"reached": _reached(sight)}


def _name(sight: "NodeSight") -> str:
    """Peer ids begin alike; their ends tell them apart."""
    return f"…{sight.record.peer_id[-TAIL:]}"


def _reached(sight: "NodeSight") -> Text:
    return Text("no", "red") if sight.reason else Text("yes", "green")


def _summary(survey: "Survey", network: str) -> str:
    there = Counter(str(sight.record.role) for sight in survey.nodes)
    silent = sum(bool(sight.reason) for sight in survey.nodes)
    counts = f"{_counted(there['verifier'], 'verifier')} and {_counted(there['drafter'], 'drafter')}"
    unreached = f", {silent} not reached" if silent else ""
    return f"{counts} of {survey.target} in the network {network}{unreached}."


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _plain(text: str, style: str = "") -> Text:
    """Text of a stranger's choosing, without what would steer a terminal."""
    return Text("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text), style)
