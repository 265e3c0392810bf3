"""The race of the demo, its report and its screen."""

import io
from collections.abc import Mapping
from dataclasses import replace

import pytest
from rich.console import Console

from cosine_engine.zoo.prompt_set import Message, Prompt
from cosine_node.demo.race import Lane, Race, RacedPrompt, RacedWay
from cosine_node.demo.report import (
    EmulatedDevices,
    RaceReport,
    SharedMachine,
    race_view,
    result_line,
    summary,
)
from cosine_node.passes.emulation import Emulation
from cosine_p2p.request.origins import HOME_SOURCE, TARGET_SOURCE, Origin
from cosine_p2p.request.results import Chunk, DrafterReport, Generation, VerifierReport
from tests.gateway.generations import generation

PASS_S = 0.06


def raced_text(seconds: float, *, tokens: int = 10, rounds: int = 10, accepted: int = 0) -> Generation:
    """A generation whose accepted tokens were drafted by the experts of mathematics and code."""
    return generation(
        token_ids=tuple(range(tokens)),
        completion_tokens=tokens,
        finish_reason="length",
        seconds=seconds,
        time_to_first_token_s=0.1,
        rounds=rounds,
        offered=tokens,
        accepted=accepted,
        drafters=(
            DrafterReport("p1", "math", 3, min(1, accepted), 10.0),
            DrafterReport("p2", "code", 2, max(0, accepted - 1), 10.0),
            DrafterReport("p3", "medical", 2, 0, 10.0),
        ),
        origins=(
            Origin(source="p2", domain="code", tokens=accepted),
            Origin(source=TARGET_SOURCE, is_copied=True, tokens=tokens - accepted - rounds),
            Origin(source=TARGET_SOURCE, tokens=rounds),
        ),
        verifiers=(VerifierReport("v", 10.0, tokens),),
    )


def asked(text: str) -> Prompt:
    return Prompt("code", (Message("user", text),))


def raced(*, plain_s: float = 0.64, cosine_s: float = 0.16, temperature: float = 0.0) -> RacedPrompt:
    """A prompt of ten tokens; plain decoding takes 0.64 s on the emulated device."""
    done: Mapping[RacedWay, Generation] = {
        RacedWay.PLAIN: raced_text(plain_s),
        RacedWay.COPYING: raced_text(0.32, rounds=5),
        RacedWay.COSINE: raced_text(cosine_s, rounds=2, accepted=5),
    }
    return RacedPrompt(prompt=asked("def"), temperature=temperature, pass_s=PASS_S, done=done)


def test_a_lane_names_the_author_of_each_piece() -> None:
    lane = Lane()
    for chunk in (
        Chunk("a", (1,), TARGET_SOURCE),
        Chunk("b", (2, 3), "peer"),
        Chunk("c", (4,), TARGET_SOURCE, True),
        Chunk("d", (5,), "stranger"),
        Chunk("e", (6,), HOME_SOURCE),
    ):
        lane.add(chunk, {"peer": "math"}, seconds=0.5)
    assert lane.pieces == [
        ("a", "target alone"), ("b", "math"), ("c", "copied"), ("d", "drafter"), ("e", "verifier's drafter"),
    ]  # fmt: skip
    assert (lane.tokens, lane.seconds) == (6, 0.5)


def test_a_plain_run_or_first_token_that_was_late_makes_nobody_look_faster() -> None:
    row = raced(plain_s=3.0)
    assert row.speedup(RacedWay.COSINE) == pytest.approx(4.0)
    late = dict(row.done) | {RacedWay.PLAIN: replace(row.done[RacedWay.PLAIN], time_to_first_token_s=2.0)}
    assert replace(row, done=late).plain_s == pytest.approx(0.64)
    assert replace(row, pass_s=None).plain_s == 3.0, "by the clock it took what it took"


def report(*, late: int = 0) -> RaceReport:
    rows = [raced(cosine_s=seconds) for seconds in (0.16, 0.32, 0.64)]
    rows.append(raced(cosine_s=0.32, temperature=0.8))
    return RaceReport(tuple(rows), EmulatedDevices(Emulation.parse("60/6@10").describe(), 1000, late))


def by_the_clock(*, cosine_s: float = 0.32) -> RaceReport:
    row = replace(raced(cosine_s=cosine_s), pass_s=None)
    return RaceReport((row,), SharedMachine("zoo:smol-target", 3, 60.0, 5, 2))


def test_the_median_over_domains_is_quoted_for_each_temperature() -> None:
    made = report()
    assert made.temperatures == [0.0, 0.8] and made.as_json()["median_speedup"] == pytest.approx(2.0)
    assert made.median_speedup(RacedWay.COSINE, 0.0) == pytest.approx(2.0)
    text = "\n".join(summary(made))
    assert "Temperature 0: cosine is 2.00x as fast as plain decoding" in text
    assert "without drafters, by copying from the text alone, it is 2.00x" in text
    assert "at least" not in text.lower()


@pytest.mark.parametrize(("late", "has_held"), [(50, True), (51, False)])
def test_late_passes_make_the_figures_lower_bounds(late: int, has_held: bool) -> None:
    made = report(late=late)
    assert made.as_json()["emulated"]["held"] is has_held
    assert ("at least 2.00x" in "\n".join(summary(made))) is not has_held
    # So do nodes that did not report.
    assert not EmulatedDevices({}, 1000, 0, is_complete=False).has_held


def test_by_the_clock_only_links_are_delayed_and_nothing_is_excused() -> None:
    made = by_the_clock()
    assert made.as_json()["machine"]["target"] == "zoo:smol-target"
    assert "emulated" not in made.as_json()
    text = "\n".join(summary(made))
    assert "cosine is 2.00x as fast as plain decoding" in text
    assert "zoo:smol-target in 3 parts, 60 ms between any two nodes" in text
    assert "slower" not in text
    # One that did not pay is said to be slower.
    text = "\n".join(summary(by_the_clock(cosine_s=0.8)))
    assert "cosine is 0.80x as fast" in text
    assert "At temperature 0 cosine was slower than plain decoding here" in text


def test_a_prompts_result_is_one_line_that_says_the_same_as_the_table() -> None:
    line = result_line(raced())
    assert "plain 0.64 s, without drafters 0.32 s (2.00x), cosine 0.16 s (4.00x); texts identical; tokens" in line
    assert line.endswith(": code 5, copied 3, target alone 2")
    row = replace(raced(), done={**raced().done, RacedWay.COSINE: raced_text(0.16, tokens=9)})
    assert "TEXTS DIFFER" in result_line(row)
    assert "identical: NO" in "\n".join(summary(replace(report(), rows=(row,))))


def shown(race: Race, *, columns: int) -> str:
    console = Console(file=io.StringIO(), width=columns, force_terminal=False)
    console.print(race_view(race, columns=columns))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_a_narrow_terminal_is_enough_and_control_characters_are_not_passed_on() -> None:
    prompt = asked("\x1b]52;c;x\x07" + "x" * 500)
    race = Race(prompt=prompt, temperature=0.8, max_new_tokens=10)
    race.lanes[RacedWay.PLAIN].add(Chunk("\x1b[2Jcleared" + "long " * 100, (1,), TARGET_SOURCE), {}, seconds=1.0)
    race.lanes[RacedWay.COSINE].done = raced_text(0.3)
    text = shown(race, columns=60)
    assert "\x1b" not in text and max(map(len, text.splitlines())) <= 60
    assert "without drafters" in shown(race, columns=100)
