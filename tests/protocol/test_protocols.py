"""Which message belongs on which protocol, and how a stream starts."""

import re

import pytest

from cosine_protocol import messages as m
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.protocols import (
    DISCOVER,
    DRAFT,
    MESSAGES,
    STATUS,
    TAGS,
    VERIFY,
    VERSION,
    check_allowed,
    common_features,
)
from tests.protocol.strategies import least_of


def test_every_message_belongs_somewhere() -> None:
    assert {cls for messages in MESSAGES.values() for cls in messages.values()} == set(TAGS.values())


@pytest.mark.parametrize("protocol", MESSAGES)
def test_upkeep_belongs_everywhere(protocol: str) -> None:
    assert {m.Hello, m.Ping, m.Pong, m.Error} <= set(MESSAGES[protocol].values())
    assert re.fullmatch(r"/cosine/[a-z]+/[12]\.0\.0", protocol)


@pytest.mark.parametrize("protocol", MESSAGES)
def test_a_message_passes_exactly_where_it_belongs(protocol: str) -> None:
    for cls in TAGS.values():
        message = least_of(cls)
        if cls in MESSAGES[protocol].values():
            check_allowed(protocol, message)
        else:
            with pytest.raises(MalformedMessage, match=f"{cls.__name__} does not belong on {protocol}"):
                check_allowed(protocol, message)


def test_no_request_of_one_protocol_is_taken_on_another() -> None:
    for cls, home in ((m.Open, VERIFY), (m.Start, DRAFT), (m.AskRecords, DISCOVER), (m.AskStatus, STATUS)):
        assert [protocol for protocol, messages in MESSAGES.items() if cls in messages.values()] == [home]


def test_features_are_those_of_both_ends() -> None:
    hello = m.Hello(VERSION, ("a", "b"), "agent")
    assert common_features(("b", "c"), hello) == {"b"}
    assert common_features((), hello) == frozenset()


def test_another_version_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="version 2, we speak 1"):
        common_features((), m.Hello(VERSION + 1, (), "agent"))
