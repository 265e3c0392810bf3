"""Parsing of emulation profiles."""

import pytest

from cosine_node.passes.emulation import DEFAULT_PROFILE, Emulation
from cosine_protocol.errors import UsageError


@pytest.mark.parametrize(
    "name", ["", "60", "60/6@", "-60/6", "60/6@10ms", "a/b", "60/6@10@5", "1e3/6", "0/6", "60/0@5"]
)
def test_anything_else_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(UsageError, match=DEFAULT_PROFILE):
        Emulation.parse(name)
