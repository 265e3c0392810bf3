"""The report of the demo: results, summary and JSON, and their display on a terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cosine_engine import zoo
from cosine_node.demo.race import Lane, Race, RacedPrompt, RacedWay
from cosine_p2p.request.origins import HOME_SOURCE, TARGET_SOURCE, Origin, told_origins
from cosine_terminal.printing import json_safe, printable

MAX_LATE_SHARE: Final = 0.05
"""With more late passes the figures are reported as lower bounds."""


@dataclass(frozen=True, slots=True)
class EmulatedDevices:
    """Emulated devices and links: their latencies by name, and the numbers of passes and late passes.

    A late pass took longer than the emulated curve. The numbers are complete if all nodes reported.
    """

    latencies: Mapping[str, object]
    passes: int
    late_passes: int
    is_complete: bool = True

    @property
    def late_share(self) -> float:
        return self.late_passes / self.passes if self.passes else 1.0

    @property
    def has_held(self) -> bool:
        """True if nearly all passes kept the emulated times."""
        return self.is_complete and self.late_share <= MAX_LATE_SHARE


@dataclass(frozen=True, slots=True)
class SharedMachine:
    """The machine that the parts of a target, drafters and client share, with delayed links between them."""

    target: str
    stages: int
    rtt_ms: float
    drafters: int
    processors: int


@dataclass(frozen=True, slots=True)
class RaceReport:
    rows: tuple[RacedPrompt, ...]
    devices: EmulatedDevices | SharedMachine

    @property
    def bound(self) -> str:
        """Prefix of a speed that is a lower bound."""
        is_late = isinstance(self.devices, EmulatedDevices) and not self.devices.has_held
        return "at least " if is_late else ""

    @property
    def temperatures(self) -> list[float]:
        return sorted({row.temperature for row in self.rows})

    def median_speedup(self, way: RacedWay, temperature: float) -> float:
        return median(row.speedup(way) for row in self.rows if row.temperature == temperature)

    def as_json(self) -> dict[str, Any]:
        devices: dict[str, object]
        if isinstance(on := self.devices, SharedMachine):
            devices = {"machine": asdict(on)}
        else:
            passes = {"passes": on.passes, "late_passes": on.late_passes, "held": on.has_held}
            devices = {"emulated": {**on.latencies, **passes}}
        return {
            "prompts": [
                {
                    "domain": row.prompt.domain,
                    "prompt": row.prompt.last,
                    "temperature": row.temperature,
                    "identical": row.identical,
                    **{way.name.lower(): json_safe(row.done[way]) for way in RacedWay},
                    "speedup": round(row.speedup(RacedWay.COSINE), 3),
                    "speedup_without_drafters": round(row.speedup(RacedWay.COPYING), 3),
                }
                for row in self.rows
            ],
            "median_speedup": self.median_speedup(RacedWay.COSINE, self.temperatures[0]),
            "by_temperature": [
                {
                    "temperature": temperature,
                    "median_speedup": self.median_speedup(RacedWay.COSINE, temperature),
                    "median_speedup_without_drafters": self.median_speedup(RacedWay.COPYING, temperature),
                }
                for temperature in self.temperatures
            ],
            **devices,
        }


def result_line(row: RacedPrompt) -> str:
    """One line about a prompt's result, including the origins of its tokens."""
    ways = ", ".join(
        f"{way.value} {row.done[way].seconds:.2f} s ({row.speedup(way):.2f}x)"
        for way in (RacedWay.COPYING, RacedWay.COSINE)
    )
    texts = "texts identical" if row.identical else "TEXTS DIFFER"
    whose = told_origins(row.done[RacedWay.COSINE].swarm.origins)
    plain = f"{row.prompt.domain}, temperature {row.temperature:g}: plain {row.plain_s:.2f} s"
    return f"{plain}, {ways}; {texts}; tokens of cosine by origin: {whose}"


def _curve_text(points: object) -> str:
    pairs = points.items() if isinstance(points, dict) else ()
    return ", ".join(f"{milliseconds:g} ms at {tokens}" for tokens, milliseconds in pairs) + " tokens"


def summary(report: RaceReport) -> Sequence[str]:
    ties = sum(generation.swarm.near_ties for row in report.rows for generation in row.done.values())
    has_home_drafts = any(row.done[RacedWay.COPYING].swarm.home_tokens for row in report.rows)
    alone = "copying and the head's own drafter" if has_home_drafts else "copying from the text alone"
    lines = []
    for temperature in report.temperatures:
        ours, copying = (report.median_speedup(way, temperature) for way in (RacedWay.COSINE, RacedWay.COPYING))
        lines.append(
            f"Temperature {temperature:g}: cosine is {report.bound}{ours:.2f}x as fast as plain decoding (median "
            f"over prompts); without drafters, by {alone}, it is {report.bound}{copying:.2f}x."
        )
    identical = "yes" if all(row.identical for row in report.rows) else "NO"
    exactness = f"Texts identical: {identical}, near-ties met: {ties}."
    if isinstance(report.devices, SharedMachine):
        return [*lines, exactness, *_account(report, report.devices)]
    devices, emulated = report.devices, report.devices.latencies
    if not devices.has_held:
        late = f"{100 * devices.late_share:.0f} % of {devices.passes} passes came late on this machine"
        cause = late if devices.is_complete else "not every node reported its late passes"
        lines.append(
            f"These speeds are lower bounds, for {cause}, which slows cosine only: plain decoding is counted at "
            "the pace of the emulated device."
        )
    return [
        *lines,
        exactness,
        f"Emulated: a verifier pass of {_curve_text(emulated['verifier_pass_ms'])},",
        f"          a drafter pass of {_curve_text(emulated['drafter_pass_ms'])},",
        f"          RTT {emulated['client_to_verifier_rtt_ms']:g} ms client to verifier and "
        f"{emulated['client_to_drafter_rtt_ms']:g} ms client to drafter.",
    ]


