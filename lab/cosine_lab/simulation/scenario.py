"""Scenarios: a simulated swarm and the requests made to it, named here or read from a TOML file."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, get_args

from cosine_engine.curve import CostCurve
from cosine_engine.zoo.family import Family
from cosine_lab.emulation.cities import check_city, rtt_s
from cosine_lab.emulation.devices import deploy
from cosine_node.passes.emulation import Emulation
from cosine_p2p.network import TransportKind
from cosine_p2p.trust.mandates import Coordination
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role

# Bounds on memory and time: beyond any experiment, and below the limits of a machine.
MAX_NODES: Final = 20_000
MAX_CLIENTS: Final = 10_000
MAX_REQUESTS: Final = 1_000_000
MAX_TOKENS: Final = 4_096
DECISION_S: Final = 0.0003
"""The time that a client's decisions are charged for each write; the measured median is 0.25 ms (docs/design.md,
"Simulation and emulation").
"""


class EngineSource(StrEnum):
    """The origin of target, drafters and prompts."""

    SCRIPTED = "scripted"
    """Engines without weights: hashes of the last tokens."""
    TRACES = "traces"
    """Recorded generations of the embedded models, replayed."""


_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "seed": (0, 2**63),
    "verifiers": (1, MAX_NODES),
    "drafters": (0, MAX_NODES),
    "clients": (1, MAX_CLIENTS),
    "requests": (1, MAX_REQUESTS),
    "arrivals_per_s": (0, 1e6),
    "max_requests": (1, MAX_CLIENTS),
    "max_drafters": (0, 64),
    "prompt_window_tokens": (0, 131_072),
    "rtt_ms": (0, 60_000),
    "jitter_ms": (0, 60_000),
    "loss": (0, 0.5),
    "rate_bytes_per_s": (0, 1e12),
    "temperature": (0, 100),
    "max_new_tokens": (1, MAX_TOKENS),
    "prompt_tokens": (1, MAX_TOKENS),
    "vocab_tokens": (2, 65_536),
    "decision_s": (0, 10),
    "timeout_s": (0.001, 1e6),
    "fidelities": (0, 1),
    "drafter_speeds": (0.001, 1000),
    "eos": (0, 65_535),
    "settle_s": (0, 1e5),
    "stages": (0, 64),
    "stage_copies": (1, 16),
    "stage_more_ms": (0, 60_000),
    "traversal_ms": (0, 60_000),
    "most_under_way": (1, 1_000),
}
"""The bounds of each numeric field; of a tuple, of each item."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A swarm and its load. Raises `UsageError` for values out of range.

    Shorter lists of nodes' properties are read again from their start.

    name, seed: name of the scenario; equal seeds give equal runs.
    verifiers, drafters, clients: number of each.
    profile: devices, VERIFIER_MS/DRAFTER_MS (`cosine_node.passes.emulation`) or DEVICE:MODEL/DEVICE:MODEL
        (`cosine_lab.emulation.devices`).
    drafter_speeds, domains: speed of each drafter, as a factor, and its expertise.
    max_requests: places of each node.
    max_drafters, prompt_window_tokens: options of the clients; traces know drafters of whole prompts, 0.
    rtt_ms: round-trip time of every pair.
    jitter_ms: mean exponential delay of each write.
    loss: probability that a packet is lost.
    rate_bytes_per_s: rate of each link. Default: unlimited.
    requests: requests of each client, each after the one before has ended.
    arrivals_per_s: above 0, mean rate at which all clients' requests arrive, whatever has ended.
    transport: of the clients, whose round trips opening a stream takes them.
    source: origin of target, drafters and prompts (`EngineSource`).
    strategy, temperature, max_new_tokens, timeout_s: of every request.
    faults: a SPEC of `cosine_lab.simulation.faults`.
    decision_s: time that every write costs a client.
    fidelities, vocab_tokens, prompt_tokens, eos: of scripted engines.
    family, law, is_oracle: of traces.
    home: expertise of the drafter that every verifier holds itself. Default: none.
    coordination: the clients' option.
    client_cities, verifier_cities, drafter_cities: all or none; cities in place of one round-trip time.
    settle_s: with cities, seconds in which nodes find their network coordinates before the first request.
    stages, stage_copies: number of parts of the target, each as slow as a verifier, and nodes that hold each part;
        verifiers are then heads.
    stage_more_ms: time that a pass takes at each stage in addition to the announced one.
    traversal_ms: time of a pass over one token from the head through all stages and back, without that.
    most_under_way: maximum number of passes under way. Default: the head's.
    """

    name: str = "custom"
    seed: int = 0
    verifiers: int = 1
    drafters: int = 4
    profile: str = "60/6"
    drafter_speeds: tuple[float, ...] = (1.0,)
    domains: tuple[str, ...] = ("code", "math", "medical", "dialogue", "literature")
    max_requests: int = 16
    max_drafters: int | None = None
    prompt_window_tokens: int = 0
    rtt_ms: float = 20.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    rate_bytes_per_s: float = 0.0
    clients: int = 1
    requests: int = 4
    arrivals_per_s: float = 0.0
    transport: str = TransportKind.LIGHT
    source: str = EngineSource.SCRIPTED
    strategy: str = "cosine"
    temperature: float = 0.0
    max_new_tokens: int = 64
    faults: str = ""
    decision_s: float = DECISION_S
    timeout_s: float = 600.0
    fidelities: tuple[float, ...] = (0.8, 0.6, 0.7, 0.5)
    vocab_tokens: int = 64
    prompt_tokens: int = 8
    eos: tuple[int, ...] = ()
    family: str = Family.TOY
    law: str = "coupled"
    is_oracle: bool = False
    home: str = ""
    coordination: str = Coordination.CLIENT
    client_cities: tuple[str, ...] = ()
    verifier_cities: tuple[str, ...] = ()
    drafter_cities: tuple[str, ...] = ()
    settle_s: float = 1200.0
    stages: int = 0
    stage_copies: int = 1
    stage_more_ms: float = 0.0
    traversal_ms: float = 200.0
    most_under_way: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_field(field.name, getattr(self, field.name), field.type)
        for name, choices in (
            ("source", EngineSource),
            ("transport", TransportKind),
            ("coordination", Coordination),
            ("family", Family),
        ):
            if getattr(self, name) not in list(choices):
                raise UsageError(
                    f"A scenario's {name} is one of {', '.join(choices)}, not {getattr(self, name)!r}."
                )
        if not self.domains or not self.drafter_speeds or not self.fidelities:
            raise UsageError("A scenario names at least one domain, one drafter speed and one fidelity.")
        curves(self.profile)
        self._check_cities()
        if self.stages and self.hop_s < 0:
            raise UsageError(f"{self.stages} stages take longer than the traversal_ms of {self.traversal_ms:g}.")

    @property
    def hop_s(self) -> float:
        """The one-way delay between head and stages, and between stages."""
        return (self.traversal_ms / 1e3 - self.stages * self.curve(Role.VERIFIER).seconds(1)) / (self.stages + 1)

    def _check_cities(self) -> None:
        named = (self.client_cities, self.verifier_cities, self.drafter_cities)
        if any(named) and not all(named):
            raise UsageError(
                "A scenario names client_cities, verifier_cities and drafter_cities, or none of the three."
            )
        for city in chain(*named):
            check_city(city)

    @property
    def longest_rtt_s(self) -> float:
        """The longest round-trip time between any two peers."""
        cities = {*self.client_cities, *self.verifier_cities, *self.drafter_cities}
        if cities:
            return max(rtt_s(one, other) for one in cities for other in cities)
        return self.rtt_ms / 1e3

    @property
    def total_requests(self) -> int:
        return self.clients * self.requests

    def speed(self, drafter: int) -> float:
        """Return the factor by which a drafter is faster than its profile."""
        return self.drafter_speeds[drafter % len(self.drafter_speeds)]

    def domain(self, drafter: int) -> str:
        """Return the expertise of a drafter."""
        return self.domains[drafter % len(self.domains)]

    def curve(self, role: Role, *, index: int = 0) -> CostCurve:
        """Return the seconds of a node's pass by its tokens; `index` is that of a drafter."""
        verifier, drafter = curves(self.profile)
        if role is Role.VERIFIER:
            return verifier
        factor = 1 / self.speed(index)
        return CostCurve(tuple((tokens, factor * seconds) for tokens, seconds in drafter.points))


