"""An invitation says what it was made of, and is refused in a sentence where it does not hold."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.access import Access
from cosine_p2p.invitation import SCHEME, Invitation, NewMember, follow_invitations
from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_p2p.trust.membership import read_swarm_file
from cosine_protocol.errors import UsageError
from cosine_protocol.identity import Identity
from cosine_protocol.membership import CERTIFICATE_LINE, as_line, sign_certificate

PEER = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
NEAR, NAMED = f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}", f"/dns4/node.example.org/tcp/443/p2p/{PEER}"
TODAY = datetime.now(UTC).date()


@given(
    addresses=st.lists(st.sampled_from((NEAR, NAMED)), min_size=1, max_size=4),
    network=st.text(min_size=1),
    is_private=st.booleans(),
    last_day=st.none() | st.dates(),
)
def test_links_are_read_back(addresses: list[str], network: str, is_private: bool, last_day: date | None) -> None:
    invitation = Invitation(addresses=tuple(addresses), network=network, is_private=is_private, last_day=last_day)
    assert Invitation.read(invitation.link) == invitation
    assert set(invitation.link).isdisjoint(" \t\n\"'`$&|;<>()*?[]{}!#\\")


def test_a_link_names_only_what_differs_from_the_default() -> None:
    assert Invitation(addresses=(NEAR,)).link == f"cosine:{NEAR}"
    told = Invitation(addresses=(NEAR, NAMED), network="home", last_day=date(2030, 1, 2))
    assert told.link == f"cosine:network=home,until=2030-01-02,{NEAR},{NAMED}"


def test_links_and_addresses_lead_into_one_network() -> None:
    home = Invitation(addresses=(NEAR,), network="home", last_day=TODAY).link
    assert follow_invitations([NAMED], Access()) == ((NAMED,), Access())
    assert follow_invitations([home, NAMED], Access()) == ((NEAR, NAMED), Access(network="home"))
    assert follow_invitations([home], Access(network="home"))[1].network == "home"


@pytest.mark.parametrize(
    ("link", "says"),
    [
        (Invitation(addresses=(NEAR,), last_day=TODAY - timedelta(days=1)).link, "was valid until"),
        (Invitation(addresses=(NEAR,), network="away").link, "to the network away, and home is given"),
        (f"cosine:{NEAR}", f"to the network {DEFAULT_NETWORK}, and home is given"),
        (
            Invitation(addresses=(NEAR,), network="s1", is_private=True).link,
            "private swarm s1, which needs --swarm",
        ),
        (SCHEME, "Nothing is known of ''"),
        (f"cosine:until=soon,{NEAR}", "'soon' is no day"),
        (f"cosine:network=a,network=b,{NEAR}", "of 'network=b'"),
        (f"cosine:network=a,swarm=b,{NEAR}", "a network and a private swarm"),
        (f"cosine:colour=red,{NEAR}", "of 'colour=red'"),
        ("cosine:network=home", "1 to 4 addresses, not 0"),
        ("cosine:" + ",".join([NEAR] * 5), "1 to 4 addresses, not 5"),
        ("cosine:/ip4/192.0.2.1/tcp/4001", "whose address it is"),
        ("cosine:/nowhere", "is not a multiaddr"),
    ],
)
def test_an_invitation_that_does_not_hold_is_refused_in_a_sentence(link: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        follow_invitations([link], Access(network="home"))


NOW_S, DAY_S = datetime.now(UTC).timestamp(), 86_400.0
SEED = bytes(range(32))
GUEST = Identity.from_seed(SEED).peer_id


def admission(founder: Identity, *, member: str = GUEST, starts_at_s: float = NOW_S) -> NewMember:
    certificate = sign_certificate(
        founder, name="friends", member=member, serial=1, starts_at_s=starts_at_s, lifetime_s=7 * DAY_S
    )
    return NewMember(SEED, certificate)


@pytest.fixture
def founder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Identity:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return Identity.from_seed(bytes(32))


def test_a_link_for_a_new_member_holds_all_that_it_needs(founder: Identity) -> None:
    invitation = Invitation.admitting(admission(founder), (NEAR,))
    assert Invitation.read(invitation.link) == invitation
    assert set(invitation.link).isdisjoint(" \t\n\"'`$&|;<>()*?[]{}!#\\")
    peers, access = follow_invitations([invitation.link], Access())
    assert (peers, access.network) == ((NEAR,), founder.peer_id)
    assert access.gate(load_identity(access.identity_file).peer_id).certificate
    assert access.identity_file is not None and access.identity_file.stat().st_mode & 0o777 == 0o600


def test_newer_certificates_stay_and_go_on_after_the_last_day_of_the_link(founder: Identity) -> None:
    old = admission(founder, starts_at_s=NOW_S - 6 * DAY_S)
    link = Invitation.admitting(old, (NEAR,)).link
    _, access = follow_invitations([link], Access())
    assert access.swarm_file is not None
    with access.swarm_file.open("a") as file:
        file.write(as_line(admission(founder).certificate, prefix=CERTIFICATE_LINE) + "\n")
    assert follow_invitations([link], Access()) == ((NEAR,), access)
    assert len(read_swarm_file(access.swarm_file).certificates) == 2
    ended = replace(old, certificate=admission(founder, starts_at_s=NOW_S - 9 * DAY_S).certificate)
    assert follow_invitations([Invitation.admitting(ended, (NEAR,)).link], Access()) == ((NEAR,), access)


def test_what_does_not_make_a_member_is_refused_and_leaves_nothing(founder: Identity, tmp_path: Path) -> None:
    link = Invitation.admitting(admission(founder), (NEAR,)).link
    key, certificate = link.removeprefix(SCHEME).split(",")[:2]
    refused = {
        Invitation.admitting(admission(founder, starts_at_s=NOW_S - 9 * DAY_S), (NEAR,)).link: "was valid until",
        Invitation.admitting(admission(founder, member=PEER), (NEAR,)).link: "do not belong together",
        f"{SCHEME}{key},{NEAR}": "do not belong together",
        f"{SCHEME}key=AAAA,{certificate},{NEAR}": "do not belong together",
        f"{SCHEME}{key},certificate=%,{NEAR}": "do not belong together",
        link.replace(NEAR, f"swarm=a,{NEAR}"): "Its certificate says what 'swarm' is",
    }
    for damaged, says in refused.items():
        with pytest.raises(UsageError, match=says):
            follow_invitations([damaged], Access())
    with pytest.raises(UsageError, match="which needs --swarm"):
        follow_invitations([link], Access(network="home"))
    assert not list(tmp_path.iterdir())
