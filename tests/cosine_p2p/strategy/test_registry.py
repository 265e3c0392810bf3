"""Strategies by name."""

import pytest

from cosine_p2p.client import AsyncClient
from cosine_p2p.strategy.registry import STRATEGIES
from cosine_protocol.errors import UsageError


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_goes_by_its_name(name: str) -> None:
    kind = STRATEGIES[name]
    assert kind.name == name
    assert kind.wants_drafters is (name != "plain")


def test_the_promised_ones_are_there() -> None:
    assert set(STRATEGIES) == {"plain", "cosine"}


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(UsageError, match="cosine, plain"):
        AsyncClient(strategy="magic")
