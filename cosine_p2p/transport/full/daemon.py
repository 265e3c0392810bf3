"""One p2pd child process: start, dial, accept, and end without leftovers.

hivemind reports a dead daemon as alive and lets calls hang; here every call has a deadline and `ended` returns when
the process does.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from multiaddr import Multiaddr

from cosine_p2p.transport.config import TransportConfig, check_ports_free
from cosine_p2p.transport.full.hivemind_patches import end, listen, mend_calls, p2p_class
from cosine_p2p.transport.full.library import P2PDaemonError, PeerID, p2pd_pb2, read_pbmsg_safe, write_pbmsg
from cosine_p2p.transport.full.sockets import make_socket_folder
from cosine_p2p.transport.hosts import mtu_bytes
from cosine_p2p.transport.reach import parsed
from cosine_protocol.errors import BadSignature, PeerLost, UsageError
from cosine_protocol.identity import multihash_of

DIAL_BACKOFF: Final = "dial backoff"  # p2pd's error for a peer that it recently could not reach.
DIAL_AGAIN_S: Final = 2.0  # p2pd waits 5 s after a first failure, and longer after more (go-libp2p, swarm_dial.go).
QUIC_BYTES: Final = 1280  # The size of p2pd's first packets, which are dropped at a lower MTU.
CONTROL_TIMEOUT_S: Final = 5.0  # The daemon is on this machine.

Accept = Callable[[str, str, asyncio.StreamReader, asyncio.StreamWriter], None]


def _options(
    config: TransportConfig, host_maddrs: Sequence[str], peers: Sequence[str], *, is_private: bool
) -> dict[str, Any]:
    options: dict[str, Any] = {
        "initial_peers": list(peers) or None,
        "identity_path": str(config.identity_file),
        "check_if_identity_free": False,  # hivemind reads RSA keys only there
        "startup_timeout": config.start_timeout_s,
        "auto_nat": not config.is_loopback,
        "nat_port_map": not config.is_loopback and not config.client_mode,
        "announce_maddrs": list(config.announce_maddrs) or None,
        # p2pd would otherwise take half a minute to detect that it is behind a NAT.
        "force_reachability": "public" if config.is_relay else "private" if is_private else None,
        "host_maddrs": list(host_maddrs),
    }
    if config.client_mode:
        options["dht_mode"] = "client"
    if not config.has_ports:
        options |= {"no_listen": True, "host_maddrs": None}
    return options


class Daemon:
    """A running p2pd and our connections to it. Created by `start_daemon`."""

    def __init__(self, p2p: Any, folder: Path) -> None:
        self.p2p = p2p
        self.peer_id: str = p2p.peer_id.to_base58()
        self._folder = folder
        self._control = p2p._client.control
        mend_calls(self._control)

    async def ended(self) -> int:
        return int(await self.p2p._child.wait())

    async def serve(self, protocol: str, accept: Accept) -> None:
        """Pass every stream that peers open on `protocol` to `accept`. Raises `PeerLost` for our own daemon."""
        if protocol in self._control.handlers:
            # p2pd refuses a second handler.
            return

        async def on_stream(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accept(info.peer_id.to_base58(), protocol, reader, writer)

        try:
            await self._answered(self._control.stream_handler(protocol, on_stream))
        except PeerLost:
            self._control.handlers.pop(protocol, None)
            raise

    async def withdraw(self, protocol: str) -> None:
        with suppress(PeerLost):
            await self._answered(self._control.remove_stream_handler(protocol))

    async def open(
        self, peer_id: str, protocol: str, timeout_s: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a stream. Raises `PeerLost` with the reason, at the latest after `timeout_s`."""
        request = p2pd_pb2.Request(
            type=p2pd_pb2.Request.STREAM_OPEN,
            streamOpen=p2pd_pb2.StreamOpenRequest(peer=_peer_bytes(peer_id), proto=[protocol]),
        )
        return await self._call(request, peer_id, timeout_s)

    async def connect(self, peer_id: str, maddrs: Sequence[str], timeout_s: float) -> None:
        """Connect to a peer at one of its addresses. Raises `PeerLost`."""
        addresses = [Multiaddr(maddr.removesuffix(f"/p2p/{peer_id}")).to_bytes() for maddr in maddrs]
        request = p2pd_pb2.Request(
            type=p2pd_pb2.Request.CONNECT,
            connect=p2pd_pb2.ConnectRequest(peer=_peer_bytes(peer_id), addrs=addresses),
        )
        _, writer = await self._call(request, peer_id, timeout_s)
        writer.close()

    async def disconnect(self, peer_id: str) -> None:
        with suppress(PeerLost):
            await self._answered(self._control.disconnect(PeerID.from_base58(peer_id)))

    async def visible_maddrs(self) -> tuple[str, ...]:
        """Our own addresses as p2pd announces them. Raises `PeerLost` for our own daemon."""
        _, maddrs = await self._answered(self._control.identify())
        return tuple(f"{maddr}/p2p/{self.peer_id}" for maddr in maddrs)

    async def ways(self) -> dict[str, tuple[str, ...]]:
        """The addresses of all connections, by peer. Raises as `visible_maddrs`."""
        peers = await self._answered(self._control.list_peers())
        ways: dict[str, tuple[str, ...]] = {}
        for peer in peers:
            peer_id = peer.peer_id.to_base58()
            ways[peer_id] = (*ways.get(peer_id, ()), *map(str, peer.addrs))
        return ways

    async def close(self) -> None:
        await end(self.p2p)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _answered(self, call: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(CONTROL_TIMEOUT_S):
                return await call
        except (OSError, EOFError, TimeoutError, P2PDaemonError) as error:
            raise PeerLost(self.peer_id, f"the local network daemon does not answer ({error})") from None

    async def _call(
        self, request: Any, peer_id: str, timeout_s: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await self._control.daemon_connector.open_connection()
                try:
                    await write_pbmsg(writer, request)
                    response = p2pd_pb2.Response()
                    await read_pbmsg_safe(reader, response)
                except BaseException:
                    writer.transport.abort()
                    raise
        except TimeoutError:
            raise PeerLost(peer_id, f"no answer to our dial within {timeout_s:g} s") from None
        except (OSError, EOFError):
            reason = "the local network daemon is not running"
            raise PeerLost(peer_id, reason, retry_after_s=DIAL_AGAIN_S) from None
        if response.type == p2pd_pb2.Response.ERROR:
            error = str(response.error.msg)
            writer.transport.abort()
            retry_after_s = DIAL_AGAIN_S if DIAL_BACKOFF in error else None
            raise PeerLost(peer_id, plain_reason(error), retry_after_s=retry_after_s)
        return reader, writer


async def start_daemon(
    config: TransportConfig, *, host_maddrs: Sequence[str], peers: Sequence[str], is_private: bool = False
) -> Daemon:
    """Start p2pd and connect to `peers`, at least one of which must answer; `is_private`: no peer can dial it.

    Raises `UsageError` for addresses that cannot be listened on, and `PeerLost` naming unreachable peers, or p2pd
    if it ended without an error.
    """
    if config.has_ports:
        check_ports_free(host_maddrs)
    folder = make_socket_folder()
    created: list[Any] = []
    try:
        p2p = await p2p_class(folder, created).create(**_options(config, host_maddrs, peers, is_private=is_private))
        await listen(p2p)
        return Daemon(p2p, folder)
    except BaseException as error:
        for p2p in created:
            await end(p2p)
        shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(error, P2PDaemonError | OSError | EOFError | TimeoutError):
            raise
        if "bootstrap peers" in str(error):
            raise PeerLost(", ".join(peers), _why_no_answer(peers)) from None
        reason = str(error).removeprefix("Daemon failed to start: ")
        if reason == "None":
            # It was killed: the user's options are not the cause.
            raise PeerLost("p2pd", "it ended during its start; `cosine-node doctor` looks for the reason") from None
        raise UsageError(
            f"The network daemon p2pd did not start ({reason}); `cosine-node doctor` looks for the reason."
        ) from None


def _why_no_answer(maddrs: Sequence[str]) -> str:
    if not all("/quic-v1" in maddr for maddr in maddrs):
        return "no answer from there; check the address and that a node is running at it"
    known = [mtu_bytes(address.host) for address in map(parsed, maddrs) if address is not None]
    least = min((mtu for mtu in known if mtu is not None), default=QUIC_BYTES)
    here = f", and {least:,} do here" if least < QUIC_BYTES else " all the way"
    return (
        f"no answer over QUIC, which needs packets of {QUIC_BYTES:,} bytes to pass{here}; name an address over TCP"
    )


def _peer_bytes(peer_id: str) -> bytes:
    try:
        return multihash_of(peer_id)
    except BadSignature:
        raise PeerLost(peer_id, "that is not a peer id") from None


def plain_reason(error: str) -> str:
    """Return p2pd's error as a clause that a user understands."""
    if "protocols not supported" in error:
        return "it does not serve " + error.rpartition("[")[2].rstrip("]")
    if "routing: not found" in error:
        return "no address of it is known in the network"
    if "peer id mismatch" in error:
        other = error.partition("key matches ")[2].partition(" ")[0].strip()
        return f"another peer answers at its address, {other}"
    if "not yet valid" in error:
        return "its certificate is not valid yet by this machine's clock, which is behind"
    if "negotiate security protocol" in error:
        return "the program at its address is not a peer"
    if "connection refused" in error:
        return "nothing listens at its address any more"
    if DIAL_BACKOFF in error:
        return "a recent attempt to reach it failed"
    return " ".join(error.split())[:200]
