"""`python -m cosine_lab.monitor_screenshots FOLDER`: the snapshots of docs/monitor.md, the same in every run."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cosine_lab.monitor_demo import demo_snapshot
from cosine_tui.looks.themes import DARK, LIGHT
from cosine_tui.svg_export import snapshot_svg

SIZE: Final = (160, 48)
"""Columns and rows: all panes fit."""


class Scene(NamedTuple):
    """A moment of the demo, with prompts by the second they are sent at."""

    name: str
    theme: str
    after_s: float
    prompts: Mapping[float, str]


# What docs/monitor.md explains: two own requests under load, and a request that fails over.
SCENES: Final = (
    Scene("load", DARK, 17.2, {3.0: "a page of literature", 14.4: "another page of literature"}),
    Scene("dead-verifier", LIGHT, 21.5, {17.0: "some code"}),
)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        sys.stderr.write("Usage: python -m cosine_lab.monitor_screenshots FOLDER\n")
        return 2
    for scene in SCENES:
        shade = scene.theme.removeprefix("cosine-")
        file = Path(arguments[0], f"tui-{scene.name}-{SIZE[0]}x{SIZE[1]}-{shade}.svg")
        snapshot = demo_snapshot(1, scene.after_s, prompts=scene.prompts)
        file.write_text(snapshot_svg(snapshot, size=SIZE, theme=scene.theme), "utf-8")
        sys.stdout.write(f"{file}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
