"""`cosine-node invite` prints a link that its own parser and a camera read."""

import io
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cosine_p2p.invitation import Invitation
from tests.node.cli.conftest import Run
from tests.qr_codes import read_code

PEER = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
FAR, NEAR, HERE = (f"/ip4/{host}/tcp/4001/p2p/{PEER}" for host in ("8.8.8.8", "192.168.1.5", "127.0.0.1"))


def test_the_link_holds_addresses_network_and_last_day(run: Run) -> None:
    told = run("invite", "--initial-peers", FAR, "--network", "home")
    link = told.out.strip()
    day = (datetime.now(UTC) + timedelta(days=7)).date()
    assert Invitation.read(link) == Invitation(addresses=(FAR,), network="home", last_day=day)
    assert f"Valid until {day}." in told.err
    assert "reaches these addresses" not in told.err


def test_an_invitation_can_be_made_of_another_and_have_no_end(run: Run) -> None:
    link = Invitation(addresses=(NEAR,), network="home").link
    shown = json.loads(run("invite", "--initial-peers", link, "--days", "0", "--json").out)
    assert shown == {"link": link, "addresses": [NEAR], "network": "home", "last_day": None}


@pytest.mark.parametrize(("address", "whose"), [(NEAR, "machines of this local network"), (HERE, "this machine")])
def test_it_says_how_far_its_addresses_reach(run: Run, address: str, whose: str) -> None:
    assert f"Only {whose} reach" in run("invite", "--initial-peers", address).err


def test_the_code_in_a_terminal_fits_on_a_screen_of_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", terminal)
    run("invite", "--initial-peers", FAR, "--network", "home")
    *code, link, _ = terminal.getvalue().split("\n")
    assert Invitation.read(link).network == "home"
    assert read_code(code) == link
    assert 20 < len(code) <= 24


def test_a_founder_makes_a_link_that_admits_one_member(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    founder = str(tmp_path / "friends")
    swarm_id = run("swarm", "create", "friends", "--folder", founder).out.split()[0]
    told = run("invite", "--folder", founder, "--initial-peers", FAR)
    assert "its holder is that member" in told.err
    invitation = Invitation.read(told.out.strip())
    assert (invitation.network, invitation.addresses) == (swarm_id, (FAR,))
    other = Invitation.read(run("invite", "--folder", founder, "--initial-peers", FAR).out.strip())
    assert other.admission != invitation.admission
    unit = run("service", "draft", told.out.strip(), "--model", "ngram", "--target", "zoo:target").out
    assert f"/swarms/{swarm_id}/" in unit and "certificate=" not in unit


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("invite", "Give the address of a node"),
        (f"invite --initial-peers {FAR} --days -1", "--days must be between 0 and 3660."),
        (f"invite --initial-peers {FAR} --folder nowhere --days 0", "above 0 and at most 366"),
        (f"invite --initial-peers {FAR} --folder nowhere", "nowhere holds no swarm"),
        ("invite --initial-peers /ip4/8.8.8.8/tcp/4001", "whose address it is"),
        (f"invite --initial-peers cosine:network=a,{FAR} --network b", "to the network a, and b is given"),
    ],
)
def test_mistakes_are_named(run: Run, line: str, sentence: str) -> None:
    told = run(*line.split())
    assert (told.code, sentence in told.err) == (2, True)
