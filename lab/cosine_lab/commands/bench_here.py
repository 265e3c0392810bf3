"""`cosine-node bench here`: a swarm by the clock, one that runs already or a family that is started for it."""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cosine_lab.commands.results import rounded, write_result
from cosine_node.cli.asking import client_that_asks_once, joining_once
from cosine_node.terminal.interrupts import run_interruptibly
from cosine_node.terminal.printing import say
from cosine_protocol.errors import UsageError

if TYPE_CHECKING:
    from cosine_node.demo.swarm import Cast
    from cosine_p2p.client import AsyncClient
    from cosine_p2p.network import NetworkSwarm

HERE: Final = "here"
MAX_RTT_MS: Final = 2000.0
"""Four times the round trip to a satellite; what takes longer is taken for lost."""
FLAGS: Final[Mapping[str, str]] = {
    "prompts": "--prompts",
    "tokens": "--tokens",
    "repeats": "--repeats",
    "seed": "--seed",
    "temperatures": "--temperature",
    "rtts_ms": "--rtt-ms",
}
"""The options by which a measurement can be repeated; a file of prompts is the user's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSwarm:
    """The swarm that is measured: the one of `initial_peers`, or a family that is started on this machine.

    `drafters` take the place of the family's; `verifier_options` are further ones of `join`, None if not given.
    """

    initial_peers: tuple[str, ...]
    network: str
    target: str
    family: str | None
    drafters: tuple[str, ...]
    verifier_options: Mapping[str, str | int | None]

    @property
    def cast(self) -> "Cast | None":
        """The nodes to start, None for a swarm that runs already. Raises `UsageError`."""
        from cosine_node import zoo
        from cosine_node.demo.swarm import Cast

        given = {name: str(value) for name, value in self.verifier_options.items() if value is not None}
        if self.family is None:
            if idle := [*(["drafter"] if self.drafters else []), *given]:
                raise UsageError(f"--{idle[0]} is for a swarm that is started here: say --family too.")
            return None
        if self.initial_peers:
            raise UsageError("--family starts a swarm of its own: leave --initial-peers out.")
        if self.family not in set(zoo.Family):
            raise UsageError(f"--family must be {' or '.join(zoo.Family)}, not {self.family!r}.")
        family = zoo.Family(self.family)
        # Whether its target is on this machine.
        zoo.location(zoo.target_of(family))
        words = tuple(word for name, value in given.items() for word in (f"--{name}", value))
        return Cast(family, None, verifier_options=words, own_drafters=self.drafters)


def measure_here(
    swarm: MeasuredSwarm, chosen: Mapping[str, Any], *, quick: bool, as_json: bool, out: Path | None
) -> None:
    """Measure a swarm and print what was found; nothing is written without `out`."""
    from cosine_lab.experiments.here import HereOptions, run, run_family, sentences
    from cosine_node import zoo

    cast = swarm.cast
    target = cast.target if cast else swarm.target
    base = HereOptions.quick() if quick else HereOptions()
    given = {field.name: chosen[field.name] for field in fields(base) if chosen.get(field.name) is not None}
    options = replace(base, **given, target=target)
    if not all(0 <= rtt_ms <= MAX_RTT_MS for rtt_ms in options.rtts_ms):
        raise UsageError(f"--rtt-ms must lie between 0 and {MAX_RTT_MS:g}.")

    def connect(peers: tuple[str, ...], rtt_ms: float) -> "AsyncClient":
        if rtt_ms:
            return client_from_afar(peers, network=swarm.network, target=target, rtt_ms=rtt_ms)
        return client_that_asks_once(peers, {"network": swarm.network, "target": target})

    if cast is None:
        measuring = run(lambda rtt_ms: connect(swarm.initial_peers, rtt_ms), options, say=say)
        source = ["--initial-peers ADDRESS"]
    else:
        measuring = run_family(cast, lambda peer, rtt_ms: connect((peer,), rtt_ms), options, say=say)
        source = ["--family", cast.family, *cast.verifier_options]
    result = rounded(run_interruptibly(measuring))
    if out is not None:
        name = HERE
        if cast is not None and cast.family is zoo.Family.SMOL:
            # The page has a section of the real family for each engine.
            is_llama = all("llama" in verifier["numerics"] for verifier in result["setup"]["verifiers"])
            name = f"{HERE}_{cast.family}_{'llama' if is_llama else 'torch'}"
        command = " ".join(["cosine-node bench", HERE, *source, *(["--quick"] if quick else []), *_flags(given)])
        write_result(out / f"{name}.json", {"name": name, "command": command, **result})
    sys.stdout.write(json.dumps(result) + "\n" if as_json else "\n".join(sentences(result["findings"])) + "\n")


def client_from_afar(peers: tuple[str, ...], *, network: str, target: str, rtt_ms: float) -> "AsyncClient":
    """A client that seems so much further from every peer, and goes on from nothing. Raises `UsageError`."""
    from cosine_p2p.access import Access
    from cosine_p2p.client import AsyncClient
    from cosine_p2p.text.target import Target
    from cosine_p2p.transport.delay import DelayedTransport

    join = joining_once(peers, Access.parse(network=network), Target.parse(target).folder)

    async def join_from_afar() -> "NetworkSwarm":
        swarm = await join()
        swarm.transport = DelayedTransport(swarm.transport, one_way_s=rtt_ms / 2e3)
        return swarm

    return AsyncClient(join=join_from_afar, network=network, target=target)


def _flags(given: Mapping[str, Any]) -> Iterator[str]:
    """The options that were given, as they stand on the command line."""
    for name, flag in FLAGS.items():
        if name in given:
            values = given[name] if isinstance(given[name], tuple) else [given[name]]
            yield from (f"{flag} {value:g}" if isinstance(value, float) else f"{flag} {value}" for value in values)
