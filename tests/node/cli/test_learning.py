"""Options of a drafter that learns: what they make, and what does not go with them."""

import pytest

from cosine_node.cli.join import DEFAULT_LEARN_MEMORY, Learning
from cosine_node.learning.stream_store import DEFAULT_BYTES
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role


def parsed(
    *models: str, role: Role = Role.DRAFTER, learns: bool = True, memory: str = DEFAULT_LEARN_MEMORY
) -> int | None:
    return Learning(learn=learns, learn_memory=memory).kept_bytes(role, models)


def test_a_drafter_learns_only_where_it_is_told_to() -> None:
    assert parsed(learns=False) is None
    assert parsed(role=Role.VERIFIER, learns=False) is None
    assert parsed("zoo:draft-code") == DEFAULT_BYTES
    assert parsed(memory="1GiB") == 1 << 30


@pytest.mark.parametrize(
    ("changes", "models", "reason"),
    [
        ({"role": Role.VERIFIER}, (), "--learn is for drafters"),
        ({"role": Role.STAGE}, (), "--learn is for drafters"),
        ({}, ("zoo:draft-code", "ngram"), "ngram has no weights"),
        ({"learns": False, "memory": "1GiB"}, (), "add --learn"),
        ({"memory": "1MiB"}, (), "4MiB or more"),
        ({"memory": "0.5"}, (), "4MiB or more"),
        ({"memory": "auto"}, (), "4MiB or more"),
        ({"memory": "much"}, (), "--learn-memory takes"),
    ],
)
def test_what_does_not_go_with_learning_is_refused(
    changes: dict[str, object], models: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        parsed(*models, **changes)  # type: ignore[arg-type]  # of several types
