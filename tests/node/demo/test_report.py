"""The demo's report: always a figure, and a lower bound where the machine was too slow for the emulation."""

import json
from dataclasses import replace

import pytest

from cosine_node.demo.race import Way
from cosine_node.demo.report import (
    EmulatedDevices,
    PassTiming,
    RaceReport,
    SharedMachine,
    drafted_by,
    result_line,
    summary,
)
from cosine_node.passes.emulation import Emulation
from tests.node.demo.generations import generation, raced


def report(*, late: int = 0, cosine_s: tuple[float, ...] = (0.16, 0.32, 0.64)) -> RaceReport:
    rows = [raced(cosine_s=seconds) for seconds in cosine_s]
    rows.append(raced(cosine_s=0.32, temperature=0.8))
    return RaceReport(tuple(rows), EmulatedDevices(Emulation.parse("60/6@10").describe(), PassTiming(1000, late)))


def by_the_clock(*, drafters: int = 5, cosine_s: float = 0.32) -> RaceReport:
    row = replace(raced(cosine_s=cosine_s), pass_s=None)
    return RaceReport((row,), SharedMachine("zoo:smol-target", drafters, 2))


def test_the_median_over_domains_is_quoted_for_each_temperature() -> None:
    made = report()
    assert made.temperatures == [0.0, 0.8]
    assert made.median_speedup(Way.COSINE, 0.0) == pytest.approx(2.0)
    text = "\n".join(summary(made))
    assert "Temperature 0: cosine is 2.00x as fast as plain decoding" in text
    assert "without drafters, by copying from the text alone, it is 2.00x" in text
    assert "at least" not in text.lower()


@pytest.mark.parametrize(("late", "has_held"), [(0, True), (50, True), (51, False), (900, False)])
def test_late_passes_make_the_figures_lower_bounds(late: int, has_held: bool) -> None:
    made = report(late=late)
    assert made.as_json()["emulated"]["held"] is has_held
    assert ("at least 2.00x" in "\n".join(summary(made))) is not has_held


def test_nodes_that_did_not_report_make_the_figures_lower_bounds() -> None:
    assert not PassTiming(1000, 0, is_complete=False).has_held


def test_by_the_clock_nothing_is_emulated_and_nothing_excused() -> None:
    made = by_the_clock()
    assert made.as_json()["machine"] == {"target": "zoo:smol-target", "drafters": 5, "processors": 2}
    assert "emulated" not in made.as_json()
    text = "\n".join(summary(made))
    assert "cosine is 2.00x as fast as plain decoding" in text
    assert "a verifier with zoo:smol-target, 5 drafters and the client shared 2 processors" in text
    assert "slower" not in text
    assert "no drafters, which are not installed" in "\n".join(summary(by_the_clock(drafters=0)))


def test_a_cosine_that_did_not_pay_is_said_to_be_slower() -> None:
    text = "\n".join(summary(by_the_clock(cosine_s=0.8)))
    assert "cosine is 0.80x as fast" in text
    assert "At temperature 0 cosine was slower than plain decoding here" in text


def test_the_json_holds_every_way_of_every_prompt() -> None:
    shown = json.loads(json.dumps(report().as_json()))
    assert [row["temperature"] for row in shown["prompts"]] == [0.0, 0.0, 0.0, 0.8]
    first = shown["prompts"][0]
    assert (first["speedup"], first["speedup_without_drafters"], first["identical"]) == (4.0, 2.0, True)
    assert {"plain", "copying", "cosine"} <= first.keys()
    assert shown["median_speedup"] == pytest.approx(2.0)
    assert shown["emulated"]["verifier_pass_ms"]["1"] == 60


def test_a_prompts_result_is_one_line_that_says_the_same_as_the_table() -> None:
    line = result_line(raced())
    assert "plain 0.64 s, without drafters 0.32 s (2.00x), cosine 0.16 s (4.00x); texts identical" in line


def test_a_text_that_differs_is_called_out() -> None:
    row = raced()
    row = replace(row, done={**row.done, Way.COSINE: generation(0.16, tokens=9)})
    made = replace(report(), rows=(row,))
    assert "TEXTS DIFFER" in result_line(row)
    assert "identical: NO" in "\n".join(summary(made))


def test_authors_are_named_most_tokens_first_and_what_was_copied() -> None:
    assert drafted_by(raced()) == "code 4, math 1, copied 3"
