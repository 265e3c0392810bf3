"""The daemon of a node that relays for others, started until its circuits carry enough.

p2pd registers two relay services at its start, in a race: that of its options and one with libp2p's defaults (2
minutes and 128 KiB a circuit), which cuts every link. The later one answers until p2pd ends; its answer to a
reservation (circuit relay v2, RESERVE) shows which it is.

p2pd's main goroutine registers the defaults, and wakes another, which registers the options, a moment earlier. On
one processor that one runs only when main waits, or when Go's watching thread takes the processor from main: after
10 ms of work, or in a system call that it finds under way at two looks, some 20 us apart. So the watcher's timers
are made late.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from cosine_protocol.errors import PeerLost, UsageError
from cosine_protocol.identity import Identity

if TYPE_CHECKING:
    from cosine_p2p.transport.full.daemon import Daemon

logger = logging.getLogger(__name__)

CIRCUIT_BYTES: Final = 128 << 20
"""Each way of a circuit, whose 30 minutes take 104 MB for a gateway with 16 requests at a time (simulated, passes
of 60 ms and drafts of 6 ms)."""
CIRCUITS_EACH: Final = 64  # A peer's circuits at a time, which are the clients at a time of a node behind NAT.
CIRCUIT_BUFFER_BYTES: Final = 64 << 10  # Each way; p2pd's own 16 MiB could fill the machine's memory.
RELAY_FLAGS: Final = (
    f"-relayDataLimit={CIRCUIT_BYTES}",
    f"-relayMaxCircuits={CIRCUITS_EACH}",
    f"-relayBufferSize={CIRCUIT_BUFFER_BYTES}",
)
NO_RELAY_FLAGS: Final = ("-relayService=0",)
"""Without it p2pd grants strangers 4 GiB a circuit at every node that others can dial. libp2p's defaults stay."""
SLACK_FILE: Final = "/proc/self/timerslack_ns"  # Linux's, proc_pid_timerslack_ns(5); children take it over.
SLACK_NS: Final = 200_000_000
"""Measured on two cores, starts in which the options win: 30 of 30 beside niced work, 30 of 30 beside 4 busy
processes, 20 of 20 beside 12, where a quarter of this gave 2 of 10. Without it 3 to 27 of 30. A start takes 0.3 s
longer."""
LAUNCH: Final = f"""
import os, sys
os.setsid()
os.environ["GOMAXPROCS"] = "1"
try:
    with open("{SLACK_FILE}", "w") as file:
        file.write("{SLACK_NS}")
except OSError:
    pass
os.execv(sys.argv[1], sys.argv[1:])
"""
"""What becomes the daemon named in its arguments. In a session of its own, as any daemon of ours."""
MAX_STARTS: Final = 8  # Without that file: where one of three is good, all are bad in one case of 26.
ASK_TIMEOUT_S: Final = 10.0  # The daemon is here; beside 12 busy processes it took up to 3.3 s.


async def start_relay(
    start: Callable[[], Awaitable["Daemon"]], ask: Callable[["Daemon"], Awaitable[int | None]]
) -> "Daemon":
    """A daemon whose circuits carry enough, or the last of `MAX_STARTS`, with a warning. Raises as `start`."""
    for starts_left in reversed(range(MAX_STARTS)):
        daemon = await start()
        try:
            granted_bytes = await ask(daemon)
        except BaseException:
            await daemon.close()
            raise
        if granted_bytes is None:
            logger.warning("it cannot be told here how much this relay lets through before it cuts a link")
            break
        if granted_bytes >= CIRCUIT_BYTES:
            break
        if starts_left == 0:
            logger.warning("this relay cuts links after %d bytes; start it again", granted_bytes)
            break
        await daemon.close()
    return daemon


async def ask_granted_bytes(daemon: "Daemon", *, host_maddrs: Sequence[str]) -> int | None:
    """Bytes a circuit may carry each way, asked where it announces and listens; None where unknown."""
    if find_spec("libp2p") is None:
        return None
    from cosine_p2p.transport.light.light import LightConfig, LightTransport

    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            maddrs = (*await daemon.visible_maddrs(), *_local_maddrs(host_maddrs, daemon.peer_id))
            dialable = tuple(maddr for maddr in maddrs if "/tcp/" in maddr)
            us = await LightTransport.start(LightConfig(identity=Identity.generate(), initial_peers=dialable))
            try:
                return await us.reserve(daemon.peer_id)
            finally:
                await us.close()
    except (PeerLost, UsageError, OSError, EOFError, TimeoutError):
        logger.debug("our own relay could not be asked", exc_info=True)
        return None


def _local_maddrs(host_maddrs: Sequence[str], peer_id: str) -> Iterator[str]:
    for maddr in host_maddrs:
        if not maddr.endswith("/tcp/0"):
            yield maddr.replace("/0.0.0.0/", "/127.0.0.1/").replace("/::/", "/::1/") + f"/p2p/{peer_id}"
