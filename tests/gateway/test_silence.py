"""Replies arrive through proxies that cut silent answers, however long a verifier reads the prompt."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPException
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from cosine_engine.curve import CostCurve
from cosine_gateway import event_stream
from tests.gateway.dialects import DIALECTS, Dialect
from tests.gateway.gateways import HOST, PROMPT, Reply, served, text_of

pytestmark = [pytest.mark.network, pytest.mark.timeout(300)]
EACH = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=list(DIALECTS))


@contextmanager
def proxy_to(url: str, *, cut_s: float) -> Iterator[str]:
    """The URL of a proxy that cuts both ways when the server sends nothing for `cut_s`."""
    at: Future[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, cut_s: float | None) -> None:
        with suppress(OSError, TimeoutError):
            while data := await asyncio.wait_for(reader.read(65536), cut_s):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection(HOST, urlsplit(url).port)
        asking = asyncio.ensure_future(carry(reader, forth, cut_s=None))
        await carry(back, writer, cut_s=cut_s)
        asking.cancel()
        forth.close()

    async def run() -> None:
        stop = asyncio.Event()
        async with await asyncio.start_server(meet, HOST, 0) as server:
            port = server.sockets[0].getsockname()[1]
            at.set_result((f"http://{HOST}:{port}", asyncio.get_running_loop(), stop))
            await stop.wait()

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(asyncio.run, run())
        place, loop, stop = at.result(10.0)
        try:
            yield place
        finally:
            loop.call_soon_threadsafe(stop.set)
            running.result(10.0)


def ask(url: str, dialect: Dialect, *, is_streamed: bool) -> Reply:
    data = json.dumps(dialect.body(tokens=1, stream=is_streamed)).encode()
    request = Request(f"{url}{dialect.path}", data, {"content-type": "application/json"})
    with urlopen(request, timeout=120) as reply:
        return Reply(reply.status, dict(reply.headers), reply.read(), is_complete=True)


@EACH
@pytest.mark.parametrize(
    ("read_s", "silence_s", "cut_s"),
    [(0.6, 0.1, 0.3), pytest.param(20.0, event_stream.KEEP_ALIVE_S, 5.0, marks=pytest.mark.soak)],
)
def test_a_prompt_that_takes_long_to_read_is_answered_through_a_proxy_that_cuts_silence(
    monkeypatch: pytest.MonkeyPatch, dialect: Dialect, read_s: float, silence_s: float, cut_s: float
) -> None:
    monkeypatch.setattr(event_stream, "KEEP_ALIVE_S", silence_s)
    expected = text_of(PROMPT, tokens=1)
    with served(curve=CostCurve(((1, read_s), (64, read_s)))) as gateway, proxy_to(gateway.url, cut_s=cut_s) as url:
        whole = ask(url, dialect, is_streamed=False)
        assert dialect.text(whole.json) == expected
        assert whole.body.startswith(b" ") and "x-cosine-verifier" in whole.headers
        assert dialect.streamed(ask(url, dialect, is_streamed=True)) == (expected, None)


def test_the_proxy_cuts_what_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "KEEP_ALIVE_S", 60.0)
    with served(curve=CostCurve(((1, 1.0), (64, 1.0)))) as gateway, proxy_to(gateway.url, cut_s=0.3) as url:
        for is_streamed in (False, True):
            with pytest.raises((OSError, HTTPException)):
                ask(url, DIALECTS["chats"], is_streamed=is_streamed)
