"""`python -m cosine_lab.monitor_screenshots FOLDER`: the snapshots of docs/monitor.md, the same in every run."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cosine_lab.monitor_demo import demo_snapshot
from cosine_protocol.errors import UsageError
from cosine_tui.looks.themes import DARK, LIGHT
from cosine_tui.state.snapshot import Snapshot
from cosine_tui.svg_export import snapshot_svg

SIZES: Final = ((80, 24), (160, 48))
"""Columns and rows: one pane at a time, and all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A moment of the demo. `keys` are pressed where only one pane fits on the screen."""

    name: str
    seed: int
    after_s: float
    prompts: Mapping[float, str]
    keys: tuple[str, ...]

    def snapshot(self) -> Snapshot:
        return demo_snapshot(self.seed, self.after_s, prompts=self.prompts)


# What docs/monitor.md explains: two own requests under load, and a request that fails over.
SCENES: Final = (
    Scene(
        name="load",
        seed=1,
        after_s=17.2,
        prompts={3.0: "a page of literature", 14.4: "another page of literature"},
        keys=("f4",),
    ),
    Scene(name="dead-verifier", seed=1, after_s=21.5, prompts={17.0: "some code"}, keys=("f2",)),
)


def write_screenshots(folder: Path) -> list[Path]:
    """Draw every scene at every size in both themes, and return the files."""
    written = []
    for scene in SCENES:
        snapshot = scene.snapshot()
        for columns, rows in SIZES:
            for theme in (DARK, LIGHT):
                shade = theme.removeprefix("cosine-")
                file = folder / f"tui-{scene.name}-{columns}x{rows}-{shade}.svg"
                svg = snapshot_svg(snapshot, size=(columns, rows), theme=theme, keys=scene.keys)
                file.write_text(svg, "utf-8")
                written.append(file)
    return written


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        sys.stderr.write("Usage: python -m cosine_lab.monitor_screenshots FOLDER\n")
        return 2
    try:
        for file in write_screenshots(Path(arguments[0])):
            sys.stdout.write(f"{file}\n")
    except UsageError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