def curves(profile: str) -> tuple[CostCurve, CostCurve]:
    """Return the cost curves of verifiers and drafters. Raises `UsageError` for an invalid profile."""
    if ":" not in profile:
        emulation = Emulation.parse(profile)
        if "@" in profile:
            raise UsageError(f"The RTT of a scenario is rtt_ms, not part of its profile {profile!r}.")
        return emulation.curve(Role.VERIFIER), emulation.curve(Role.DRAFTER)
    parts = profile.split("/")
    if len(parts) != 2:
        raise UsageError(f"{profile!r} is no profile; write DEVICE:MODEL/DEVICE:MODEL, verifier first.")
    found = []
    for part in parts:
        device, colon, model = part.partition(":")
        if not colon:
            raise UsageError(f"{part!r} is no device; write DEVICE:MODEL, for example rtx-4090:8B.")
        found.append(deploy(device, model).curve())
    return found[0], found[1]


def _check_field(name: str, value: Any, wanted: object) -> None:
    """Raise `UsageError` unless a value is of the wanted type and within the bounds of its field."""
    values = value if isinstance(value, tuple) else (value,)
    if wanted in (tuple[float, ...], tuple[str, ...], tuple[int, ...]):
        item = get_args(wanted)[0]
        is_right = isinstance(value, tuple) and all(_is_a(part, item) for part in value)
    else:
        is_right = any(_is_a(value, kind) for kind in get_args(wanted) or (wanted,))
    if not is_right:
        raise UsageError(f"A scenario's {name} cannot be {value!r}.")
    if name in _BOUNDS:
        low, high = _BOUNDS[name]
        for part in values:
            if part is not None and not low <= part <= high:
                raise UsageError(f"A scenario's {name} lies between {low:g} and {high:g}, not {part:g}.")


