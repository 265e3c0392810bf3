"""`cosine-node bench here`: measures a running swarm, or one that it starts, in real time."""

import json
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cosine_cli.asking import client_that_asks_once, joining_once
from cosine_lab.experiments.results import rounded, write_result
from cosine_protocol.errors import UsageError
from cosine_terminal.interrupts import run_interruptibly
from cosine_terminal.printing import say, show
from cosine_terminal.waiting import clear

if TYPE_CHECKING:
    from cosine_engine.zoo import Family
    from cosine_lab.experiments.here import HereOptions
    from cosine_node.demo.swarm import Cast
    from cosine_p2p.client import AsyncClient
    from cosine_p2p.network import NetworkSwarm

HERE: Final = "here"
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

JsonRow = dict[str, Any]


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
        from cosine_engine import zoo
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
        family = family_named(chosen)
        zoo.require(family)
        words = tuple(word for name, value in given.items() for word in (f"--{name}", value))
        return Cast(family, None, verifier_options=words, own_drafters=self.drafters or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A measurement by the clock: how its findings are made and shown, and the folder `out` of its file, if any."""

    name: str
    findings_of: Callable[[Sequence[JsonRow], int], JsonRow]
    lines: Callable[[JsonRow], Iterable[str]]
    as_json: bool
    out: Path | None

    def run(self, measuring: Coroutine[Any, Any, JsonRow], rows: Sequence[JsonRow], seed: int) -> JsonRow:
        """Return the result; an interrupt shows the findings on the rows so far."""

        def show_rows_so_far() -> None:
            clear(sys.stderr)
            if rows:
                so_far = {"name": self.name, "what": "", "setup": {}, "rows": rows, "interrupted": True}
                self._show(rounded({**so_far, "findings": self.findings_of(rows, seed)}))

        return run_interruptibly(measuring, last_words=show_rows_so_far)

    def finish(self, result: JsonRow, *command: str) -> None:
        """Write the result with the command that repeats it, and show it."""
        result = rounded({"name": self.name, "command": " ".join(command), **result})
        if self.out is not None:
            write_result(self.out / f"{self.name}.json", result)
        self._show(result)

    def _show(self, result: JsonRow) -> None:
        lines = [json.dumps(result)] if self.as_json else self.lines(result)
        show(sys.stdout, "\n".join(lines) + "\n")


def given_options(base: "HereOptions", chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return those chosen on the command line that are fields of the options."""
    return {field.name: chosen[field.name] for field in fields(base) if chosen.get(field.name) is not None}


def measure_here(
    swarm: MeasuredSwarm, chosen: Mapping[str, Any], *, quick: bool, as_json: bool, out: Path | None
) -> None:
    """Measure a swarm and print the result; write it into the folder `out`, if given."""
    from cosine_lab.emulation.cores import Cores
    from cosine_lab.experiments import here, here_cores
    from cosine_lab.report.page import lines_of

    cast = swarm.cast
    target = cast.target if cast else swarm.target
    whole = here.HereOptions.quick() if quick else here.HereOptions()
    base = here_cores.options_on_cores(quick=quick) if swarm.on_cores else whole
    given = given_options(base, chosen)
    options = replace(base, **given, target=target)
    if not all(0 <= rtt_ms <= MAX_RTT_MS for rtt_ms in options.rtts_ms):
        raise UsageError(f"--rtt-ms must be between 0 and {MAX_RTT_MS:g}.")

    def connect(peers: tuple[str, ...], rtt_ms: float) -> "AsyncClient":
        if rtt_ms:
            return client_from_afar(peers, network=swarm.network, target=target, rtt_ms=rtt_ms)
        return client_that_asks_once(peers, {"network": swarm.network, "target": target})

    rows: list[JsonRow] = []
    if cast is None:
        measuring = here.run(lambda rtt_ms: connect(swarm.initial_peers, rtt_ms), options, rows=rows, say=say)
    elif swarm.on_cores:
        if any(options.rtts_ms):
            raise UsageError("--cores emulates nothing; omit --rtt-ms.")
        measuring = here_cores.run_on_cores(cast, swarm.home, Cores.find(), options, rows=rows, say=say)
    else:
        measuring = here.run_family(
            cast, lambda peer, rtt_ms: connect((peer,), rtt_ms), options, rows=rows, say=say
        )
    measurement = Measurement(
        name=f"{HERE}_cores" if swarm.on_cores else HERE,
        findings_of=here_cores.findings_of if swarm.on_cores else here.findings_of,
        lines=lines_of if swarm.on_cores else lambda result: here.sentences(result["findings"]),
        as_json=as_json,
        out=out,
    )
    result = measurement.run(measuring, rows, options.seed)
    measurement.finish(result, "cosine-node bench", HERE, *_source(swarm), *_flags(given, quick=quick))


def measure_ring_here(chosen: Mapping[str, Any], *, quick: bool, as_json: bool, out: Path | None) -> None:
    """Measure a ring on this machine and print the result; write it into the folder `out`, if given."""
    from cosine_lab.experiments.ring_here import RingHereOptions, findings_of, in_virtual_time, run_ring_here
    from cosine_lab.report.page import lines_of

    base = RingHereOptions.quick() if quick else RingHereOptions()
    given = given_options(base, chosen)
    if "family" in given:
        given["family"] = family_named(given["family"])
    options = replace(base, **given)
    name = "ring_emulated" if options.device else "ring_here"
    ring = Measurement(name=name, findings_of=findings_of, lines=lines_of, as_json=as_json, out=out)
    rows: list[JsonRow] = []
    result = ring.run(run_ring_here(options, rows=rows, say=say), rows, options.seed)
    if options.device:
        result["findings"]["virtual"] = list(in_virtual_time(options, result["findings"]["ways"]))
    ring.finish(result, "cosine-node bench ring-here", *_flags(given, quick=quick))


def family_named(name: str) -> "Family":
    """Return the family with that name. Raises `UsageError`."""
    from cosine_engine.zoo import Family

    if name not in set(Family):
        raise UsageError(f"--family must be {' or '.join(Family)}, not {name!r}.")
    return Family(name)


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


def _flags(given: Mapping[str, Any], *, quick: bool) -> Iterator[str]:
    """Yield the given options as on the command line."""
    if quick:
        yield "--quick"
    for name, flag in FLAGS.items():
        if name in given:
            values = given[name] if isinstance(given[name], tuple) else [given[name]]
            yield from (f"{flag} {value:g}" if isinstance(value, float) else f"{flag} {value}" for value in values)