def _account(report: RaceReport, machine: SharedMachine) -> Sequence[str]:
    lines = [
        f"By the clock: {machine.target} in {machine.stages} parts, {machine.rtt_ms:g} ms between any two nodes, "
        f"by delays in their processes; the parts, {machine.drafters} drafters and the client shared "
        f"{machine.processors} processors. A machine that can hold the whole model is faster alone.",
        "A friend's machine helps like this: `cosine-node bootstrap` here, `cosine-node draft "
        f"--target {machine.target} --model MODEL --initial-peers ADDRESS` there.",
    ]
    slower = [f"{t:g}" for t in report.temperatures if report.median_speedup(RacedWay.COSINE, t) < 1.0]
    if slower:
        lines.append(f"At temperature {' and '.join(slower)} cosine was slower than plain decoding here.")
    return lines


TEXT_LINES: Final = 8
COLOURS: Final[Mapping[str, str]] = {
    Origin(source=TARGET_SOURCE).name: "default",
    Origin(source=TARGET_SOURCE, is_copied=True).name: "bright_black",
    Origin(source=HOME_SOURCE).name: "white",
    **dict(zip((*zoo.DOMAINS, "general"), ("cyan", "yellow", "green", "magenta", "blue", "red"), strict=True)),
}


def race_view(race: Race, *, columns: int) -> RenderableType:
    """The present state of a race for a terminal of `columns`."""
    grid = Table.grid(expand=True, padding=(0, 1))
    panels = []
    for way in RacedWay:
        grid.add_column(ratio=1)
        panels.append(_lane_view(way, race.lanes[way], race.max_new_tokens, width=columns // len(RacedWay) - 6))
    grid.add_row(*panels)
    title = Text.assemble(
        (f"{race.prompt.domain}, temperature {race.temperature:g}  ", "bold"), printable(race.prompt.last)
    )
    title.truncate(columns, overflow="ellipsis")
    legend = Text.assemble("text by: ", *((f"{author}  ", style) for author, style in COLOURS.items()))
    return Group(title, grid, legend)


def _lane_view(way: RacedWay, lane: Lane, max_new_tokens: int, *, width: int) -> Panel:
    text = Text(overflow="fold")
    for piece, author in lane.pieces:
        shown = "".join(letter if letter == "\n" else printable(letter) for letter in piece)
        text.append(shown, COLOURS.get(author, "red"))
    lines = text.wrap(Console(width=max(width, 10)), max(width, 10))[-TEXT_LINES:]
    body = Text("\n").join([*lines, *[Text()] * (TEXT_LINES - len(lines))])
    is_done = lane.done is not None
    bar = ProgressBar(total=max_new_tokens, completed=max_new_tokens if is_done else lane.tokens)
    told = f"{lane.tokens} tokens, {lane.seconds:.2f} s"
    rows = Table.grid(expand=True)
    for row in (bar, body):
        rows.add_row(row)
    return Panel(rows, title=way.value, subtitle=told, border_style="green" if is_done else "default")


def print_report(report: RaceReport, console: Console) -> None:
    is_shared = isinstance(report.devices, SharedMachine)
    where = "by the clock of this machine" if is_shared else "on emulated devices and links"
    table = Table(title=f"Plain decoding, copying alone and cosine, {where}")
    for heading in ("domain", "T", "tokens", "plain s", "without drafters", "cosine", "passes", "same text"):
        table.add_column(heading, justify="left" if heading == "domain" else "right")
    for row in report.rows:
        plain, ours = row.done[RacedWay.PLAIN], row.done[RacedWay.COSINE]
        table.add_row(
            row.prompt.domain,
            f"{row.temperature:g}",
            str(ours.usage.completion_tokens),
            f"{row.plain_s:.2f}",
            f"{row.speedup(RacedWay.COPYING):.2f}x",
            f"{row.speedup(RacedWay.COSINE):.2f}x",
            f"{plain.swarm.rounds} / {ours.swarm.rounds}",
            "yes" if row.identical else "NO",
        )
    console.print(table)
    for sentence in summary(report):
        console.print(printable(sentence), markup=False, highlight=False, soft_wrap=True)