def _is_a(value: object, kind: object) -> bool:
    """Return `isinstance`, but an int is a float, and a bool is no number."""
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    return isinstance(value, (int, float) if kind is float else kind)  # type: ignore[arg-type]


SCENARIOS: Final[Mapping[str, Scenario]] = MappingProxyType(
    {
        scenario.name: scenario
        for scenario in (
            Scenario(name="default"),
            Scenario(name="home", rtt_ms=60.0, jitter_ms=5.0, loss=0.002, rate_bytes_per_s=2e6, clients=2),
            Scenario(name="busy", clients=16, requests=2, drafters=6),
            Scenario(
                name="strangers",
                verifiers=3,
                drafters=6,
                clients=4,
                rtt_ms=60.0,
                jitter_ms=5.0,
                loss=0.002,
                faults="kill-verifier=1,kill-drafter=2,stall=1,partition=1,corrupt=1,liar=certain_garbage,liar=flood",
            ),
            Scenario(name="family", source=EngineSource.TRACES, drafters=5, requests=10, max_new_tokens=128),
            Scenario(
                name="ring",
                source=EngineSource.TRACES,
                drafters=5,
                requests=4,
                max_new_tokens=128,
                profile="15/6",
                stages=4,
                traversal_ms=200.0,
            ),
        )
    }
)
"""Scenarios by name. `family` and `ring` replay embedded models, the others have scripted engines."""


def read_scenario(name: str) -> Scenario:
    """Return a scenario by its name or from the TOML file at that path. Raises `UsageError`."""
    if name in SCENARIOS:
        return SCENARIOS[name]
    file = Path(name)
    if not file.is_file():
        raise UsageError(f"There is no scenario {name!r}; name a TOML file or one of {', '.join(SCENARIOS)}, soak.")
    try:
        table = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"The scenario {name} cannot be read: {error}.") from None
    return scenario_of({"name": file.stem, **table})


def scenario_of(table: Mapping[str, Any]) -> Scenario:
    """Return a scenario from its fields; keys may be written with - or _. Raises `UsageError`."""
    values: dict[str, Any] = {
        key.replace("-", "_"): tuple(v) if isinstance(v, list) else v for key, v in table.items()
    }
    known = {field.name for field in fields(Scenario)}
    if unknown := sorted(values.keys() - known):
        raise UsageError(f"A scenario has no {unknown[0]!r}; it has {', '.join(sorted(known))}.")
    return Scenario(**values)


def with_nodes(scenario: Scenario, nodes: int) -> Scenario:
    """Return the same with `nodes` nodes, including verifiers. Raises `UsageError` for fewer than its verifiers."""
    if nodes < scenario.verifiers:
        raise UsageError(f"{nodes} nodes are too few for {scenario.verifiers} verifiers; ask for more.")
    return replace(scenario, drafters=nodes - scenario.verifiers)
