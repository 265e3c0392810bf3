"""The verifiers that serve the target now, looked up no more often than needed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from cosine_protocol.errors import CosineError
from cosine_protocol.records import NodeRecord

# Probes come every few seconds, and each look-up asks several peers: choices between fresh news and little traffic.
FRESH_S: Final = 15.0
RETRY_S: Final = 2.0
LOOK_UP_TIMEOUT_S: Final = 6.0
"""Less than the 10 s after which most load balancers give up a probe."""


class VerifierWatch:
    """Remembers for `FRESH_S` that verifiers were found, for `RETRY_S` that none were.

    `find_verifiers` is a client's; it may raise a `CosineError`.
    """

    def __init__(self, find_verifiers: Callable[[], Awaitable[Sequence[NodeRecord]]]) -> None:
        self._find_verifiers = find_verifiers
        self._looking = asyncio.Lock()
        self._valid_until_s = 0.0
        self._found: tuple[NodeRecord, ...] = ()
        self._reason = ""

    async def look(self) -> tuple[Sequence[NodeRecord], str]:
        """The verifiers found most recently, best first, and why there are none, "" if there are."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            if loop.time() >= self._valid_until_s:
                try:
                    async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
                        self._found, self._reason = tuple(await self._find_verifiers()), ""
                except CosineError as error:
                    self._found, self._reason = (), str(error)
                except TimeoutError:
                    self._found, self._reason = (), f"The network did not answer within {LOOK_UP_TIMEOUT_S:.0f} s."
                self._valid_until_s = loop.time() + (FRESH_S if self._found else RETRY_S)
        return self._found, self._reason
