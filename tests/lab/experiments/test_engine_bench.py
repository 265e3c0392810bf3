"""The comparison of engines in its smallest form: everybody writes the same text, and verdicts follow from rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.experiments.decoding import Agreement, Decoded, PackedBatch, alternately, decoded
from cosine_lab.experiments.engine import (
    ALONE_REQUESTS,
    BATCH_TOKENS,
    CACHES,
    ROUNDS,
    EnginePart,
    concurrent,
    findings_of,
    run,
)
from cosine_lab.experiments.engine_transformers import (
    EMBEDDED,
    EngineOptions,
    MeasuredModel,
    RivalFailed,
    TransformersModel,
    measured_model,
)
from cosine_lab.experiments.texts import embedded_prompts, mixed, random_prompts, spread
from cosine_lab.simulation.workload import plain_stream
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling

QUICK = replace(EngineOptions.quick(), device="cpu")
PROMPTS = [(3, 1, 4), (1,), (5, 9, 2, 6, 5)]


def silent(sentence: str) -> None:
    del sentence


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(QUICK, say=silent)


@pytest.fixture(scope="module")
def subject() -> MeasuredModel:
    return measured_model("llama-tiny", replace(QUICK, seed=1))


def row_of(result: dict[str, Any], part: EnginePart) -> dict[str, Any]:
    [row] = [row for row in result["rows"] if row["part"] == part]
    assert row["model"] == "llama-tiny"
    assert row["dtype"] == "float32"
    return dict(row)


def test_one_request_is_timed_against_generate(result: dict[str, Any]) -> None:
    row = row_of(result, EnginePart.PLAIN)
    speeds = row["tokens_per_s"]
    assert set(speeds) == {"ours", "generate"}
    assert row["ratio"] == pytest.approx(speeds["ours"] / speeds["generate"])
    assert (row["compared"], row["mismatches"], row["tokens"]) == (1, 0, QUICK.tokens)


def test_requests_at_once_are_timed_against_continuous_batching_and_one_by_one(result: dict[str, Any]) -> None:
    row = row_of(result, EnginePart.CONCURRENT)
    speeds = row["tokens_per_s"]
    rivals = [f"continuous batching, {tokens} tokens a pass" for tokens in BATCH_TOKENS]
    assert row["rival_error"] == ""
    assert set(speeds) == {"ours", "ours, one by one", *rivals}
    assert row["ratio"] == pytest.approx(speeds["ours"] / max(speeds[name] for name in rivals))
    assert row["ratio_to_alone"] == pytest.approx(speeds["ours"] / speeds["ours, one by one"])
    assert (row["compared"], row["mismatches"]) == (ALONE_REQUESTS + len(BATCH_TOKENS) * row["served"], 0)
    assert row["served"] == ROUNDS * QUICK.requests
    assert row["prompt_tokens"][0] < row["prompt_tokens"][1]
    assert row["tokens"][0] < row["tokens"][1]


def test_verification_is_timed_against_padding_with_either_cache(result: dict[str, Any]) -> None:
    row = row_of(result, EnginePart.VERIFICATION)
    passes = row["pass_ms"]
    padded = [f"padded, {name}" for name in CACHES]
    assert set(passes) == {"ours", *padded}
    assert row["ratio"] == pytest.approx(min(passes[name] for name in padded) / passes["ours"])
    assert row["context_tokens"] == [QUICK.longest_context_tokens // 8, QUICK.longest_context_tokens]
    assert 0 < row["padding_share"] < 1
    assert row["compared"] == len(CACHES) * QUICK.requests * (QUICK.draft_tokens + 1)
    assert row["mismatches"] == 0


def test_what_is_found_follows_from_the_rows(result: dict[str, Any]) -> None:
    ratios = {target["what"]: target["ratio"] for target in result["findings"]["targets"]}
    assert ratios == {
        "one request, against generate": row_of(result, EnginePart.PLAIN)["ratio"],
        "requests at once, against continuous batching": row_of(result, EnginePart.CONCURRENT)["ratio"],
        "requests at once, against one by one": row_of(result, EnginePart.CONCURRENT)["ratio_to_alone"],
        "packed verification, against padded": row_of(result, EnginePart.VERIFICATION)["ratio"],
    }
    assert result["findings"]["mismatches"] == 0
    assert result["findings"]["compared"] == sum(row.get("compared", 0) for row in result["rows"])


@pytest.mark.parametrize(
    ("model", "ratio", "is_met"), [(EMBEDDED, 1.49, False), (EMBEDDED, 1.5, True), ("llama-100m", 1.0, True)]
)
def test_more_is_wanted_of_the_embedded_target(model: str, ratio: float, is_met: bool) -> None:
    row = {"part": "plain", "model": model, "ratio": ratio, "compared": 1, "mismatches": 0, "near_ties": 1}
    found = findings_of([row])
    assert [target["is_met"] for target in found["targets"]] == [is_met]
    assert (found["compared"], found["near_ties"]) == (1, 1)


def test_sixteen_bits_are_given_more_near_ties() -> None:
    bits = measured_model("llama-tiny", replace(QUICK, dtype="bfloat16"))
    row = concurrent(bits, replace(QUICK, repeats=1), clock=count().__next__)
    assert (row["dtype"], row["mismatches"]) == ("bfloat16", 0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_everybody_writes_the_same() -> None:
    found: Any = run(replace(QUICK, device="cuda"), say=silent)
    assert found["findings"]["mismatches"] == 0
    assert {row["part"] for row in found["rows"]} == set(EnginePart)


def test_a_rival_that_cannot_run_is_quoted_not_timed(
    subject: MeasuredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def refused(model: TransformersModel, **options: int) -> Iterator[None]:
        raise RivalFailed("no paged attention here")
        yield

    monkeypatch.setattr(TransformersModel, "continuous_batching", refused)
    load = replace(QUICK, requests=2, repeats=1)
    row = concurrent(subject, load, clock=count().__next__)
    assert (row["ratio"], row["rival_error"]) == (None, "no paged attention here")
    assert set(row["tokens_per_s"]) == {"ours", "ours, one by one"}
    assert [target["what"] for target in findings_of([row])["targets"]] == ["requests at once, against one by one"]


def test_a_model_and_its_rival_write_the_same(subject: MeasuredModel) -> None:
    [text] = decoded(subject.engine, [(1, 2, 3)], [5])
    assert subject.rival.generate((1, 2, 3), tokens=5) == tuple(text.tokens)


def test_an_unknown_model_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="There is no model 'llama-2t'"):
        measured_model("llama-2t", QUICK)


def test_requests_at_once_write_what_each_writes_alone_and_give_their_pages_back() -> None:
    scripted = ScriptedEngine()
    found = decoded(scripted, PROMPTS, [4, 9, 1])
    alone = [
        plain_stream(scripted, prompt, Sampling(), tokens=tokens)
        for prompt, tokens in zip(PROMPTS, (4, 9, 1), strict=True)
    ]
    assert [tuple(text.tokens) for text in found] == alone
    assert scripted.open_sequences == 0


def test_a_packed_batch_is_as_before_after_each_pass() -> None:
    scripted = ScriptedEngine()
    batch = PackedBatch(scripted, PROMPTS)
    held = scripted.live_tokens
    first = batch.verify([(1, 2), (3, 4), (5, 6)])
    assert first == batch.verify([(1, 2), (3, 4), (5, 6)])
    assert [len(text.tokens) for text in first] == [2, 2, 2]
    assert scripted.live_tokens == held
    batch.close()
    assert scripted.open_sequences == 0


def test_rivals_take_turns_and_the_first_round_does_not_count() -> None:
    heard: list[str] = []
    ticks = iter([0.0, 1.0, 1.0, 3.0, 10.0, 12.0, 20.0, 25.0])
    timed = alternately(
        {"a": lambda: heard.append("a"), "b": lambda: heard.append("b")}, repeats=2, clock=ticks.__next__
    )
    assert heard == ["a", "b", "a", "b", "b", "a"]
    assert (timed["a"].seconds, timed["b"].seconds) == ((1.0, 5.0), (2.0, 2.0))
    assert (timed["a"].median_s, timed["b"].median_s) == (3.0, 2.0)


@pytest.mark.parametrize(
    ("others", "agreement"),
    [
        ((1, 2, 3), Agreement.EQUAL),
        ((1, 9, 9), Agreement.NEAR_TIE),
        ((9, 2, 3), Agreement.DIFFERENT),
        ((1, 2), Agreement.DIFFERENT),
    ],
)
def test_only_the_first_difference_counts(others: tuple[int, ...], agreement: Agreement) -> None:
    assert Decoded([1, 2, 3], [1.0, 1e-5, 1.0]).compared(others, near_tie=1e-3) is agreement


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 500))
def test_lengths_spread_from_the_least_to_the_most(number: int, least: int, more: int) -> None:
    lengths = spread(number, least=least, most=least + more)
    assert len(lengths) == number
    assert list(lengths) == sorted(lengths)
    assert lengths[0] == least
    assert number == 1 or lengths[-1] == least + more
    assert sorted(mixed(lengths, seed=1)) == list(lengths)


def test_prompts_have_the_lengths_asked_for_and_are_different() -> None:
    lengths = (3, 40, 700, 5, 40)
    for found in (embedded_prompts(lengths), random_prompts(lengths, vocab_tokens=200, seed=2)):
        assert tuple(len(prompt) for prompt in found) == lengths
        assert len(set(found)) == len(lengths)


def test_the_pool_has_room_for_everything_at_once() -> None:
    load = EngineOptions()
    assert load.pool_tokens >= 16 * (512 + 5)
    assert load.pool_tokens >= 16 * load.request_tokens
