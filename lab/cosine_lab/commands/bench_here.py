"""`cosine-node bench here`: measures a running swarm, or one that it starts, in real time."""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cosine_lab.commands.results import rounded, write_result
from cosine_node.cli.asking import client_that_asks_once, joining_once
from cosine_node.terminal.interrupts import run_interruptibly
from cosine_node.terminal.printing import say, show
from cosine_node.terminal.waiting import clear
from cosine_protocol.errors import UsageError

if TYPE_CHECKING:
    from cosine_node.demo.swarm import Cast
    from cosine_p2p.client import AsyncClient
    from cosine_p2p.network import NetworkSwarm

HERE: Final = "here"
RING_HERE: Final = "ring_here"
"""The name of the result of `bench ring --here`."""
MAX_RTT_MS: Final = 2000.0
"""Maximum emulated round-trip time: four times that of a satellite."""
FLAGS: Final[Mapping[str, str]] = {
    "family": "--family",
    "stages": "--stages",
    "drafters": "--drafter",
    "home": "--draft-model",
    "device": "--emulate",
    "prompts": "--prompts",
    "tokens": "--tokens",
    "repeats": "--repeats",
    "minutes": "--minutes",
    "seed": "--seed",
    "temperatures": "--temperature",
    "rtts_ms": "--rtt-ms",
}
"""The options that the command of a result names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSwarm:
    """The measured swarm: a running one, or a family started on this machine.

    initial_peers: addresses of a running swarm.
    drafters: models in place of the family's drafters.
    verifier_options: options of `join` for the verifier, None for those not given.
    on_cores: pin the verifier to one core and all others to another.
    home: model of the home drafter of a second verifier, with `on_cores`.
    """

    initial_peers: tuple[str, ...]
    network: str
    target: str
    family: str | None
    drafters: tuple[str, ...]
    verifier_options: Mapping[str, str | int | None]
    on_cores: bool = False
    home: str | None = None

    @property
    def cast(self) -> "Cast | None":
        """The nodes to start, None for a running swarm. Raises `UsageError`."""
        from cosine_node import zoo
        from cosine_node.demo.swarm import Cast

        given = {name: str(value) for name, value in self.verifier_options.items() if value is not None}
        chosen = self.family
        if self.on_cores:
            from cosine_lab.experiments.here_cores import VERIFIER_OPTIONS

            given = {**VERIFIER_OPTIONS, **given}
            chosen = chosen or zoo.Family.SMOL
        elif self.home is not None:
            raise UsageError("--draft-model requires --cores.")
        if chosen is None:
            if idle := [*(["drafter"] if self.drafters else []), *given]:
                raise UsageError(f"--{idle[0]} requires --family.")
            return None
        if self.initial_peers:
            starts = "--cores" if self.on_cores else "--family"
            raise UsageError(f"{starts} starts a swarm; omit --initial-peers.")
        if chosen not in set(zoo.Family):
            raise UsageError(f"--family must be {' or '.join(zoo.Family)}, not {chosen!r}.")
        family = zoo.Family(chosen)
        zoo.require(family)
        words = tuple(word for name, value in given.items() for word in (f"--{name}", value))
        return Cast(family, None, verifier_options=words, own_drafters=self.drafters or None)


def measure_here(
    swarm: MeasuredSwarm, chosen: Mapping[str, Any], *, quick: bool, as_json: bool, out: Path | None
) -> None:
    """Measure a swarm and print the result; write it into the folder `out`, if given."""
    from cosine_lab.experiments import here, here_cores
    from cosine_lab.experiments.here import HereOptions, run, run_family
    from cosine_lab.experiments.here_cores import options_on_cores, run_on_cores, two_cores

    cast = swarm.cast
    target = cast.target if cast else swarm.target
    whole = HereOptions.quick() if quick else HereOptions()
    base = options_on_cores(quick=quick) if swarm.on_cores else whole
    given = {field.name: chosen[field.name] for field in fields(base) if chosen.get(field.name) is not None}
    options = replace(base, **given, target=target)
    if not all(0 <= rtt_ms <= MAX_RTT_MS for rtt_ms in options.rtts_ms):
        raise UsageError(f"--rtt-ms must be between 0 and {MAX_RTT_MS:g}.")

    def connect(peers: tuple[str, ...], rtt_ms: float) -> "AsyncClient":
        if rtt_ms:
            return client_from_afar(peers, network=swarm.network, target=target, rtt_ms=rtt_ms)
        return client_that_asks_once(peers, {"network": swarm.network, "target": target})

    rows: list[dict[str, Any]] = []
    findings_of = here_cores.findings_of if swarm.on_cores else here.findings_of

    def show_rows_so_far() -> None:
        clear(sys.stderr)
        if not rows:
            return
        so_far = {"what": "", "rows": rows, "findings": findings_of(rows, options.seed), "interrupted": True}
        _show_result(rounded(so_far), swarm, as_json=as_json)

    if cast is None:
        measuring = run(lambda rtt_ms: connect(swarm.initial_peers, rtt_ms), options, rows=rows, say=say)
    elif swarm.on_cores:
        if any(options.rtts_ms):
            raise UsageError("--cores emulates nothing; omit --rtt-ms.")
        measuring = run_on_cores(cast, swarm.home, two_cores(), options, rows=rows, say=say)
    else:
        measuring = run_family(cast, lambda peer, rtt_ms: connect((peer,), rtt_ms), options, rows=rows, say=say)
    result = rounded(run_interruptibly(measuring, last_words=show_rows_so_far))
    name = f"{HERE}_cores" if swarm.on_cores else HERE
    command = ["cosine-node bench", HERE, *_source(swarm), *(["--quick"] if quick else []), *_flags(given)]
    result = {"name": name, "command": " ".join(command), **result}
    if out is not None:
        write_result(out / f"{name}.json", result)
    _show_result(result, swarm, as_json=as_json)


def measure_ring_here(chosen: Mapping[str, Any], *, quick: bool, as_json: bool, out: Path | None) -> None:
    """Measure a ring on this machine and print the result; write it into the folder `out`, if given."""
    from cosine_lab.experiments.ring_here import RingHereOptions, findings_of, in_virtual_time, run_ring_here
    from cosine_lab.report.page import lines_of
    from cosine_node.zoo import Family

    base = RingHereOptions.quick() if quick else RingHereOptions()
    given = {field.name: chosen[field.name] for field in fields(base) if chosen.get(field.name) is not None}
    if "family" in given:
        if given["family"] not in set(Family):
            raise UsageError(f"--family must be {' or '.join(Family)}, not {given['family']!r}.")
        given["family"] = Family(given["family"])
    options = replace(base, **given)
    options = replace(options, target=options.cast(0).target)
    rows: list[dict[str, Any]] = []

    def show_result(result: dict[str, Any]) -> None:
        lines = [json.dumps(result)] if as_json else lines_of(result)
        show(sys.stdout, "\n".join(lines) + "\n")

    def show_rows_so_far() -> None:
        clear(sys.stderr)
        if rows:
            so_far = {"name": RING_HERE, "what": "", "setup": {}, "rows": rows, "interrupted": True}
            show_result(rounded({**so_far, "findings": findings_of(rows, options.seed)}))

    result = run_interruptibly(run_ring_here(options, rows=rows, say=say), last_words=show_rows_so_far)
    if options.device:
        result["findings"]["virtual"] = list(in_virtual_time(options, result["findings"]["ways"]))
    command = ["cosine-node bench ring --here", *(["--quick"] if quick else []), *_flags(given)]
    result = rounded({"name": RING_HERE, "command": " ".join(command), **result})
    if out is not None:
        write_result(out / f"{RING_HERE}.json", result)
    show_result(result)


def _show_result(result: Mapping[str, Any], swarm: MeasuredSwarm, *, as_json: bool) -> None:
    """Print a result as JSON or as text."""
    from cosine_lab.experiments.here import sentences
    from cosine_lab.report.page import lines_of

    if as_json:
        show(sys.stdout, json.dumps(result) + "\n")
        return
    # The table of kinds has the same figures.
    brief = {name: found for name, found in result["findings"].items() if name != "by_kind"}
    lines = lines_of({**result, "findings": brief}) if swarm.on_cores else sentences(brief)
    show(sys.stdout, "\n".join(lines) + "\n")


def _source(swarm: MeasuredSwarm) -> Iterator[str]:
    """Yield the options that name the measured swarm."""
    if swarm.on_cores:
        yield "--cores"
    elif swarm.family is None:
        yield "--initial-peers ADDRESS"
    given = {"family": swarm.family, **swarm.verifier_options, "draft-model": swarm.home}
    for name, value in given.items():
        if value is not None:
            yield f"--{name} {value}"
    yield from (f"--drafter {model}" for model in swarm.drafters)


def client_from_afar(peers: tuple[str, ...], *, network: str, target: str, rtt_ms: float) -> "AsyncClient":
    """Return a client without memory whose round trips take `rtt_ms` longer. Raises `UsageError`."""
    from cosine_lab.emulation.delayed_transport import DelayedTransport
    from cosine_lab.emulation.round_trips import BY_TRANSPORT
    from cosine_p2p.access import Access
    from cosine_p2p.client import AsyncClient
    from cosine_p2p.network import choose_transport
    from cosine_p2p.text.target import Target

    join = joining_once(peers, Access.parse(network=network), Target.parse(target))

    async def join_from_afar() -> "NetworkSwarm":
        swarm = await join()
        round_trips = BY_TRANSPORT[choose_transport(None)]
        swarm.transport = DelayedTransport(swarm.transport, one_way_s=rtt_ms / 2e3, round_trips=round_trips)
        return swarm

    return AsyncClient(join=join_from_afar, network=network, target=target)


def _flags(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield the given options as on the command line."""
    for name, flag in FLAGS.items():
        if name in given:
            values = given[name] if isinstance(given[name], tuple) else [given[name]]
            yield from (f"{flag} {value:g}" if isinstance(value, float) else f"{flag} {value}" for value in values)
