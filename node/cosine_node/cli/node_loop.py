"""The event loop that a node runs on until a signal stops it."""

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any

from cosine_node.cli.interrupts import leave

LOG = logging.getLogger(__name__)


def run_until_stopped(work: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run a node; SIGTERM or SIGINT sets the event on which it drains, SIGINT after that ends it at once.

    The loop is uvloop's where that is installed, else asyncio's own.
    """

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log_unhandled_error)

        def interrupt() -> None:
            if stop.is_set():
                leave()
            stop.set()
            if sys.stderr.isatty():
                sys.stderr.write("\nStopping, once loading and requests are done; Ctrl-C again leaves at once.\n")

        loop.add_signal_handler(signal.SIGTERM, stop.set)
        loop.add_signal_handler(signal.SIGINT, interrupt)
        running = asyncio.ensure_future(work(stop))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        await running

    new_loop = None
    if find_spec("uvloop") is not None:
        import uvloop

        new_loop = uvloop.new_event_loop
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
    finally:
        # uvloop leaves handlers behind that do nothing once it is closed.
        for number, handler in before.items():
            signal.signal(number, handler)


def log_unhandled_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that no task waits for; a peer that hangs up before its stream has begun is none.

    The network library reads the peer's identity in a callback of its own: every such peer would be a traceback.
    """
    has_hung_up = isinstance(context.get("exception"), asyncio.IncompleteReadError)
    if has_hung_up and str(context.get("message", "")).endswith("client_connected_cb"):
        LOG.debug("a peer hung up before its stream had begun")
    else:
        loop.default_exception_handler(context)
