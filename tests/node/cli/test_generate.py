"""The stages of a generation, as `generate` tells them."""

from cosine_node.cli.generate import stage_of
from cosine_p2p.generation import Progress

FIRST, SECOND = "12D3KooWfirstfirst", "12D3KooWsecondsecond"


def progress(*, tokens: int = 0, serving: tuple[str, ...] = (), tried: tuple[str, ...] = ()) -> Progress:
    return Progress(
        tokens=tokens, rounds=0, accepted=0, serving=serving, tried=tried, drafters=(), why=(), decisions=0
    )


def test_a_verifier_is_asked_then_waited_for_then_generates() -> None:
    verifiers = (FIRST, SECOND)
    assert stage_of(progress(), verifiers) == "Asking verifier …rstfirst"
    assert stage_of(progress(serving=(FIRST,)), verifiers) == "Waiting for the first token of verifier …rstfirst"
    assert stage_of(progress(serving=(FIRST,), tokens=3), verifiers) == "Generating with verifier …rstfirst"


def test_attempts_in_vain_are_counted_and_the_next_verifier_is_asked() -> None:
    verifiers = (FIRST, SECOND)
    assert stage_of(progress(tried=("a",)), verifiers) == "Asking verifier …ndsecond, after 1 attempt in vain"
    assert stage_of(progress(tried=("a", "b")), verifiers) == "Asking verifier …rstfirst, after 2 attempts in vain"
    after = stage_of(progress(serving=(SECOND,), tried=("a",)), verifiers)
    assert after == "Waiting for the first token of verifier …ndsecond, after 1 attempt in vain"
