"""The way into the network refuses what cannot work, in one sentence."""

import asyncio

import pytest

from cosine_p2p.network import joining
from cosine_protocol.errors import UsageError


def test_no_initial_peers() -> None:
    with pytest.raises(UsageError, match="--initial-peers"):
        joining([], network="test")


@pytest.mark.parametrize("address", ["", "localhost:4001", "/ip4/not-an-address/tcp/1", "/ip4/127.0.0.1/tcp/1"])
def test_a_malformed_address_is_named(address: str) -> None:
    async def joined() -> None:
        await joining([address], network="test")()

    with pytest.raises(UsageError) as caught:
        asyncio.run(joined())
    assert "\n" not in str(caught.value)
    assert address in str(caught.value)
