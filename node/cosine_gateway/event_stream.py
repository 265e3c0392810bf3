"""Replies that are kept alive while their text is not there: streams of server-sent events, and JSON bodies."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.types import Send

Headers = list[tuple[bytes, bytes]]
KEEP_ALIVE_S: Final = 4.0
"""Proxies cut an answer after 60 s without a byte (nginx, AWS), some after 15 or even 5."""
LOOK_S: Final = 0.5
WAITING: Final = b": waiting\n\n"
"""A comment, which readers ignore (WHATWG HTML, 9.2.6)."""
SPACE: Final = b" "
"""Readers of JSON ignore it before the body (RFC 8259, 2)."""
UNBUFFERED: Final = (
    # Disable buffering and caching in proxies; the last header is nginx's own.
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
OF_EVENTS: Final = (b"content-type", b"text/event-stream; charset=utf-8")
OF_JSON: Final = (b"content-type", b"application/json")


def sent_event(body: Mapping[str, Any] | str, *, name: str = "") -> bytes:
    """Encode one server-sent event."""
    data = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()


class EventStream:
    """A reply to one client, of events or of one body. The first write sends the status and sets `is_begun`."""

    def __init__(
        self,
        send: Send,
        *,
        headers: Callable[[], Headers] = list,
        is_body: bool = False,
        may_wait: Callable[[], bool] = lambda: True,
    ) -> None:
        """`headers` returns further headers, when the status is sent; nothing is sent to wait unless `may_wait`."""
        self._send = send
        self._headers = headers
        self._kind, self._waiting = (OF_JSON, SPACE) if is_body else (OF_EVENTS, WAITING)
        self._may_wait = may_wait
        self._writing = asyncio.Lock()
        self._written_at_s = 0.0
        self._is_ended = False
        self.is_begun = False

    async def write(self, data: bytes, *, is_last: bool = False) -> None:
        """Send bytes in order. Nothing follows the last ones."""
        async with self._writing:
            if self._is_ended:
                return
            self._is_ended = is_last
            if not self.is_begun:
                self.is_begun = True
                headers = [self._kind, *UNBUFFERED, *self._headers()]
                if is_last:
                    headers.append((b"content-length", str(len(data)).encode()))
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})
            self._written_at_s = asyncio.get_running_loop().time()

    @asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """In the context, write a comment or space after each `KEEP_ALIVE_S` without output, even at the start."""
        loop = asyncio.get_running_loop()
        self._written_at_s = loop.time()

        async def keep_alive() -> None:
            while True:
                silent_s = loop.time() - self._written_at_s
                if silent_s < KEEP_ALIVE_S:
                    await asyncio.sleep(KEEP_ALIVE_S - silent_s)
                elif self._may_wait():
                    await self.write(self._waiting)
                else:
                    await asyncio.sleep(LOOK_S)

        keeping = asyncio.ensure_future(keep_alive())
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
