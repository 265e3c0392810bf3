"""The remote calls of hivemind's DHT through a peer gate, in a private swarm with certificates both ways.

The access token in each request and answer contains the sender's certificate, and the newest list of revoked
certificates if the other end knows an older one (docs/protocol.md, section 10).
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from cosine_p2p.transport.full.library import dht_pb2
from cosine_p2p.transport.peer_gate import PeerGate
from cosine_protocol.errors import NotAMember
from cosine_protocol.membership import MAX_REVOCATIONS_BYTES

SEQUENCE_BYTES: Final = 8  # The width of a sequence number in `nonce`.


class GatedHandlers:
    """The handlers of a hivemind protocol; a peer that the gate refuses gets only the reason."""

    def __init__(self, protocol: Any, gate: PeerGate) -> None:
        self._gate = gate
        self.rpc_ping = partial(self._answer, protocol.rpc_ping)
        self.rpc_store = partial(self._answer, protocol.rpc_store)
        self.rpc_find = partial(self._answer, protocol.rpc_find)

    async def _answer(self, method: Callable[..., Awaitable[Any]], request: Any, context: Any) -> Any:
        peer_id = context.remote_id.to_base58()
        auth = request.auth
        self._gate.check(peer_id, auth.client_access_token.signature)
        membership = self._gate.membership
        if membership is None:
            return await method(request, context)
        if auth.signature:
            membership.take_revocations(auth.signature[:MAX_REVOCATIONS_BYTES])
            self._gate.check_met(peer_id)
        response = await method(request, context)
        response.auth.service_access_token.signature = membership.certificate
        response.auth.nonce = membership.sequence.to_bytes(SEQUENCE_BYTES)
        if _sequence(auth.nonce) < membership.sequence:
            response.auth.signature = membership.revocations
        return response


class GatedStub:
    """The calls to one peer. In a private swarm a peer is first asked for its certificate.

    Timeouts are applied here: below Python 3.12 hivemind's `asyncio.wait_for` loses a cancellation that arrives
    with the answer. Raises `NotAMember`, which hivemind treats as silence.
    """

    def __init__(self, stub: Any, peer: Any, gate: PeerGate) -> None:
        self._stub = stub
        self._peer_id = peer.to_base58()
        self._gate = gate

    async def rpc_ping(self, request: Any, timeout: float | None = None) -> Any:  # noqa: ASYNC109  # hivemind's name
        self._gate.check_denied(self._peer_id)
        async with asyncio.timeout(timeout):
            return await self._ask(self._stub.rpc_ping, request)

    async def rpc_store(self, request: Any, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        async with asyncio.timeout(timeout):
            await self._ask_for_membership()
            return await self._ask(self._stub.rpc_store, request)

    async def rpc_find(self, request: Any, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        async with asyncio.timeout(timeout):
            await self._ask_for_membership()
            return await self._ask(self._stub.rpc_find, request)

    async def _ask_for_membership(self) -> None:
        try:
            self._gate.check_met(self._peer_id)
        except NotAMember:
            # A ping reveals only the certificate, which a stream would begin with.
            await self.rpc_ping(dht_pb2.PingRequest())

    async def _ask(self, method: Callable[[Any], Awaitable[Any]], request: Any) -> Any:
        membership = self._gate.membership
        if membership is None:
            return await method(request)
        told = membership.sequence
        request.auth.client_access_token.signature = membership.certificate
        request.auth.nonce = told.to_bytes(SEQUENCE_BYTES)
        response = await method(request)
        auth = response.auth
        self._gate.check(self._peer_id, auth.service_access_token.signature)
        if auth.signature:
            membership.take_revocations(auth.signature[:MAX_REVOCATIONS_BYTES])
            self._gate.check_met(self._peer_id)
        if _sequence(auth.nonce) < told and not request.auth.signature:
            ping = dht_pb2.PingRequest()
            ping.auth.signature = membership.revocations
            await self._ask(self._stub.rpc_ping, ping)
        return response


def _sequence(nonce: bytes) -> int:
    return int.from_bytes(nonce[:SEQUENCE_BYTES])
