"""The picture of the rooms and who imports whom: `python -m tests.rooms_picture` writes docs/images/rooms.svg.

A room stands above all that it imports. An arrow that others together already say is left out.
"""

from collections.abc import Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

from tests.test_rooms import ROOT, rooms

PICTURE: Final = ROOT / "docs" / "images" / "rooms.svg"
COLOURS: Final = {"protocol": "#fef3c7", "cosine_p2p": "#dbeafe", "node": "#dcfce7", "tui": "#fae8ff"}
WIDTH: Final = 1180
BOX: Final = (132, 26)
ROW: Final = 62


def _name(room: str) -> str:
    """A room as a reader of imports knows it, without what the colour says."""
    parts = room.split("/")[0 if room.startswith("cosine_p2p") else 1 :]
    return ".".join(parts[1:]) or parts[0]


def _reduced(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The graph without arrows that longer ways replace."""
    reach: dict[str, set[str]] = {}
    for room in TopologicalSorter(graph).static_order():
        reach[room] = graph[room] | {far for near in graph[room] for far in reach[near]}
    return {
        room: {one for one in near if not any(one in reach[other] for other in near)}
        for room, near in graph.items()
    }


def draw() -> str:
    """The picture as SVG text."""
    graph = {room: near for room, near in rooms().items() if not room.startswith("lab")}
    level: dict[str, int] = {}
    for room in TopologicalSorter(graph).static_order():
        level[room] = 1 + max((level[near] for near in graph[room]), default=-1)
    top = max(level.values())
    rows = [sorted(room for room in level if level[room] == number) for number in range(top, -1, -1)]
    place: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        for index, room in enumerate(row):
            place[room] = (WIDTH * (index + 0.5) / len(row), 30.0 + ROW * number)
    height = 60 + ROW * top
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12" '
        'aria-label="The rooms of the product; each imports only rooms below it">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for room, near in sorted(_reduced(graph).items()):
        for other in sorted(near):
            (x, y), (to_x, to_y) = place[room], place[other]
            y, to_y = y + BOX[1] / 2, to_y - BOX[1] / 2
            half = (y + to_y) / 2
            curve = f"M{x:.0f} {y:.0f}C{x:.0f} {half:.0f} {to_x:.0f} {half:.0f} {to_x:.0f} {to_y:.0f}"
            lines.append(f'<path d="{curve}" fill="none" stroke="#94a3b8"/>')
    for room, (x, y) in sorted(place.items()):
        colour = COLOURS[room.split("/")[0]]
        lines += [
            f'<rect x="{x - BOX[0] / 2:.0f}" y="{y - BOX[1] / 2:.0f}" width="{BOX[0]}" height="{BOX[1]}" rx="6" '
            f'fill="{colour}" stroke="#334155"/>',
            f'<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle" fill="#0f172a">{_name(room)}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def write(path: Path = PICTURE) -> None:
    path.write_text(draw(), "utf-8")


if __name__ == "__main__":
    write()
