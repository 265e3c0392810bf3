"""What is recorded of a drafter that learns: its versions by learned tokens."""

import pytest

from cosine_lab.simulation.learning_curve import (
    LearningCurve,
    hits_along,
    learned_tokens,
    learning_domain,
    learning_traces,
    version_name,
)
from cosine_lab.simulation.trace_engine import TraceDrafter
from cosine_lab.simulation.traces import TraceSet
from cosine_node.engine.base import Engine
from cosine_node.zoo.family import Family
from cosine_protocol.errors import UsageError

TRACES = learning_traces(Family.TOY)


def engine_of(name: str) -> Engine:
    return TraceDrafter(TRACES, f"draft-{name}")


def curve() -> LearningCurve:
    return LearningCurve(traces=TRACES, domain="math", engine_of=engine_of)


def test_the_shipped_version_has_the_drafters_own_name() -> None:
    assert (version_name("draft-math", 0), version_name("draft-math", 2000)) == ("draft-math", "draft-math+2000")


def test_who_learns_is_told_by_the_names_of_versions() -> None:
    assert learning_domain(TRACES) == "math"
    assert learned_tokens(TRACES, "draft-math") == (0, 2000, 5000, 10_000, 20_000)
    assert learned_tokens(TRACES, "draft-code") == (0,)


def test_where_nobody_learns_nothing_is_found() -> None:
    shipped = TraceSet.load_shipped()
    with pytest.raises(UsageError, match="No drafter of these traces learns"):
        learning_domain(shipped)
    with pytest.raises(UsageError, match="know no drafter draft-history"):
        learned_tokens(shipped, "draft-history")


@pytest.mark.parametrize(
    ("tokens", "version"), [(0, 0), (1999, 0), (2000, 2000), (4999, 2000), (5000, 5000), (10**6, 20_000)]
)
def test_between_recorded_versions_the_one_below_counts(tokens: int, version: int) -> None:
    assert curve().version(tokens) == version


def test_acceptance_is_counted_along_the_traces_of_the_prompts() -> None:
    first, second = list(TRACES)[:2]
    found = curve().acceptance(2000, [first.prompt(), second.prompt(), first.prompt()])
    assert found.tokens == 2 * len(first.stream) + len(second.stream)
    assert found.right == sum(hits_along(trace, "draft-math+2000") for trace in (first, second, first))


def test_an_engine_answers_as_its_version_was_recorded() -> None:
    trace = max(TRACES, key=lambda one: hits_along(one, "draft-math+20000") - hits_along(one, "draft-math"))
    for version in (0, 20_000):
        script = curve().engine(version).script(trace)  # type: ignore[attr-defined]
        right = sum(choice.token == token for choice, token in zip(script.choices, trace.stream, strict=True))
        assert right == hits_along(trace, version_name("draft-math", version))
