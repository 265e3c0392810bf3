"""Parsing of emulation profiles."""

import pytest

from cosine_node.passes.emulation import DEFAULT_PROFILE, Emulation
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role


@pytest.mark.parametrize(
    "name", ["", "60", "60/6@", "-60/6", "60/6@10ms", "a/b", "60/6@10@5", "1e3/6", "0/6", "60/0@5", "@", "@x"]
)
def test_anything_else_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(UsageError, match=DEFAULT_PROFILE):
        Emulation.parse(name)


def test_a_link_may_be_emulated_alone() -> None:
    link = Emulation.parse("@60")
    assert not link.has_device and link.one_way_s == 0.03
    both = Emulation.parse("15/6@20")
    assert both.has_device and both.one_way_s == 0.01
    assert both.curve(Role.STAGE) == both.curve(Role.VERIFIER) != both.curve(Role.DRAFTER)
