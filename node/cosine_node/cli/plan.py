"""`cosine-node plan`: assigns the layers of a model to machines and estimates the speed."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

import typer

from cosine_cli.asking import survey_once
from cosine_engine.pool_size import AUTO, BYTES, parse_memory
from cosine_node.advice.measurement import model_needs
from cosine_node.chains.outlook import Outlook, announced_machines, outlook_as_object, outlooks, sentence_of
from cosine_node.chains.planning import Machine, ModelNeeds, Plan, make_plan
from cosine_node.stages.parts import size_text
from cosine_p2p.access import Access
from cosine_p2p.request.options import ClientOptions
from cosine_protocol.errors import UsageError
from cosine_protocol.numerics import DTYPES
from cosine_protocol.records import NodeRecord
from cosine_terminal.help_screen import everyday
from cosine_terminal.interrupts import run_interruptibly
from cosine_terminal.options import ENTRANCE, AsJson, InitialPeers, several, takes_options
from cosine_terminal.printing import short_peer_id, show

HERE: Final = "here"
READ: Final = "50GB"
"""Per second, with two channels of DDR4-3200."""
UP: Final = "20Mbit"
RTT: Final = "30ms"
"""The uplink of a home, and the round trip between homes of one country."""
RATES: Final = {"BIT": 1.0, "KBIT": 1e3, "MBIT": 1e6, "GBIT": 1e9}
"""The units of an uplink, in upper case."""


@takes_options
def plan(
    entrance: Annotated[ClientOptions, ENTRANCE],
    model: Annotated[str, everyday(metavar="MODEL", help="zoo:NAME, a folder, or a Hugging Face id.")],
    machine: Annotated[
        list[str] | None,
        everyday(
            metavar="NAME=MEMORY,...",
            help=(
                "A machine and its memory, as desk=12GiB. What else it gives follows, as in "
                "desk=12GiB,read=360GB,up=20Mbit,rtt=30ms: bytes of this memory a second, uplink, round trip to "
                "the others. desk=here measures the first two on this machine. Repeat it for each."
            ),
        ),
    ] = None,
    from_swarm: Annotated[
        bool,
        everyday("--from-swarm", help="Plan with the stages of a swarm. With the memory that they announce."),
    ] = False,
    initial_peers: InitialPeers = None,
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="Data type of the weights; auto is the model's.")] = (
        "auto"
    ),
    tokens: Annotated[
        int, typer.Option(min=1, max=1 << 24, help="Number of cached tokens of all requests together.")
    ] = 8192,
    acceptance: Annotated[
        float, typer.Option(metavar="SHARE", min=0.0, max=0.99, help="Acceptance rate of drafted tokens.")
    ] = 0.6,
    prompt: Annotated[
        int, typer.Option(min=1, help="Number of tokens of the prompt whose time is estimated.")
    ] = 2000,
    as_json: AsJson = False,
) -> None:
    """Assign the layers of a model to machines, and estimate the speed."""
    machines = [parse_machine(text) for text in machine or ()]
    if len({one.name for one in machines}) < len(machines):
        raise UsageError("Two machines have the same name.")
    if not machines and not from_swarm:
        raise UsageError("Name each --machine with its memory, or ask a swarm with --from-swarm.")
    records = run_interruptibly(_records(model, several(initial_peers), entrance)) if from_swarm else []
    if dtype == AUTO:
        # The data type of most stages: a chain of stages has one data type.
        dtype = next((each.kind[1] for each in outlooks(records) if each.kind[1] in DTYPES), AUTO)
    needs, numerics = model_needs(model, dtype, tokens)
    seen = SeenSwarm.of(records, needs, numerics) if from_swarm else SeenSwarm()
    machines += seen.machines
    if not machines:
        raise UsageError(
            f"No node announces stages of {model} in {numerics}; name machines that might hold some with --machine."
        )
    made = make_plan(machines, needs)
    if as_json:
        found = as_object(made, acceptance_rate=acceptance, prompt_tokens=prompt) | seen.as_object()
        sys.stdout.write(json.dumps(found) + "\n")
        return
    lines = _lines(made, model, seen, acceptance_rate=acceptance, prompt_tokens=prompt)
    show(sys.stdout, "\n".join(lines) + "\n")


@dataclass(frozen=True, slots=True)
class SeenSwarm:
    """The machines of a swarm's stages, the layers of each, and their present speed."""

    machines: tuple[Machine, ...] = ()
    held: Mapping[str, str] = field(default_factory=dict)
    outlook: Outlook | None = None

    @classmethod
    def of(cls, records: Sequence[NodeRecord], needs: ModelNeeds, numerics: str) -> "SeenSwarm":
        """The machines in the records of stages with these numerics."""
        found = announced_machines(records, needs, numerics=numerics, up_bits_per_s=_quantity(UP, RATES, "up"))
        held = {machine.name: str(record.stage.held) for machine, record in found if record.stage is not None}
        of_kind = [each for each in outlooks(records) if each.kind[1:] == (numerics, needs.sizes.layers)]
        return cls(tuple(machine for machine, _ in found), held, next(iter(of_kind), None))

    def as_object(self) -> dict[str, object]:
        if self.outlook is None:
            return {}
        return {"held": dict(self.held), "outlook": outlook_as_object(self.outlook)}


