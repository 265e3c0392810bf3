"""Server-sent events to one client, which is never left without a byte for long."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.types import Send

SILENCE_S: Final = 10.0
"""Proxies cut an answer after 60 s without a byte (nginx, AWS), some after 15."""
WAITING: Final = b": waiting\n\n"
"""A comment, which every reader of such streams passes over (WHATWG HTML, 9.2.6)."""
HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    # No proxy may keep pieces back, or all; the last header is nginx's own for that.
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def sent_event(body: Mapping[str, Any] | str, *, name: str = "") -> bytes:
    """One server-sent event, with its name where it has one."""
    data = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()


class EventStream:
    """Writes one stream. The status is sent with the first bytes; from then on `is_begun` is true."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._writing = asyncio.Lock()
        self._written_at_s = 0.0
        self.is_begun = False

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        """Send some bytes, after all that were written before."""
        async with self._writing:
            if not self.is_begun:
                self.is_begun = True
                await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})
            self._written_at_s = asyncio.get_running_loop().time()

    @asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """Write a comment within the context after each `SILENCE_S` without a byte, also before the first one."""
        loop = asyncio.get_running_loop()
        self._written_at_s = loop.time()

        async def keep_alive() -> None:
            while True:
                silent_s = loop.time() - self._written_at_s
                if silent_s < SILENCE_S:
                    await asyncio.sleep(SILENCE_S - silent_s)
                else:
                    await self.write(WAITING)

        keeping = asyncio.ensure_future(keep_alive())
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
