"""A stage that turns bad: `python -m tests.e2e.bad_stage join --role stage ...`, like `cosine-node`.

From the signal SIGUSR1 on it does what `COSINE_TEST_CONDUCT` says: "late" holds each pass for three seconds,
"refuse" ends each chain at its first pass, "give back" has no token for any row. It announces what honest ones do.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Sequence
from typing import Final

from cosine_node.cli import main
from cosine_node.engine.base import BadLogits, Row, RowResult
from cosine_node.stages.host import HostedChain
from cosine_node.stages.inbox import QueuedFeed
from cosine_node.stages.service import ServedChain, StageService
from cosine_protocol.errors import ErrorCode, PeerError

LATE_S: Final = 3.0


def turn_bad(conduct: str) -> None:
    is_bad = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: is_bad.set())
    feed, run = StageService._feed, HostedChain.run

    async def fed(service: StageService, chain: ServedChain, queued: QueuedFeed) -> None:
        if is_bad.is_set() and conduct == "refuse":
            raise PeerError(ErrorCode.INTERNAL, "a pass failed: RuntimeError")
        if is_bad.is_set() and conduct == "late":
            await asyncio.sleep(LATE_S)
        await feed(service, chain, queued)

    def found(
        chain: HostedChain, rows: Sequence[Row], activations: bytes | bytearray | None
    ) -> bytes | list[RowResult]:
        results = run(chain, rows, activations)
        if is_bad.is_set() and conduct == "give back":
            return [RowResult((), error=BadLogits("The model gave NaN or infinite logits.")) for _ in rows]
        return results

    setattr(StageService, "_feed", fed)  # noqa: B010  # no option of an honest node does so
    setattr(HostedChain, "run", found)  # noqa: B010


if __name__ == "__main__":
    turn_bad(os.environ["COSINE_TEST_CONDUCT"])
    main()
