"""A short load: every text is right, nothing stays held, and verdicts follow from the rows."""

from dataclasses import replace
from typing import Any

import pytest

from cosine_lab.experiments.load import LONG, bound_ms, findings_of, run
from cosine_lab.experiments.load_swarm import LoadOptions, resident_bytes
from cosine_lab.report.report_sections import SECTIONS
from cosine_node.passes.emulation import Emulation
from cosine_node.verifier.scheduler import STALL
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role

SMALL = replace(LoadOptions.quick(), clients=3, seconds=3.0)


def silent(sentence: str) -> None:
    del sentence


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(SMALL, say=silent)


@pytest.mark.thorough
def test_every_strategy_is_loaded_and_every_text_is_right(result: dict[str, Any]) -> None:
    assert [row["strategy"] for row in result["rows"]] == ["plain", "cosine"]
    for row in result["rows"]:
        assert (row["mismatches"], row["failures"], row["pool_left_tokens"]) == (0, 0, 0)
        assert row["requests"] > row["clients"] == 3
        assert row["pool_most_tokens"] > 0


@pytest.mark.thorough
def test_waits_are_virtual_and_ordered(result: dict[str, Any]) -> None:
    pass_ms = 1e3 * Emulation.parse(SMALL.profile).curve(Role.VERIFIER).seconds(1)
    for row in result["rows"]:
        waits = [row[f"between_tokens_{name}_ms"] for name in ("p50", "p99", "most")]
        assert waits == sorted(waits)
        assert row["first_token_p50_ms"] <= row["first_token_most_ms"]
        assert row["first_token_p50_ms"] > pass_ms
    assert result["rows"][0]["between_tokens_p50_ms"] >= pass_ms - 1e-6


@pytest.mark.thorough
def test_prompts_are_of_unequal_length_and_a_few_much_longer(result: dict[str, Any]) -> None:
    fewest, *_, most = result["setup"]["prompt_lengths_tokens"]
    assert most > SMALL.prompt_tokens
    assert most % LONG == 0
    assert fewest == SMALL.prompt_tokens // 4


@pytest.mark.thorough
def test_memory_is_told_where_the_system_tells_it(result: dict[str, Any]) -> None:
    for row in result["rows"]:
        if resident_bytes() is None:
            assert row["memory_growth"] is None
        else:
            assert row["memory_growth"] == pytest.approx(row["memory_end_mb"] / row["memory_warm_mb"] - 1)


@pytest.mark.thorough
def test_the_same_options_give_the_same_result_but_for_memory(result: dict[str, Any]) -> None:
    def virtual(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: value for name, value in row.items() if "memory" not in name} for row in rows]

    again: Any = run(SMALL, say=silent)["rows"]
    assert virtual(again) == virtual(result["rows"])


def test_tokens_may_be_no_further_apart_than_the_longest_pass() -> None:
    curve = Emulation.parse("60/6@10").curve(Role.VERIFIER)
    assert bound_ms(replace(SMALL, clients=64)) == pytest.approx(1e3 * STALL * curve.seconds(64))
    assert bound_ms(replace(SMALL, clients=1)) <= 240
    assert bound_ms(replace(SMALL, clients=500)) > bound_ms(replace(SMALL, clients=64))


@pytest.mark.thorough
def test_what_is_found_follows_from_the_rows(result: dict[str, Any]) -> None:
    row = {
        **result["rows"][0],
        "between_tokens_p99_ms": 300.0,
        "memory_growth": 0.04,
        "pool_left_tokens": 0,
        "mismatches": 2,
        "near_ties": 1,
    }
    found = findings_of([row], bound_ms=250.0)
    assert {target["what"]: target["is_met"] for target in found["targets"]} == {
        "between_tokens_p99_ms": False,
        "memory_growth": True,
        "pool_left_tokens": True,
        "mismatches": False,
        "failures": True,
    }
    assert (found["mismatches"], found["near_ties"], found["failures"]) == (2, 1, 0)
    lines = [line for told in SECTIONS["load"].findings for line in told.lines({"findings": found})]
    assert ["plain, between_tokens_p99_ms", "300", "at most 250", "no"] in lines
    assert ["plain, memory_growth", "0.04", "at most 0.05", "yes"] in lines


@pytest.mark.thorough
def test_memory_nobody_tells_is_no_target(result: dict[str, Any]) -> None:
    untold = {**result["rows"][0], "memory_growth": None}
    assert "memory_growth" not in {target["what"] for target in findings_of([untold], bound_ms=1.0)["targets"]}


def test_models_there_are_not_are_one_sentence() -> None:
    with pytest.raises(UsageError, match="zoo or scripted"):
        run(replace(SMALL, models="oracles"), say=silent)


def test_a_load_without_a_second_token_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="second token"):
        run(replace(SMALL, tokens=1, strategies=("plain",)), say=silent)
