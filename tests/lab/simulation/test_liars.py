"""Lies as sent over the network, and the drafts that a liar can overhear."""

import pytest

from cosine_lab.simulation.liars import LIES, Liar, LiarRequest, Overheard, OverheardIdentity, replay
from cosine_protocol.codec import Message
from cosine_protocol.draft import BASE, Draft, Fragment, Node, NodeBlock
from cosine_protocol.fields import decode_body, encode_body
from cosine_protocol.identity import Identity, verify

VOCAB_TOKENS = 12
D_0 = bytes(range(16))
IDENTITY = Identity.from_seed(b"\x01" * 32)
OTHER = Identity.from_seed(b"\x02" * 32)


def said(name: str, heard: Overheard | None = None) -> list[Message]:
    liar = Liar(IDENTITY, replay, vocab_tokens=VOCAB_TOKENS, overheard=heard)
    return list(LIES[name](liar, LiarRequest(3, D_0, D_0, 0)))


@pytest.mark.parametrize("name", ["certain_garbage", "wide_garbage", "flood"])
def test_garbage_is_signed_well_and_certain(name: str) -> None:
    messages = said(name)
    assert messages
    for message in messages:
        assert isinstance(message, Fragment)
        verify(kind="fragment", signer=IDENTITY.peer_id, digest=D_0, body=message.body, signature=message.signature)
        draft = decode_body(Draft, message.body)
        assert all(node.confidence == 1 and node.token < VOCAB_TOKENS for node in draft.nodes)


def test_what_others_sign_is_replayed_under_the_liars_own_name() -> None:
    heard = Overheard()
    honest = OverheardIdentity(OTHER, heard)
    nodes = (Node(BASE, 4, 0.2), Node(0, 5, 0.2))
    body = encode_body(Draft(3, 1, D_0, 0, NodeBlock.of(nodes)))
    assert honest.sign(kind="fragment", digest=D_0, body=body) == OTHER.sign(kind="fragment", digest=D_0, body=body)
    (message,) = said("replay", heard)
    assert isinstance(message, Fragment)
    verify(kind="fragment", signer=IDENTITY.peer_id, digest=D_0, body=message.body, signature=message.signature)
    assert [(node.token, node.confidence) for node in decode_body(Draft, message.body).nodes] == [(4, 1), (5, 1)]
