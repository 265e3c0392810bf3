"""`cosine-node plan`: which machines should hold which layers of a model, and how fast that would be."""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cosine_node.chains.planning import Machine, ModelNeeds, Plan, make_plan
from cosine_node.cli.options import AsJson
from cosine_node.engine.pool_size import AUTO, BYTES, parse_memory
from cosine_node.stages.part_sizes import size_text
from cosine_node.terminal.printing import show
from cosine_protocol.errors import UsageError

READ: Final = "50GB"
"""A second, of memory in two channels of DDR4-3200."""
UP: Final = "20Mbit"
RTT: Final = "30ms"
"""A home's uplink, and the way between homes of one country."""
RATES: Final = {"BIT": 1.0, "KBIT": 1e3, "MBIT": 1e6, "GBIT": 1e9}
"""The units of an uplink, in upper case."""


def plan(
    model: Annotated[str, typer.Option(metavar="MODEL", help="zoo:NAME, a folder, or a Hugging Face id.")],
    machine: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=MEMORY,...",
            help=(
                "A machine and what it gives, such as desk=12GiB,read=360GB,up=20Mbit,rtt=30ms: memory for weights "
                "and cache, bytes that this gives a second, uplink, round trip to the others; repeat it for each."
            ),
        ),
    ],
    dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="The data type of the weights; auto is the model's.")
    ] = ("auto"),
    tokens: Annotated[
        int, typer.Option(min=1, max=1 << 24, help="Room for so many tokens of all requests together.")
    ] = 8192,
    acceptance: Annotated[
        float, typer.Option(metavar="SHARE", min=0.0, max=0.99, help="How many drafted tokens come true.")
    ] = 0.6,
    prompt: Annotated[int, typer.Option(min=1, help="The length of a prompt whose time is told.")] = 2000,
    as_json: AsJson = False,
) -> None:
    """Say which machine should hold which layers of a model, and how fast passes over them would be."""
    machines = [parse_machine(text) for text in machine]
    if len({one.name for one in machines}) < len(machines):
        raise UsageError("Two machines have the same name; give each its own.")
    made = make_plan(machines, _needs(model, dtype, tokens))
    if as_json:
        sys.stdout.write(json.dumps(as_object(made, acceptance_rate=acceptance, prompt_tokens=prompt)) + "\n")
        return
    show(sys.stdout, "\n".join(_lines(made, model, acceptance_rate=acceptance, prompt_tokens=prompt)) + "\n")


def parse_machine(text: str) -> Machine:
    """`NAME=MEMORY` and, after commas, `read=`, `up=` and `rtt=`. Raises `UsageError`."""
    name, _, given = text.partition("=")
    memory, *more = given.split(",")
    values = {"read": READ, "up": UP, "rtt": RTT}
    for part in more:
        key, _, value = part.partition("=")
        if key not in values:
            raise UsageError(f"--machine knows memory, read, up and rtt, not {key!r}; write NAME=12GiB,rtt=30ms.")
        values[key] = value
    size_bytes, _ = parse_memory(memory or "0", option="The memory of a --machine")
    if not name or size_bytes is None:
        raise UsageError(f"{text!r} is no machine: write a name and its memory, such as desk=12GiB.")
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


def _needs(model: str, dtype: str, pool_tokens: int) -> ModelNeeds:
    """What a model takes, by its configuration alone. Raises `UsageError`."""
    from cosine_node import zoo
    from cosine_node.engine.torch.loading import check_options, read_config, resolve_device, resolve_dtype
    from cosine_node.engine.torch.support import refuse_by_config
    from cosine_node.stages.opening import part_sizes

    check_options(dtype=dtype, device="cpu", quantize=None)
    source = zoo.resolve(model)
    if isinstance(source, Path) and source.is_file():
        raise UsageError(f"{model} is a GGUF file, which cannot be held in parts; choose the model's own weights.")
    config: Any = read_config(str(source))
    refuse_by_config(config)
    # What a machine with a card would choose: the data type that the weights are published in.
    kind = config.dtype if dtype == AUTO else resolve_dtype(dtype, device=resolve_device("cpu"), config=config)
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return ModelNeeds(
        sizes=part_sizes(config, dtype=kind),
        layer_token_bytes=2 * heads * width * kind.itemsize,
        activation_bytes=text.hidden_size * kind.itemsize,
        pool_tokens=pool_tokens,
    )


def as_object(made: Plan, *, acceptance_rate: float, prompt_tokens: int) -> dict[str, object]:
    """A plan for machines."""
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
        "tokens_per_s": made.tokens_per_s(),
        "drafted_tokens_per_s": made.tokens_per_s(acceptance_rate=acceptance_rate),
        "prompt_s": made.prompt_s(prompt_tokens),
    }


def _lines(made: Plan, model: str, *, acceptance_rate: float, prompt_tokens: int) -> Sequence[str]:
    rows = [("machine", "layers", "weights", "cache", "a pass")]
    rows += [
        (
            stage.machine.name,
            str(stage.layers),
            size_text(stage.weights_bytes),
            size_text(stage.pool_bytes),
            f"{1e3 * stage.pass_s:.1f} ms",
        )
        for stage in made.stages
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    drafted = made.tokens_per_s(acceptance_rate=acceptance_rate)
    expected = (
        f"A pass takes {1e3 * made.traversal_s:.0f} ms, {1e3 * made.way_s:.0f} of them on its way: "
        f"{made.tokens_per_s():.1f} tokens/s, {drafted:.1f} where {acceptance_rate:.0%} of the drafts come true."
    )
    prompt = (
        f"A prompt of {prompt_tokens:,} tokens takes {made.prompt_s(prompt_tokens):.1f} s over the slowest uplink."
    )
    commands = [
        f"{stage.machine.name}: cosine-node join --role stage --model {model} --layers {stage.layers}"
        for stage in made.stages
    ]
    return [*table, "", expected, *([prompt] if len(made.stages) > 1 else []), "", *commands]
