"""Passes of an idle node, which keep its announced time of a pass current."""

import asyncio
import logging
from typing import Final

from cosine_engine.base import Engine, Row
from cosine_node.passes.runner import MIN_PASSES, PassSpeed, Runner
from cosine_protocol.errors import CosineError
from cosine_protocol.request import Sampling

FIRST_PAUSE_S: Final = 60.0
"""A node that looks slower than it is loses only its first minutes."""
LONGEST_PAUSE_S: Final = 3600.0
"""Pauses double up to this, to save energy."""

LOG = logging.getLogger(__name__)


class IdlePasses:
    """Waits for work and occasionally runs `MIN_PASSES` passes over one token.

    Clients choose nodes by the announced time of a pass. A node with too long a time would get no requests, whose
    passes could correct it. `runner` must report its passes to `speed`.
    """

    def __init__(self, engine: Engine, runner: Runner, speed: PassSpeed) -> None:
        self._engine = engine
        self._runner = runner
        self._speed = speed

    async def wait(self, work: asyncio.Event) -> None:
        """Return when `work` is set, after the current pass. Until then nothing else may use the engine."""
        pause_s = FIRST_PAUSE_S
        while not work.is_set():
            try:
                async with asyncio.timeout(pause_s):
                    await work.wait()
            except TimeoutError:
                await self._take_passes(work)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _take_passes(self, work: asyncio.Event) -> None:
        self._speed.forget()
        sequence = self._engine.open(sampling=Sampling(), prompt_tokens=1)
        try:
            for _ in range(MIN_PASSES):
                if work.is_set():
                    return
                row = Row.chain(sequence, [0])
                await self._runner.forward([row])
                self._engine.prune(sequence, row.nodes)
        except CosineError as error:
            # A chain was lost; the next request opens another one.
            LOG.info("passes to measure the idle node ended: %s", error)
        except Exception:
            # The service continues; passes of requests report their failures.
            LOG.exception("a pass to measure the idle node failed")
        finally:
            self._engine.release(sequence)
