"""An invitation says what it was made of, and is refused in a sentence where it does not hold."""

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.access import Access
from cosine_p2p.invitation import SCHEME, Invitation, follow_invitations
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_protocol.errors import UsageError

PEER = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
NEAR, NAMED = f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER}", f"/dns4/node.example.org/tcp/443/p2p/{PEER}"
TODAY = datetime.now(UTC).date()


@given(
    addresses=st.lists(st.sampled_from((NEAR, NAMED)), min_size=1, max_size=4),
    network=st.text(min_size=1),
    is_private=st.booleans(),
    last_day=st.none() | st.dates(),
)
def test_a_link_is_read_as_it_was_written_and_needs_no_quotes(
    addresses: list[str], network: str, is_private: bool, last_day: date | None
) -> None:
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
        (SCHEME, "at ''"),
        (f"cosine:until=soon,{NEAR}", "'soon' is no day"),
        (f"cosine:network=a,network=b,{NEAR}", "at 'network=b'"),
        (f"cosine:network=a,swarm=b,{NEAR}", "a network and a private swarm"),
        (f"cosine:colour=red,{NEAR}", "at 'colour=red'"),
        ("cosine:network=home", "1 to 4 addresses, not 0"),
        ("cosine:" + ",".join([NEAR] * 5), "1 to 4 addresses, not 5"),
        ("cosine:/ip4/192.0.2.1/tcp/4001", "whose address it is"),
        ("cosine:/nowhere", "is not a multiaddr"),
    ],
)
def test_an_invitation_that_does_not_hold_is_refused_in_a_sentence(link: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        follow_invitations([link], Access(network="home"))
