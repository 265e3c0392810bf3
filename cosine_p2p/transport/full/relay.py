"""The daemon of a node that relays for others, restarted until its circuits carry enough.

p2pd registers two relay services at its start, in a race: one with its options, and one with libp2p's defaults (2
minutes and 128 KiB a circuit), which cuts every link. The later one answers until p2pd ends; its answer to a
reservation (circuit relay v2, RESERVE) shows which one it is.

p2pd's main goroutine registers the defaults, shortly after it wakes the goroutine that registers the options. On
one processor the latter runs only when Go's monitor thread preempts main, so the timers of that thread are delayed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from cosine_p2p.transport.full.questions import ask_reservation
from cosine_protocol.errors import PeerLost, UsageError
from cosine_protocol.identity import Identity

if TYPE_CHECKING:
    from cosine_p2p.transport.full.daemon import Daemon

logger = logging.getLogger(__name__)

CIRCUIT_BYTES: Final = 128 << 20
"""The limit of each direction of a circuit. 30 minutes take 104 MB for a gateway with 16 concurrent requests
(simulated, passes of 60 ms and drafts of 6 ms)."""
CIRCUITS_EACH: Final = 64  # Concurrent circuits of a peer, that is, clients of a node behind NAT.
CIRCUIT_BUFFER_BYTES: Final = 64 << 10  # In each direction; p2pd's default of 16 MiB could exhaust the memory.
RELAY_FLAGS: Final = (
    f"-relayDataLimit={CIRCUIT_BYTES}",
    f"-relayMaxCircuits={CIRCUITS_EACH}",
    f"-relayBufferSize={CIRCUIT_BUFFER_BYTES}",
)
NO_RELAY_FLAGS: Final = ("-relayService=0",)
"""Without this p2pd grants strangers 4 GiB a circuit at every node that can be dialled. libp2p's defaults stay."""
SLACK_FILE: Final = "/proc/self/timerslack_ns"  # Linux's, proc_pid_timerslack_ns(5); inherited by children.
SLACK_NS: Final = 200_000_000
"""Starts in which the options win, measured on two cores: 30 of 30 with niced work, 30 of 30 with 4 busy processes,
20 of 20 with 12, where a quarter of this value gave 2 of 10. Without it 3 to 27 of 30. A start takes 0.3 s
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
"""The program that executes the daemon in its arguments, in its own session like every daemon."""
MAX_STARTS: Final = 8  # Without `SLACK_FILE`, if one of three starts is good, all eight fail in one case of 26.
ASK_TIMEOUT_S: Final = 10.0  # The daemon is on this machine; with 12 busy processes it took up to 3.3 s.


async def start_relay(
    start: Callable[[], Awaitable["Daemon"]], ask: Callable[["Daemon"], Awaitable[int | None]]
) -> "Daemon":
    """Start daemons until the circuits of one carry enough, at most `MAX_STARTS`. Raises as `start`."""
    for starts_left in reversed(range(MAX_STARTS)):
        daemon = await start()
        try:
            granted_bytes = await ask(daemon)
        except BaseException:
            await daemon.close()
            raise
        if granted_bytes is None:
            logger.warning("the limit at which this relay cuts links could not be determined")
            break
        if granted_bytes >= CIRCUIT_BYTES:
            break
        if starts_left == 0:
            logger.warning("this relay cuts links after %d bytes; start it again", granted_bytes)
            break
        await daemon.close()
    return daemon


async def ask_granted_bytes(daemon: "Daemon", *, host_maddrs: Sequence[str]) -> int | None:
    """The bytes that a circuit of this relay may carry in each direction; None if unknown."""
    if find_spec("libp2p") is None:
        return None
    from cosine_p2p.transport.light.light import LightConfig, LightTransport

    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            local = [
                maddr.replace("/0.0.0.0/", "/127.0.0.1/").replace("/::/", "/::1/") + f"/p2p/{daemon.peer_id}"
                for maddr in host_maddrs
                if not maddr.endswith("/tcp/0")
            ]
            dialable = tuple(maddr for maddr in (*await daemon.visible_maddrs(), *local) if "/tcp/" in maddr)
            us = await LightTransport.start(LightConfig(identity=Identity.generate(), initial_peers=dialable))
            try:
                granted = await ask_reservation(us.dial, daemon.peer_id, least_bytes=0, timeout_s=ASK_TIMEOUT_S)
                return granted.circuit_bytes
            finally:
                await us.close()
    except (PeerLost, UsageError, OSError, TimeoutError):
        logger.debug("our own relay could not be asked", exc_info=True)
        return None