async def _records(model: str, initial_peers: tuple[str, ...], entrance: ClientOptions) -> list[NodeRecord]:
    """The records of the nodes of a target that answer. Raises `CosineError`."""
    survey = await survey_once(initial_peers, Access.of(entrance), model)
    return [sight.record for sight in survey.nodes if not sight.reason]


def parse_machine(text: str) -> Machine:
    """Parse `NAME=MEMORY`, or `NAME=here`, and, after commas, `read=`, `up=` and `rtt=`. Raises `UsageError`."""
    name, _, given = text.partition("=")
    memory, *more = given.split(",")
    values = {"read": READ, "up": UP, "rtt": RTT}
    if memory == HERE:
        from cosine_node.advice.measurement import measure_machine

        own = measure_machine()
        memory, values["read"] = f"{own.given_bytes}B", f"{own.read_bytes_per_s:.0f}B"
    for part in more:
        key, _, value = part.partition("=")
        if key not in values:
            raise UsageError(f"--machine knows memory, read, up and rtt, not {key!r}; write NAME=12GiB,rtt=30ms.")
        values[key] = value
    size_bytes, _ = parse_memory(memory or "0", option="The memory of a --machine")
    if not name or size_bytes is None:
        raise UsageError(f"{text!r} is not a machine: write a name and its memory, such as desk=12GiB.")
    return Machine(
        name=name,
        memory_bytes=size_bytes,
        read_bytes_per_s=_quantity(values["read"], {unit: float(size) for unit, size in BYTES.items()}, "read"),
        up_bits_per_s=_quantity(values["up"], RATES, "up"),
        rtt_s=_quantity(values["rtt"], {"MS": 1e-3, "S": 1.0}, "rtt", least=0.0),
    )


def _quantity(text: str, units: dict[str, float], name: str, *, least: float = 1.0) -> float:
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)\s*([a-z]{1,4})(?:/s)?", text.strip(), re.IGNORECASE | re.ASCII)
    value = float(found[1]) * units.get(found[2].upper(), -1.0) if found else -1.0
    if value < least:
        example = {"read": READ, "up": UP, "rtt": RTT}[name]
        raise UsageError(f"{name} of a --machine takes a number and its unit, such as {example}, not {text!r}.")
    return value


def as_object(made: Plan, *, acceptance_rate: float, prompt_tokens: int) -> dict[str, object]:
    return {
        "stages": [
            {
                "machine": stage.machine.name,
                "layers": str(stage.layers),
                "weights_bytes": stage.weights_bytes,
                "pool_bytes": stage.pool_bytes,
                "pass_s": stage.pass_s,
            }
            for stage in made.stages
        ],
        "way_s": made.way_s,
        "traversal_s": made.traversal_s,
        "tokens_per_s": made.tokens_per_s,
        "drafted_tokens_per_s": made.drafted_tokens_per_s(acceptance_rate),
        "prompt_s": made.prompt_s(prompt_tokens),
    }


def _lines(made: Plan, model: str, seen: SeenSwarm, *, acceptance_rate: float, prompt_tokens: int) -> Sequence[str]:
    now = (
        [] if seen.outlook is None else [f"As it is: {sentence_of(seen.outlook, acceptance_rate=acceptance_rate)}"]
    )
    rows: list[tuple[str, ...]] = [("machine", "layers", "now", "weights", "cache", "a pass")]
    rows += [
        (
            _shown(stage.machine.name, seen),
            str(stage.layers),
            seen.held.get(stage.machine.name, "none"),
            size_text(stage.weights_bytes),
            size_text(stage.pool_bytes),
            f"{1e3 * stage.pass_s:.1f} ms",
        )
        for stage in made.stages
    ]
    if seen.outlook is None:
        rows = [(name, layers, *rest) for name, layers, _, *rest in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    drafted = made.drafted_tokens_per_s(acceptance_rate)
    expected = (
        f"A pass takes {1e3 * made.traversal_s:.0f} ms, {1e3 * made.way_s:.0f} of them on its way: "
        f"{made.tokens_per_s:.1f} tokens/s, {drafted:.1f} where {acceptance_rate:.0%} of the drafts come true."
    )
    prompt = (
        f"A prompt of {prompt_tokens:,} tokens takes {made.prompt_s(prompt_tokens):.1f} s over the slowest uplink."
    )
    commands = [
        f"{_shown(stage.machine.name, seen)}: cosine-node stage --model {model} --layers {stage.layers}"
        for stage in made.stages
        if seen.held.get(stage.machine.name) != str(stage.layers)
    ]
    if not commands:
        commands = ["All hold these layers already."]
    return [
        *now,
        *([""] if now else []),
        *table,
        "",
        expected,
        *([prompt] if len(made.stages) > 1 else []),
        "",
        *commands,
    ]


def _shown(name: str, seen: SeenSwarm) -> str:
    """The name of a machine, or the end of the peer id of one in the swarm."""
    return short_peer_id(name) if name in seen.held else name
