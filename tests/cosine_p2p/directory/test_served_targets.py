"""The targets of a network, and the one that is meant where nobody names it."""

from typing import Any

import pytest

from cosine_p2p.directory.served_targets import only_target
from cosine_protocol.records import NodeRecord, Role
from tests.cosine_p2p.samples import identity_of, record_of


def node(number: int, target: str, role: Role = Role.VERIFIER, **changes: Any) -> NodeRecord:
    return record_of(identity_of(number), now_s=0.0, role=role, target=target, **changes)


@pytest.mark.parametrize(
    ("verifiers", "meant"),
    [
        ([node(1, "a")], "a"),
        ([node(1, "a"), node(2, "a", target_digest=bytes(32))], "a"),
        # One target under two names: its verifiers serve both.
        ([node(1, "a"), node(2, "alias"), node(3, "alias")], "alias"),
    ],
)
def test_the_only_target_is_meant(verifiers: list[NodeRecord], meant: str) -> None:
    assert only_target(verifiers) == meant
