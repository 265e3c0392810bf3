"""The way into the network refuses what cannot work, in one sentence, and takes the transport that is asked for."""

import asyncio
import reprlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest

from cosine_p2p import AsyncClient, Client
from cosine_p2p import network as network_module
from cosine_p2p.access import Access
from cosine_p2p.network import TRANSPORT_VARIABLE, TransportKind, choose_transport, joining
from cosine_protocol.errors import PeerLost, UsageError

NOBODY = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWT3FTL4gp9kXNHAkxymcJGPWvEkBj7jiZfxmWzvur8f5g"
SHORT = reprlib.repr(NOBODY)
LIBRARIES = {TransportKind.FULL: "hivemind", TransportKind.LIGHT: "libp2p"}
INSTALLED = [kind for kind, library in LIBRARIES.items() if find_spec(library)]


@pytest.fixture(autouse=True)
def _no_choice_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRANSPORT_VARIABLE, raising=False)


def install(monkeypatch: pytest.MonkeyPatch, *, full: bool, light: bool = True) -> None:
    present = {"hivemind": full, "libp2p": light}
    monkeypatch.setattr(network_module, "find_spec", lambda name: object() if present[name] else None)


def test_no_initial_peers() -> None:
    with pytest.raises(UsageError, match="--initial-peers"):
        joining([], access=Access(network="test"))


@pytest.mark.parametrize(
    ("initial_peers", "sentence"),
    [
        (NOBODY, f"initial_peers must be a list of addresses, not {SHORT}; write [{SHORT}]."),
        (None, "initial_peers must be a list of addresses, not None."),
        ([7], "initial_peers must be a list of addresses, not [7]."),
        ([b"/ip4"], "initial_peers must be a list of addresses, not [b'/ip4']; decode bytes to text first."),
    ],
)
@pytest.mark.parametrize("kind", [AsyncClient, Client])
def test_what_is_no_list_of_addresses_is_refused_in_a_sentence(
    kind: Callable[[Any], object], initial_peers: Any, sentence: str
) -> None:
    with pytest.raises(UsageError) as refused:
        kind(initial_peers)
    assert str(refused.value) == sentence


@pytest.mark.network
@pytest.mark.skipif(TransportKind.LIGHT not in INSTALLED, reason="needs py-libp2p")
def test_light_names_the_initial_peer_that_does_not_answer() -> None:
    async def light() -> None:
        await joining([NOBODY], access=Access(network="test"), transport="light", patience_s=0.0)()

    with pytest.raises(PeerLost) as caught:
        asyncio.run(light())
    assert str(caught.value) == f"{NOBODY}: connection refused at 127.0.0.1:1"


@pytest.mark.parametrize(("full", "expected"), [(True, TransportKind.FULL), (False, TransportKind.LIGHT)])
def test_full_where_it_is_installed_else_light(
    full: bool, expected: TransportKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, full=full)
    assert choose_transport(None) is expected


@pytest.mark.parametrize(("asked", "part"), [("quick", "'quick'"), ("full", r"pip install ..\[node\]")])
def test_a_transport_that_is_not_there(asked: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, full=False)
    with pytest.raises(UsageError, match=part):
        AsyncClient([NOBODY], transport=asked)


def test_without_py_libp2p_the_light_transport_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, full=False, light=False)
    with pytest.raises(UsageError, match=r"pip install ..\[light\]'.*takes a C compiler and the GMP headers"):
        choose_transport(None)
