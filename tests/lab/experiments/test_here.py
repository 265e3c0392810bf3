"""A running swarm is measured in turns, and what is told follows from the rows."""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.experiments.here import (
    HERE,
    HereOptions,
    TimedRun,
    findings_of,
    in_turn,
    measure,
    questions_of,
    row_of,
    run,
    sentences,
)
from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_node.demo.race import Way
from cosine_p2p.client import AsyncClient, Swarm
from cosine_protocol.errors import UsageError
from tests.lab.experiments.quick import silent


def row(
    ratio: float, *, temperature: float = 0.0, rtt_ms: float = 0.0, is_identical: bool = True
) -> dict[str, Any]:
    times = {Way.PLAIN.value: 1.0, Way.COPYING.value: 1.0, Way.COSINE.value: ratio}
    return {
        "emulated_rtt_ms": rtt_ms,
        "temperature": temperature,
        "ms_per_token": {way: 10 / times_plain for way, times_plain in times.items()},
        "times_plain": times,
        "is_identical": is_identical,
        "tokens_by_origin": {way: {"copied": 2, "target alone": 8} for way in times},
    }


def test_every_prompt_is_generated_in_every_way_with_equal_texts(tmp_path: Path) -> None:
    lines = tmp_path / "prompts"
    lines.write_text("ab\n\ncd\nef\n", "utf-8")
    options = replace(HereOptions.quick(), prompts_from=lines, prompts=2, repeats=2)

    async def measured() -> list[dict[str, Any]]:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier()
            await swarm.drafter()
            rows = measure(await swarm.client(), HERE, questions_of(options), options, say=silent)
            return [found async for found in rows]

    rows = run_virtual(measured())
    assert [found["prompt"] for found in rows] == [0, 1]
    assert all(found["is_identical"] for found in rows)
    # A scripted drafter is right seven times of ten and costs nothing here but its own time.
    assert all(found["times_plain"]["cosine"] > 1.0 for found in rows)
    for found in rows:
        for tokens in found["tokens_by_origin"].values():
            assert sum(tokens.values()) == options.tokens * options.repeats


def test_every_length_of_links_is_measured_and_named(tmp_path: Path) -> None:
    lines = tmp_path / "prompts"
    lines.write_text("ab", "utf-8")
    options = replace(HereOptions.quick(), rtts_ms=(0.0, 40.0), prompts_from=lines)
    asked: list[float] = []
    rows: list[dict[str, Any]] = []
    told: list[str] = []

    async def at_once(check: Callable[[], None]) -> None:
        check()

    async def measured() -> dict[str, Any]:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier()

            def connect(rtt_ms: float) -> AsyncClient:
                asked.append(rtt_ms)
                identity = numbered_identity(100 + len(asked))

                async def join() -> Swarm:
                    return swarm.client_swarm(identity)

                return AsyncClient(join=join, offload=at_once)

            return await run(connect, options, rows=rows, say=told.append)

    result = run_virtual(measured())
    assert asked == [0.0, 40.0]
    # Whoever stops the measurement has what came before.
    assert rows == result["rows"]
    assert (
        all(re.match(r"cell (\d) of 2, (about \d+ s left|the last): temperature 0, prompt 1", one) for one in told)
        and len(told) == 2
    )
    assert [found["emulated_rtt_ms"] for found in result["rows"]] == [0.0, 40.0]
    assert result["setup"]["emulated_rtt_ms"] == [0.0, 40.0]
    assert result["setup"]["prompts"] == 1
    assert {entry["emulated_rtt_ms"] for entry in result["findings"]["ways"]} == {0.0, 40.0}


def test_a_chat_model_is_asked_questions() -> None:
    asked = questions_of(replace(HereOptions(), target="zoo:smol-target", prompts=30))
    assert len(asked) == 30
    assert all(isinstance(one.asked, tuple) and one.asked[-1]["role"] == "user" for one in asked)


