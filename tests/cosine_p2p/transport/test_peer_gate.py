"""Streams through a gate: members pass, other peers get one error, and former members are disconnected."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cosine_lab.emulation.memory_transport import MemoryNetwork
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_p2p.transport.base import Stream
from cosine_p2p.transport.peer_gate import GREETING_S, PeerGate
from cosine_p2p.trust.denied_peers import DeniedPeers
from cosine_protocol.codec import FrameDecoder, Message, decode, encode, encode_frame
from cosine_protocol.errors import ErrorCode, PeerLost
from cosine_protocol.membership import Member, Revoked
from cosine_protocol.stream import Error, Hello
from tests.cosine_p2p.private_swarm import PrivateSwarm
from tests.cosine_p2p.samples import identity_of
from tests.scenes import in_virtual_time

NODE, CLIENT = identity_of(1).peer_id, identity_of(2).peer_id
ECHO = "/echo"

Play = Callable[[Stream], Awaitable[None]]


async def echo(stream: Stream) -> None:
    while data := await stream.read():
        await stream.write(data)


@in_virtual_time
async def between(node: PeerGate | None, client: PeerGate | None, play: Play) -> None:
    network = MemoryNetwork()
    serving, dialling = network.join(NODE, node), network.join(CLIENT, client)
    await serving.serve(ECHO, echo)
    try:
        await play(await dialling.dial(NODE, ECHO))
    finally:
        await dialling.close()
        await serving.close()


async def all_of(stream: Stream) -> list[Message]:
    data = b""
    while piece := await stream.read():
        data += piece
    bodies = FrameDecoder().feed(data)
    assert data == b"".join(map(encode_frame, bodies))
    return list(map(decode, bodies))


async def echoes(stream: Stream) -> None:
    assert stream.peer_id == NODE
    for data in (b"one", b"two"):
        await stream.write(data)
        assert await stream.read() == data


def test_members_talk_and_without_a_swarm_everybody() -> None:
    swarm = PrivateSwarm()
    between(PeerGate(swarm.member(NODE)), PeerGate(swarm.member(CLIENT)), echoes)
    between(None, None, echoes)
    between(PeerGate(), PeerGate(denied=DeniedPeers()), echoes)


@pytest.mark.parametrize(
    "first",
    [b"", encode_frame(encode(Hello(1, (), "a"))), encode_frame(b"junk"), b"\xff\xff\xff\xff", b"\0\0"],
    ids=["nothing", "a hello", "junk", "too long a frame", "half a frame"],
)
def test_a_peer_without_a_certificate_gets_one_error_and_a_silent_one_nothing(first: bytes) -> None:
    async def play(stream: Stream) -> None:
        began_s = asyncio.get_running_loop().time()
        await stream.write(first)
        messages = await all_of(stream)
        is_silent = not first[4:] and first[:1] != b"\xff"
        assert [getattr(message, "code", None) for message in messages] == [ErrorCode.NOT_ADMITTED] * (
            not is_silent
        )
        if is_silent:
            assert asyncio.get_running_loop().time() - began_s == pytest.approx(GREETING_S, abs=0.1)

    between(PeerGate(PrivateSwarm().member(NODE)), None, play)


def test_a_member_sends_a_stranger_nothing_but_its_certificate() -> None:
    swarm = PrivateSwarm()
    ours = swarm.member(CLIENT, revocations=swarm.revoke(sequence=5))
    heard: list[Message] = []

    async def run() -> None:
        network = MemoryNetwork()
        stranger, member = network.join(NODE), network.join(CLIENT, PeerGate(ours))

        async def listen(stream: Stream) -> None:
            heard.extend(await all_of(stream))

        await stranger.serve(ECHO, listen)
        with pytest.raises(PeerLost, match="no membership within"):
            await member.dial(NODE, ECHO)
        await asyncio.sleep(1)
        await stranger.close()

    run_virtual(run())
    assert heard == [Member(ours.certificate, 5)]


@pytest.mark.parametrize("knowing", ["node", "client"])
def test_the_newest_list_of_revoked_certificates_is_passed_on(knowing: str) -> None:
    swarm = PrivateSwarm()
    newest, old = swarm.revoke(identity_of(3).peer_id, sequence=4), swarm.revoke(sequence=2)
    of_node, of_client = (newest, old) if knowing == "node" else (old, newest)
    node, client = swarm.member(NODE, revocations=of_node), swarm.member(CLIENT, revocations=of_client)
    between(PeerGate(node), PeerGate(client), echoes)
    assert node.sequence == client.sequence == 4
    assert node.revocations == client.revocations == newest


def test_a_denied_peer_gets_one_error_and_is_not_dialled() -> None:
    async def gets_one_error(stream: Stream) -> None:
        [error] = await all_of(stream)
        assert isinstance(error, Error)
        assert (error.number, error.code) == (0, ErrorCode.NOT_ADMITTED)

    between(PeerGate(denied=DeniedPeers([CLIENT])), None, gets_one_error)
    swarm = PrivateSwarm()
    denying = PeerGate(swarm.member(NODE), DeniedPeers([CLIENT]))
    with pytest.raises(PeerLost, match="it is denied"):
        between(denying, PeerGate(swarm.member(CLIENT)), echoes)
    with pytest.raises(PeerLost, match="it is denied"):
        between(None, PeerGate(denied=DeniedPeers([NODE])), echoes)


def test_a_list_that_was_promised_must_come() -> None:
    swarm = PrivateSwarm()
    for second in (Hello(1, (), "a"), Revoked(PrivateSwarm(seed=78).revoke(sequence=9))):

        async def play(stream: Stream, then: Message = second) -> None:
            await stream.write(encode_frame(encode(Member(swarm.admit(CLIENT), 9))))
            await stream.write(encode_frame(encode(then)))
            shown, error = await all_of(stream)
            assert isinstance(shown, Member) and isinstance(error, Error)
            assert error.code == ErrorCode.NOT_ADMITTED

        between(PeerGate(swarm.member(NODE)), None, play)
