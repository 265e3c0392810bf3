"""The patches of hivemind's P2P, one for each defect (decision 74). Tests fail once hivemind mends one of them."""

import asyncio
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

from cosine_p2p.transport.full.library import P2P, P2PDaemonError
from cosine_p2p.transport.full.relay import LAUNCH, NO_RELAY_FLAGS, RELAY_FLAGS

BACKLOG: Final = 4096  # asyncio's default of 100 loses streams in bursts of a few hundred.
END_TIMEOUT_S: Final = 3.0  # After this the daemon is killed.
# In its own session p2pd survives the Ctrl-C that makes us drain; it ends when our connections do.
_DETACH: Final = "import os, sys; os.setsid(); os.execv(sys.argv[1], sys.argv[1:])"


def p2p_class(folder: Path, created: list[Any]) -> Any:
    """A P2P with its sockets in `folder`, which is added to `created` before its daemon starts.

    It forgets nothing when its start fails, detaches p2pd, and sets the options of relays, which hivemind lacks.
    """

    class PrivateP2P(P2P):  # type: ignore[misc]  # hivemind has no types
        _UNIX_SOCKET_PREFIX = f"/unix{folder}/"

        def __init__(self) -> None:
            super().__init__()
            self._pid = os.getpid()
            created.append(self)

        def _terminate(self) -> None:
            # hivemind's destructor calls this in a forked child too, whose parent still needs the daemon.
            if os.getpid() == self._pid:
                super()._terminate()

        @staticmethod
        def _make_process_args(*args: Any, **flags: Any) -> list[str]:
            is_relay = flags.get("forceReachabilityPublic")
            extra = RELAY_FLAGS if is_relay else NO_RELAY_FLAGS
            detach = LAUNCH if is_relay else _DETACH
            return [sys.executable, "-ISc", detach, *P2P._make_process_args(*args, **flags), *extra]

    return PrivateP2P


class PendingCalls(dict[Any, Any]):
    """Our open calls. The answer to a cancelled call would end hivemind's reader of all answers."""

    def __contains__(self, call_id: object) -> bool:
        call = self.get(call_id)
        return call is not None and not call.done()


class HandlerTasks(dict[Any, Any]):
    """Calls of peers being answered. hivemind would keep those that a peer cancels."""

    def __setitem__(self, call_id: Any, task: Any) -> None:
        super().__setitem__(call_id, task)
        task.add_done_callback(lambda _: self.pop(call_id, None))


def mend_calls(control: Any) -> None:
    control._pending_calls = PendingCalls(control._pending_calls)
    control._handler_tasks = HandlerTasks(control._handler_tasks)


async def handle_named(control: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Handle an inbound stream. hivemind raises for a peer that died before p2pd reported whose stream it is."""
    try:
        await control._handler(reader, writer)
    except EOFError:
        writer.close()


async def listen(p2p: Any) -> None:
    """Accept inbound streams with a long backlog; hivemind does not listen if the task exists."""
    control = p2p._client.control
    path = control.listen_maddr.value_for_protocol("unix")
    server = await asyncio.start_unix_server(partial(handle_named, control), path=path, backlog=BACKLOG)

    async def serve() -> None:
        try:
            await asyncio.Future()
        finally:
            server.close()

    p2p._listen_task = asyncio.create_task(serve())


async def end(p2p: Any) -> None:
    """End a daemon and all tasks of its P2P. hivemind's `shutdown` leaves open calls waiting, and the process."""
    control = p2p._client.control if p2p._client is not None else None
    if control is not None:
        for call in control._pending_calls.values():
            if not call.done():
                call.set_exception(P2PDaemonError("the network daemon is gone"))
    p2p._terminate()
    tasks = [p2p._listen_task, p2p._reader_task]
    if control is not None:
        tasks += [control._read_task, control._write_task, *control._handler_tasks.values()]
        for task in control._handler_tasks.values():
            task.cancel()
    await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)
    child = p2p._child
    if child is None:
        return
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()
    # The pipe's transport closes one iteration of the loop after the process has ended.
    child._transport.close()
    await asyncio.sleep(0)
