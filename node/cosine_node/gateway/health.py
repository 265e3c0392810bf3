"""Whether somebody serves the target, asked of the network no more often than needed."""

import asyncio
from collections.abc import Sequence
from typing import Final

from cosine_node.gateway.source import TextSource
from cosine_protocol.errors import CosineError
from cosine_protocol.records import NodeRecord

FRESH_S: Final = 15.0
RETRY_S: Final = 2.0
LOOK_UP_TIMEOUT_S: Final = 6.0


class VerifierWatch:
    """Remembers for `FRESH_S` that verifiers were found, for `RETRY_S` that none were."""

    def __init__(self, source: TextSource) -> None:
        self._source = source
        self._looking = asyncio.Lock()
        self._valid_until_s = 0.0
        self._found: tuple[NodeRecord, ...] = ()
        self._reason = ""

    async def look(self) -> tuple[Sequence[NodeRecord], str]:
        """The verifiers found most recently, best first, and why there are none, "" if there are."""
        async with self._looking:
            if _now_s() >= self._valid_until_s:
                await self._look_up()
        return self._found, self._reason

    async def _look_up(self) -> None:
        try:
            async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
                self._found, self._reason = tuple(await self._source.find_verifiers()), ""
        except CosineError as error:
            self._found, self._reason = (), str(error)
        except TimeoutError:
            self._found, self._reason = (), f"The network did not answer within {LOOK_UP_TIMEOUT_S:.0f} s."
        self._valid_until_s = _now_s() + (FRESH_S if self._found else RETRY_S)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
