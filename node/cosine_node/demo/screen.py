"""The demo on a terminal: three lanes with progress bars and coloured text."""

from collections.abc import Mapping
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cosine_node import zoo
from cosine_node.demo.race import Lane, Race, Way
from cosine_node.demo.report import RaceReport, SharedMachine, summary
from cosine_node.terminal.printing import printable
from cosine_p2p.request.origins import HOME_SOURCE, TARGET_SOURCE, Origin

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
    for way in Way:
        grid.add_column(ratio=1)
        panels.append(_lane_view(way, race.lanes[way], race.max_new_tokens, width=columns // len(Way) - 6))
    grid.add_row(*panels)
    title = Text.assemble(
        (f"{race.prompt.domain}, temperature {race.temperature:g}  ", "bold"), printable(race.prompt.last)
    )
    title.truncate(columns, overflow="ellipsis")
    legend = Text.assemble("text by: ", *((f"{author}  ", style) for author, style in COLOURS.items()))
    return Group(title, grid, legend)


def _lane_view(way: Way, lane: Lane, max_new_tokens: int, *, width: int) -> Panel:
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
        plain, ours = row.done[Way.PLAIN], row.done[Way.COSINE]
        table.add_row(
            row.prompt.domain,
            f"{row.temperature:g}",
            str(ours.tokens),
            f"{row.plain_s:.2f}",
            f"{row.speedup(Way.COPYING):.2f}x",
            f"{row.speedup(Way.COSINE):.2f}x",
            f"{plain.rounds} / {ours.rounds}",
            "yes" if row.identical else "NO",
        )
    console.print(table)
    for sentence in summary(report):
        console.print(printable(sentence), markup=False, highlight=False, soft_wrap=True)