def test_of_texts_what_is_held_out_is_asked(tmp_path: Path) -> None:
    for name in ("code.dev.jsonl", "math.dev.jsonl", "code.train.jsonl"):
        lines = [{"messages": [{"role": "user", "content": f"{name} {number}"}]} for number in range(3)]
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)), "utf-8")
    asked = questions_of(replace(HereOptions(), prompts_from=tmp_path, prompts=4))
    assert [question.domain for question in asked] == ["code", "math"] * 2


def test_the_embedded_prompts_take_turns_over_the_domains() -> None:
    asked = questions_of(replace(HereOptions(), prompts=7))
    assert len({question.number for question in asked}) == 7
    assert len({question.domain for question in asked[:5]}) == 5


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n \n", "utf-8")
    with pytest.raises(UsageError, match="no prompt"):
        questions_of(replace(HereOptions(), prompts_from=empty))


def test_no_prompt_begins_once_the_minutes_are_over(tmp_path: Path) -> None:
    lines = tmp_path / "prompts"
    lines.write_text("ab\ncd\nef\n", "utf-8")
    options = replace(HereOptions.quick(), prompts_from=lines, minutes=0.001)
    said: list[str] = []

    async def measured() -> list[dict[str, Any]]:
        async with SimulatedSwarm() as swarm:
            await swarm.verifier()
            rows = measure(await swarm.client(), HERE, questions_of(options), options, say=said.append)
            return [found async for found in rows]

    assert [found["prompt"] for found in run_virtual(measured())] == [0]
    assert said[-1] == "0.001 minutes are over: 2 prompts are not asked."


def test_ways_begin_in_turn_and_follow_each_other_in_either_order() -> None:
    ways = ["plain", "copying", "cosine"]
    orders = [in_turn(ways, turn) for turn in range(6)]
    assert [order[0] for order in orders] == ways * 2
    assert all(sorted(order) == sorted(ways) for order in orders)
    assert orders[0] == ["plain", "copying", "cosine"]
    assert orders[3] == ["plain", "cosine", "copying"]


def test_a_prompt_counts_with_one_figure_of_its_runs_and_all_of_its_tokens() -> None:
    def timed(ms_per_token: float, text: tuple[int, ...], **origins: int) -> TimedRun:
        return TimedRun(
            ms_per_token=ms_per_token, token_ids=text, origins=Counter(origins), drafters=("code",), near_ties=1
        )

    plain = [timed(10.0, (1, 2), target=2), timed(14.0, (1, 2), target=2)]
    cosine = [timed(8.0, (1, 2), target=1, code=1), timed(5.0, (1, 3), code=2)]
    found = row_of({"plain": plain, "cosine": cosine}, min)
    assert found["times_plain"] == {"plain": 1.0, "cosine": 2.0}
    assert found["tokens_by_origin"] == {"plain": {"target": 4}, "cosine": {"target": 1, "code": 3}}
    assert (found["is_identical"], found["near_ties"], found["drafters"]) == (False, 4, ["code"])


def test_the_worst_ten_prompts_in_a_row_are_told() -> None:
    rows = [row(2.0) for _ in range(10)] + [row(0.9) for _ in range(10)] + [row(3.0) for _ in range(15)]
    [_, ours] = findings_of(rows, 0)["ways"]
    assert (ours["times_plain"], ours["worst_group"]) == (2.0, 0.9)
    low, high = ours["interval"]
    assert 0.9 <= low <= 2.0 <= high <= 3.0


def test_sentences_say_what_was_measured_and_whether_texts_differ() -> None:
    findings = findings_of([row(1.5), row(1.5, is_identical=False)], 0)
    *_, ours, differ = sentences(findings)
    assert "Temperature 0, cosine: 1.50 times plain decoding (1.50 to 1.50, 95 %)" in ours
    assert ours.endswith("tokens by origin: target alone 16, copied 4.")
    assert differ == "1 texts differ between the ways."
    [_, far, _] = sentences(findings_of([row(1.5, rtt_ms=100.0)], 0))
    assert "Temperature 0 and 100 ms of emulated round trip, cosine: 1.50 times" in far
