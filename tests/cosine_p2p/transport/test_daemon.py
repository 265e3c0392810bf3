"""What p2pd answers, as a clause that a user understands."""

import pytest

from cosine_p2p.transport.daemon import plain_reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("protocols not supported: [/cosine/draft/1.0.0]", "it does not serve /cosine/draft/1.0.0"),
        ("routing: not found", "no address of it is known in the network"),
        ("failed to dial: peer id mismatch: expected A, got B", "another peer answers at its address"),
        ("dial tcp4: connect: connection refused", "nothing listens at its address any more"),
        ("dial backoff", "it could not be reached a moment ago"),
        ("something\n  else", "something else"),
        ("x" * 300, "x" * 200),
    ],
)
def test_an_error_is_told_in_plain_words(error: str, reason: str) -> None:
    assert plain_reason(error) == reason
