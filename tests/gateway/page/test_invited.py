"""The link and the code that the page shows, and the advice that it asks for."""

from datetime import date
from pathlib import Path

import pytest
import segno

from cosine_gateway.page.invited import invitation_facts
from cosine_p2p.access import Access
from cosine_p2p.invitation import Invitation
from cosine_protocol.records import NodeRecord
from tests.cosine_p2p.samples import identity_of, record_of
from tests.gateway.gateways import asked

DAY = date(2030, 1, 7)


def at(number: int, *addresses: str) -> NodeRecord:
    """A node whose addresses end in its peer id where they have an @."""
    identity = identity_of(number)
    named = tuple(address.replace("@", f"/p2p/{identity.peer_id}") for address in addresses)
    return record_of(identity, now_s=0.0, addresses=named)


def test_the_link_holds_the_addresses_that_reach_farthest() -> None:
    near, far = at(1, "/ip4/192.168.1.5/tcp/1@"), at(2, "/ip4/127.0.0.1/tcp/2@", "/ip4/8.8.8.8/tcp/2@")
    here = at(3, "/ip4/127.0.0.1/tcp/3@")
    told = invitation_facts([here, near, far], Access(network="lab"), last_day=DAY)
    assert told is not None
    wanted = Invitation(addresses=(far.addresses[1], near.addresses[0]), network="lab", last_day=DAY)
    assert Invitation.read(told["link"]) == wanted and (told["addresses"], told["reach"]) == (2, "public")
    rows = segno.make(wanted.link, micro=False, error="l").matrix
    assert told["code"] == ["".join(map(str, row)) for row in rows]


def test_a_private_swarm_is_named_by_its_id() -> None:
    told = invitation_facts(
        [at(1, "/ip4/8.8.8.8/tcp/1@")], Access(network="id", swarm_file=Path("f")), last_day=DAY
    )
    assert told is not None and told["link"].startswith("cosine:swarm=id,until=2030-01-07,/ip4/8.8.8.8")


RELAYED = f"/ip4/8.8.8.8/tcp/1/p2p/{identity_of(9).peer_id}/p2p-circuit@"


@pytest.mark.parametrize(
    "address", ["", "nonsense", "/ip4/8.8.8.8/udp/1/quic-v1@", RELAYED, "/dns4/a,network=b/tcp/1@"]
)
def test_no_peer_brings_anything_else_into_the_link(address: str) -> None:
    assert invitation_facts([at(1, address)], Access(), last_day=DAY) is None


def test_only_who_sits_at_the_machine_has_it_measured() -> None:
    refused = asked("POST", "/v1/suggestions", {})
    assert refused.status == 403 and refused.error["code"] == "not_here"
