"""Tests of errors on joining a network, and of the choice of a transport."""

import reprlib
from collections.abc import Callable
from typing import Any

import pytest

from cosine_p2p import AsyncClient, Client
from cosine_p2p import network as network_module
from cosine_p2p.network import TRANSPORT_VARIABLE, choose_transport
from cosine_protocol.errors import UsageError

NOBODY = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWT3FTL4gp9kXNHAkxymcJGPWvEkBj7jiZfxmWzvur8f5g"
SHORT = reprlib.repr(NOBODY)


@pytest.fixture(autouse=True)
def _no_choice_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRANSPORT_VARIABLE, raising=False)


def install(monkeypatch: pytest.MonkeyPatch, *, full: bool, light: bool = True) -> None:
    present = {"hivemind": full, "libp2p": light}
    monkeypatch.setattr(network_module, "find_spec", lambda name: object() if present[name] else None)


@pytest.mark.parametrize(
    ("initial_peers", "sentence"),
    [
        (NOBODY, f"initial_peers must be a list of addresses, not {SHORT}; write [{SHORT}]."),
        (None, "initial_peers must be a list of addresses, not None."),
    ],
)
@pytest.mark.parametrize("kind", [AsyncClient, Client])
def test_bad_address_lists_are_refused(kind: Callable[[Any], object], initial_peers: Any, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        kind(initial_peers)
    assert str(refused.value) == sentence


@pytest.mark.parametrize(("asked", "part"), [("quick", "'quick'"), ("full", r"pip install . './node\[torch\]'")])
def test_a_transport_that_is_not_there(asked: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, full=False)
    with pytest.raises(UsageError, match=part):
        AsyncClient([NOBODY], transport=asked)


def test_without_py_libp2p_the_light_transport_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, full=False, light=False)
    with pytest.raises(UsageError, match=r"pip install ..\[light\]'.*takes a C compiler and the GMP headers"):
        choose_transport(None)
