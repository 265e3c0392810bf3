"""Inputs that are committed because they reach further than the seeds: found once, a start for every later run."""

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any, Final

from tests.fuzz.target import FOLDER, FuzzTarget

MOST: Final = 64
"""A choice: inputs kept of a target."""
MAX_BYTES: Final = 2048
"""A choice: longer ones are not kept, for the folder is read by people too."""
_PLACES: Final = ("cosine_protocol", "cosine_p2p", "cosine_node")


def kept(name: str) -> list[bytes]:
    """The inputs of a target, from a file with a line of hex for each."""
    file = FOLDER / "corpus" / f"{name}.txt"
    return [bytes.fromhex(line) for line in file.read_text().split()] if file.is_file() else []


def keep(name: str, target: FuzzTarget, inputs: Iterable[bytes]) -> None:
    """Write the inputs anew: of those there are, shortest first, the ones that reach steps no other has reached."""
    reached: set[tuple[str, int, int]] = set()
    for data in target.seeds():
        reached |= steps_of(target, data)
    fresh: list[bytes] = []
    for data in sorted({*kept(name), *inputs} - {*target.seeds()}, key=lambda data: (len(data), data)):
        if len(data) > MAX_BYTES or len(fresh) >= MOST:
            break
        steps = steps_of(target, data)
        if not steps <= reached:
            reached |= steps
            fresh.append(data)
    (FOLDER / "corpus").mkdir(exist_ok=True)
    (FOLDER / "corpus" / f"{name}.txt").write_text("".join(f"{data.hex()}\n" for data in fresh))


def steps_of(target: FuzzTarget, data: bytes) -> set[tuple[str, int, int]]:
    """The steps from line to line of our code that an input makes."""
    steps: set[tuple[str, int, int]] = set()
    last: dict[FrameType, int] = {}

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "call" and not any(place in frame.f_code.co_filename for place in _PLACES):
            return None
        if event == "line":
            steps.add((frame.f_code.co_filename, last.get(frame, 0), frame.f_lineno))
            last[frame] = frame.f_lineno
        return trace

    sys.settrace(trace)
    try:
        target.accepts(data)
    finally:
        sys.settrace(None)
    return steps
