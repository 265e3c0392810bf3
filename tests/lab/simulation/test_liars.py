"""Lies as they go over the wire, and what a liar can overhear."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from cosine_lab.simulation.liars import (
    LIES,
    Liar,
    LiarRequest,
    Overheard,
    OverheardIdentity,
    replay,
)
from cosine_lab.simulation.participants import LATE_S
from cosine_lab.simulation.running import run_scenario
from cosine_lab.simulation.scenario import Scenario
from cosine_protocol import messages as m
from cosine_protocol.codec import decode_body, encode_body
from cosine_protocol.errors import BadSignature, MalformedMessage
from cosine_protocol.identity import Identity, verify
from cosine_protocol.nodes import BASE, Node, NodeBlock
from cosine_protocol.records import Role

VOCAB_TOKENS = 12
D_0 = bytes(range(16))
IDENTITY = Identity.from_seed(b"\x01" * 32)
OTHER = Identity.from_seed(b"\x02" * 32)


def said(name: str, liar: Liar) -> list[m.Message]:
    messages: Iterable[m.Message] = LIES[name](liar, LiarRequest(3, D_0, D_0, 0))
    return list(messages)


def liar_who_heard(heard: Overheard | None = None) -> Liar:
    return Liar(IDENTITY, replay, vocab_tokens=VOCAB_TOKENS, overheard=heard)


def draft_of(tokens: tuple[int, ...], confidence: float = 0.2) -> m.Draft:
    nodes = tuple(Node(index - 1 if index else BASE, token, confidence) for index, token in enumerate(tokens))
    return m.Draft(3, 1, D_0, 0, NodeBlock.of(nodes))


@pytest.mark.parametrize("name", ["certain_garbage", "wide_garbage", "flood"])
def test_garbage_is_signed_well_and_certain(name: str) -> None:
    messages = said(name, liar_who_heard())
    assert messages
    for message in messages:
        assert isinstance(message, m.Fragment)
        verify(kind="fragment", signer=IDENTITY.peer_id, digest=D_0, body=message.body, signature=message.signature)
        draft = decode_body(m.Draft, message.body)
        assert all(node.confidence == 1 and node.token < VOCAB_TOKENS for node in draft.nodes)


def test_other_lies_are_what_they_are_called() -> None:
    (stolen,) = said("foreign_signature", liar_who_heard())
    assert isinstance(stolen, m.Fragment)
    with pytest.raises(BadSignature):
        verify(kind="fragment", signer=IDENTITY.peer_id, digest=D_0, body=stolen.body, signature=stolen.signature)
    (broken,) = said("broken_body", liar_who_heard())
    assert isinstance(broken, m.Fragment)
    with pytest.raises(MalformedMessage):
        decode_body(m.Draft, broken.body)
    assert said("silence", liar_who_heard()) == []


def test_what_others_sign_is_replayed_under_the_liars_own_name() -> None:
    heard = Overheard()
    honest = OverheardIdentity(OTHER, heard)
    assert honest.peer_id == OTHER.peer_id
    body = encode_body(draft_of((4, 5)))
    assert honest.sign(kind="fragment", digest=D_0, body=body) == OTHER.sign(kind="fragment", digest=D_0, body=body)
    (message,) = said("replay", liar_who_heard(heard))
    assert isinstance(message, m.Fragment)
    verify(kind="fragment", signer=IDENTITY.peer_id, digest=D_0, body=message.body, signature=message.signature)
    draft = decode_body(m.Draft, message.body)
    assert draft.nodes.tokens == (4, 5)
    assert {node.confidence for node in draft.nodes} == {1.0}


HONEST = Scenario(drafters=1, fidelities=(0.9,), requests=1, max_new_tokens=200, vocab_tokens=VOCAB_TOKENS)


def test_the_copy_of_a_good_drafters_work_arrives_and_does_no_harm() -> None:
    alone, beside = (run_scenario(replace(HONEST, faults=faults)) for faults in ("", "liar=replay"))
    assert beside.violations() == []
    assert beside.results[0].drafted > alone.results[0].drafted
    assert beside.results[0].seconds < 1.1 * alone.results[0].seconds


def test_one_late_on_purpose_announces_a_speed_it_does_not_have() -> None:
    alone, beside = (run_scenario(replace(HONEST, faults=faults)) for faults in ("", "liar=late"))
    (late,) = [node for node in beside.nodes if node.domain == "liar-0"]
    assert late.passes > 0
    assert late.busy_s / late.passes > LATE_S > HONEST.curve(Role.DRAFTER).seconds(HONEST.prompt_tokens)
    assert beside.violations() == []
    assert beside.results[0].seconds < 1.1 * alone.results[0].seconds
