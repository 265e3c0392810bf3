"""The modules that a prompt passes on its way to the wire, and a fragment on its way to the text.

`python -m tests.cosine_p2p.test_walks` prints both walks.
"""

import ast
import asyncio
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import cosine_p2p
from cosine_engine.base import Engine, Row
from cosine_engine.curve import CostCurve
from cosine_lab.emulation.machine import InlineRunner
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node.passes.runner import Pass
from cosine_p2p import Client
from cosine_p2p.client import Swarm
from cosine_p2p.request.origins import OWN_SOURCES
from cosine_protocol.draft import Fragment
from cosine_protocol.verify import Open
from tests.cosine_p2p.test_blocking import PROMPT, InProcess
from tests.swarm.reference import draft_engine, target_engine
from tests.test_rooms import PURE, ROOT

HOME: Final = Path(cosine_p2p.__file__).parent
OTHERS: Final = ("/cosine_node/", "/cosine_engine/", "/cosine_lab/simulation/")  # The nodes of the same process.
CONSTRUCTORS: Final = {"__init__", "__post_init__"}


@cache
def is_pure(module: str) -> bool:
    """Return whether a module is a value or a rule: it is asked and answers, and nothing passes through it.

    `tests/test_rooms.py` holds such modules to importing nothing that waits, draws or does I/O.
    """
    path = HOME / f"{module}.py"
    files = (path, *(folder / "__init__.py" for folder in path.parents if folder.is_relative_to(HOME)))
    docstrings = (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "" for file in files if file.exists())
    is_declared = any(re.search(r"\bPure\b", docstring) for docstring in docstrings)
    return is_declared or any(path.is_relative_to(ROOT / place) for place in PURE)


@dataclass(slots=True)
class Walk:
    """The functions of `cosine_p2p` that run between two calls, by module, in order of their first call."""

    begins: Callable[[str, FrameType], bool]
    ends: Callable[[str, FrameType], bool]
    functions: dict[str, dict[str, None]] = field(default_factory=dict)
    is_begun: bool = False
    is_over: bool = False

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event != "call" or self.is_over or not path.startswith(str(HOME)) or _is_of_a_node(frame):
            return
        name = frame.f_code.co_qualname
        self.is_begun = self.is_begun or self.begins(name, frame)
        if self.is_begun:
            self.functions.setdefault(path[len(str(HOME)) + 1 : -3], {})[name] = None
            self.is_over = self.ends(name, frame)

    @property
    def acting(self) -> list[str]:
        """The modules that act: those that are not pure and of which more than a constructor ran."""
        return [
            module
            for module, names in self.functions.items()
            if not is_pure(module) and {name.rpartition(".")[2] for name in names} - CONSTRUCTORS
        ]

    def __str__(self) -> str:
        lines = [f"{len(self.acting)} modules act, of {len(self.functions)}:"]
        for module, names in self.functions.items():
            mark = "*" if module in self.acting else " "
            lines.append(f"{mark} {module}: {', '.join(name for name in names if '<' not in name)}")
        return "\n".join(lines)


def _is_of_a_node(frame: FrameType | None) -> bool:
    while frame is not None:
        if any(other in frame.f_code.co_filename for other in OTHERS):
            return True
        frame = frame.f_back
    return False


class WaitingRunner(InlineRunner):
    """A runner that begins no pass before `is_due`, so that drafts come in time on a busy machine."""

    def __init__(self, engine: Engine, is_due: Callable[[], bool]) -> None:
        super().__init__(engine, CostCurve(((1, 0.2), (32, 0.22))))
        self._is_due = is_due

    async def forward(self, rows: Sequence[Row]) -> Pass:
        for _ in range(300):
            if self._is_due():
                break
            await asyncio.sleep(0.1)
        return await super().forward(rows)


@contextmanager
def watched(walk: Walk) -> Iterator[Client]:
    """A client, with a verifier and a drafter in its process, that has joined and generated once."""
    is_watching = threading.Event()

    async def join() -> Swarm:
        swarm, engine = await SimulatedSwarm(one_way_s=0.0).__aenter__(), target_engine()
        runner = WaitingRunner(engine, lambda: walk.is_begun or not is_watching.is_set())
        await swarm.verifier(engine, runner=runner)
        await swarm.drafter(draft_engine(0.8), curve=CostCurve(((1, 0.001), (32, 0.002))))
        return InProcess(swarm)

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if is_watching.is_set():
            walk.note(frame, event, argument)

    threading.setprofile(note)
    try:
        with Client(join=join) as client:
            threading.setprofile(None)
            client.generate(PROMPT, max_new_tokens=2)
            is_watching.set()
            sys.setprofile(note)
            yield client
            sys.setprofile(None)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def prompt_to_wire() -> Walk:
    """From `Client.generate` to the first message of the request that is handed to a channel."""

    def begins(name: str, _: FrameType) -> bool:
        return name == "Client.generate"

    def ends(name: str, frame: FrameType) -> bool:
        return name == "Channel.post" and isinstance(frame.f_locals["message"], Open)

    walk = Walk(begins, ends)
    with watched(walk) as client:
        client.generate(PROMPT, max_new_tokens=2)
    assert walk.is_over
    # The channel is the end of the way.
    walk.functions.pop("transport/channel")
    return walk


def fragment_to_text() -> Walk:
    """From a received fragment to the chunk with a token of a drafter, as the caller of `Client.stream` gets it."""

    def begins(name: str, frame: FrameType) -> bool:
        return name == "Drafters._on_message" and isinstance(frame.f_locals["delivery"].message, Fragment)

    walk = Walk(begins, lambda *_: False)
    with watched(walk) as client, client.stream(PROMPT, max_new_tokens=400) as chunks:
        for chunk in chunks:
            if walk.is_begun and chunk.source not in OWN_SOURCES.values():
                walk.is_over = True
                break
    assert walk.is_over
    return walk


@pytest.mark.thorough
def test_the_walks_are_short() -> None:
    for walk, most_acting, most in ((prompt_to_wire(), 8, 42), (fragment_to_text(), 8, 30)):
        assert len(walk.acting) <= most_acting and len(walk.functions) <= most, f"\n{walk}"


if __name__ == "__main__":
    for title, walk in (("A prompt to the wire", prompt_to_wire()), ("A fragment to the text", fragment_to_text())):
        sys.stdout.write(f"{title}\n{walk}\n\n")
