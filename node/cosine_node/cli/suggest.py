"""`cosine-node suggest`: what this machine should run for a swarm, by what is measured here."""

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cosine_cli.asking import survey_once
from cosine_engine import zoo
from cosine_node.stages.parts import size_text
from cosine_p2p.access import Access
from cosine_p2p.directory.served_targets import served_targets
from cosine_p2p.invitation import SCHEME
from cosine_p2p.request.options import ClientOptions
from cosine_p2p.text.target import parse_target
from cosine_p2p.transport.lan import find_neighbours
from cosine_protocol.records import ALL_TARGETS
from cosine_terminal.interrupts import run_interruptibly
from cosine_terminal.options import ENTRANCE, AsJson, InitialPeers, Link, peers_of, takes_options
from cosine_terminal.printing import printable, say, show

if TYPE_CHECKING:
    from cosine_node.advice.suggestions import Advice, MeasuredMachine
    from cosine_p2p.survey import NodeSight


@takes_options
def suggest(
    options: Annotated[ClientOptions, (*ENTRANCE, "target")],
    link: Link = None,
    initial_peers: InitialPeers = None,
    as_json: AsJson = False,
) -> None:
    """Measure this machine for 20 s, and say what it should run.

    The nodes of a swarm are asked what it lacks, and servers on this machine, such as Ollama, for their models.
    """
    run_interruptibly(_suggest(peers_of(link, initial_peers), options, as_json=as_json))


async def _suggest(peers: tuple[str, ...], options: ClientOptions, *, as_json: bool) -> None:
    from cosine_node.advice.measurement import find_advice

    target, _ = parse_target(options.get("target") or ALL_TARGETS)
    way: tuple[str, ...] = ()
    nodes: tuple[NodeSight, ...] = ()
    access = Access.of(options)
    if not peers and access.uses_lan:
        peers = await find_neighbours(access.network)
    if peers:
        way = (peers[0], *(() if peers[0].startswith(SCHEME) else access.entrance))
        sights = (await survey_once(peers, access, target)).nodes
        served = served_targets(sight.record for sight in sights if not sight.reason)
        target = target or (served[0].name if served else "")
        nodes = tuple(sight for sight in sights if sight.record.target == target)
    if not target:
        is_smol_here = zoo.target_of(zoo.Family.SMOL) in zoo.names(zoo.Family.SMOL)
        target = f"{zoo.SCHEME}{zoo.target_of(zoo.Family.SMOL if is_smol_here else zoo.Family.TOY)}"
    say("Measuring this machine")
    here, advice = await find_advice(target, way=way, nodes=nodes)
    if as_json:
        found = {"target": target, "machine": asdict(here), **asdict(advice)}
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        show(sys.stdout, "\n".join(lines_of(here, advice)) + "\n")


def lines_of(here: "MeasuredMachine", advice: "Advice") -> list[str]:
    """The answer as lines of text."""
    cards = ", ".join(f"{name} with {size_text(free_bytes)} free" for name, free_bytes in here.cards) or "no card"
    lines = [
        f"This machine: {here.cores} cores, {size_text(here.memory_bytes)} of memory free, {cards}; a token takes "
        f"{here.pass_text(1 << 30)} for each GiB of a model."
    ]
    for number, one in enumerate(advice.suggestions, 1):
        lines += ["", f"{number}. {one.why}", f"   {one.command}", f"   {one.expect}"]
    if not advice.suggestions:
        lines += ["", "Nothing to suggest now."]
    lines += [""] * bool(advice.reasons) + [f"Not suggested: {reason}" for reason in advice.reasons]
    # Nodes name their target.
    return [printable(line) for line in lines]
