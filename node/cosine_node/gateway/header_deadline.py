"""HTTP connections that are closed where a request's header does not come whole in time."""

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_S: Final = 10.0
"""A choice: a header is one packet or two; longer than uvicorn keeps a connection open between requests."""


class DeadlineProtocol(H11Protocol):
    """uvicorn's own has no such deadline: half a header holds a connection, and so a file, for ever."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._expect_header()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget_deadline()
        else:
            self._expect_header()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle is None or self.cycle.response_complete:
            self._expect_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_deadline()
        super().connection_lost(exc)

    def _expect_header(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_S, self.transport.close)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
