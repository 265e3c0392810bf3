"""The demo's report: figures where the emulation held, and none where it did not."""

import json
from dataclasses import replace

import pytest

from cosine_node.demo.report import MAX_LATE_SHARE, PassTiming, PromptComparison, Report, helpers, summary
from cosine_node.emulation import Emulation
from cosine_p2p.generation import DrafterReport, Generation, VerifierReport


def generation(seconds: float, *, tokens: tuple[int, ...] = (1, 2, 3), near_ties: int = 0) -> Generation:
    return Generation(
        text="abc",
        token_ids=tokens,
        prompt_tokens=4,
        tokens=len(tokens),
        finish_reason="length",
        seconds=seconds,
        time_to_first_token_s=0.1,
        strategy="cosine",
        seed=1,
        rounds=3,
        drafted=5,
        offered=3,
        accepted=2,
        near_ties=near_ties,
        bytes_sent=10,
        bytes_received=20,
        drafters=(
            DrafterReport("p1", "math", 3, 1, 10.0),
            DrafterReport("p2", "code", 2, 4, 10.0),
            DrafterReport("p3", "medical", 2, 0, 10.0),
        ),
        verifiers=(VerifierReport("v", 10.0, 3),),
        why=("code: it is likely",),
    )


def report(*, passes: int = 1000, late: int = 0, cosine_s: tuple[float, ...] = (1.0, 2.0, 4.0)) -> Report:
    rows = tuple(PromptComparison("code", "def", generation(4.0), generation(seconds)) for seconds in cosine_s)
    return Report(rows, Emulation.parse("60/6@10").describe(), PassTiming(passes, late))


def test_the_speedup_is_plain_time_over_cosine_time_and_its_median_is_quoted() -> None:
    assert [row.speedup for row in report().rows] == [4.0, 2.0, 1.0]
    assert report().median_speedup == 2.0
    assert "2.00x" in "\n".join(summary(report()))


@pytest.mark.parametrize(("late", "is_quoted"), [(0, True), (50, True), (51, False), (900, False)])
def test_no_speedup_is_quoted_when_more_than_five_percent_of_passes_were_late(late: int, is_quoted: bool) -> None:
    made = report(late=late)
    assert pytest.approx(0.05) == MAX_LATE_SHARE
    assert (made.median_speedup is not None) is is_quoted
    shown = made.as_json()
    assert all((prompt["speedup"] is not None) is is_quoted for prompt in shown["prompts"])
    assert (shown["median_speedup"] is not None) is is_quoted
    assert shown["emulated"]["held"] is is_quoted
    text = "\n".join(summary(made))
    assert ("No speedup is quoted" in text) is not is_quoted
    assert ("x (" in text) is is_quoted


def test_what_was_emulated_stands_beside_every_figure() -> None:
    emulated = report(late=20).as_json()["emulated"]
    assert emulated["profile"] == "60/6@10"
    assert (emulated["passes"], emulated["late_passes"]) == (1000, 20)
    text = "\n".join(summary(report()))
    assert "Emulated" in text and "RTT 10 ms" in text


def test_the_object_is_json_and_holds_both_generations() -> None:
    prompt = json.loads(json.dumps(report().as_json()))["prompts"][0]
    assert prompt["identical"] is True
    assert prompt["plain"]["token_ids"] == prompt["cosine"]["token_ids"] == [1, 2, 3]
    assert prompt["cosine"]["drafters"][0]["domain"] == "math"
    assert prompt["cosine"]["receipts"] is None


def test_a_difference_is_said_aloud() -> None:
    row = replace(report().rows[0], cosine=generation(1.0, tokens=(1, 2, 4), near_ties=1))
    made = replace(report(), rows=(row,))
    assert made.as_json()["prompts"][0]["identical"] is False
    text = "\n".join(summary(made))
    assert "identical: NO" in text and "near-ties met: 1" in text


def test_helpers_are_named_by_what_was_accepted_of_them() -> None:
    assert helpers(generation(1.0)) == "code 4, math 1"
    assert helpers(replace(generation(1.0), drafters=())) == "-"


def test_what_is_neither_a_pass_nor_a_drafter_was_copied_by_the_verifier() -> None:
    long = generation(1.0, tokens=tuple(range(20)))
    assert helpers(long) == "code 4, math 1, copied 12"
    assert helpers(replace(long, drafters=())) == "copied 17"
