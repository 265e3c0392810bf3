"""The status and code of every failure of a generation."""

import pytest

from cosine_node.gateway.api_errors import internal, of_failure
from cosine_protocol.errors import (
    CosineError,
    GenerationFailed,
    GenerationTimedOut,
    LocalProtocolError,
    PeerLost,
    PromptRefused,
    PromptTooLong,
    UsageError,
)


@pytest.mark.parametrize(
    ("error", "status", "code", "param"),
    [
        (PromptTooLong("long"), 400, "context_length_exceeded", "prompt"),
        (PromptRefused("bad"), 400, "invalid_value", "prompt"),
        (GenerationTimedOut("slow"), 504, "timeout", None),
        (GenerationFailed("nobody"), 503, "no_verifier", None),
        (PeerLost("peer", "gone"), 503, "no_verifier", None),
        (UsageError("remove /home/somebody/pins.json"), 503, "target_unavailable", None),
        (LocalProtocolError("a bug in /home/somebody"), 503, "target_unavailable", None),
    ],
)
def test_failures_have_a_status_and_a_code(error: CosineError, status: int, code: str, param: str | None) -> None:
    problem = of_failure(error, param="prompt")
    assert (problem.status, problem.code, problem.param) == (status, code, param)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    assert problem.body == {"error": {"message": problem.message, "type": kind, "param": param, "code": code}}
    assert ("retry-after" in {name.lower() for name in problem.headers}) is (status == 503)


def test_what_is_the_operators_stays_there() -> None:
    assert "somebody" not in of_failure(UsageError("remove /home/somebody/pins.json"), param="prompt").message
    assert internal().status == 500
