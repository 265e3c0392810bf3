"""The recorder on the shipped weights: what it writes down is what a node's engine would say."""

import json
import lzma
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from cosine_lab.emulation.traces import CANDIDATES, EOS, TraceSet
from cosine_lab.training import record_traces
from cosine_lab.training.record_traces import RecordedModel, TargetOutput, compose, write
from cosine_node import zoo
from cosine_node.engine.base import PREFIX, Choice, Engine, Row
from cosine_protocol.request import Sampling

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

DRAFTER = "draft-math"


@pytest.fixture(scope="module")
def target() -> RecordedModel:
    return RecordedModel.load("target")


@pytest.fixture(scope="module")
def drafter() -> RecordedModel:
    return RecordedModel.load(DRAFTER)


def a_prompt() -> tuple[int, ...]:
    tokenizer = Tokenizer.from_file(str(zoo.tokenizer_folder() / "tokenizer.json"))
    return tuple(zoo.prompts("math")[0].token_ids(tokenizer))


def step_by_step(engine: Engine, written: TargetOutput) -> list[tuple[Choice, float | None]]:
    """What an engine says before each token of a stream, one token a pass."""
    sequence = engine.open(sampling=written.sampling, prompt_tokens=len(written.prompt))
    said = []
    for fed in (written.prompt, *((token,) for token in written.stream[:-1])):
        nodes = tuple(range(len(fed)))
        row = Row(sequence, fed, nodes, (PREFIX, *nodes[:-1]), len(fed) - 1, CANDIDATES, wants_nll=True)
        (result,) = engine.forward([row])
        engine.keep(sequence, nodes)
        said.append((result.choices[0], result.nll))
    engine.release(sequence)
    return said


def overlaps(first: torch.Tensor, second: torch.Tensor, temperature: float) -> list[float]:
    """1 - TV of two models' distributions, straight from the definition."""
    p, q = (torch.softmax(logits.double() / temperature, -1) for logits in (first, second))
    return (1 - (p - q).abs().sum(-1) / 2).tolist()


@pytest.mark.parametrize("temperature", record_traces.TEMPERATURES)
def test_the_record_is_what_the_engine_says_token_by_token(
    target: RecordedModel, drafter: RecordedModel, temperature: float
) -> None:
    sampling = Sampling(temperature=temperature, seed=5)
    written = write(target.engine, a_prompt(), sampling, 32)
    record = compose(written, target, {DRAFTER: drafter}, domain="math", split="test").drafters[DRAFTER]
    said = step_by_step(drafter.engine, written)
    assert said[0][1] == pytest.approx(record.prompt_nll, abs=1e-4)
    for (choice, _), tokens, claims in zip(
        said, record.candidate_tokens, record.candidate_probabilities, strict=True
    ):
        assert [token for token, _ in choice.candidates] == tokens.tolist()
        assert [claim for _, claim in choice.candidates] == pytest.approx(claims.tolist(), abs=1e-4)


@pytest.mark.parametrize("temperature", record_traces.TEMPERATURES)
def test_likelihood_and_overlap_are_those_of_the_models(
    target: RecordedModel, drafter: RecordedModel, temperature: float
) -> None:
    written = write(target.engine, a_prompt(), Sampling(temperature=temperature, seed=5), 16)
    record = compose(written, target, {DRAFTER: drafter}, domain="math", split="test").drafters[DRAFTER]
    p, q = (voice.logits_along(written.prompt, written.stream) for voice in (target, drafter))
    likelihoods = [float(row.log_softmax(-1)[token]) for row, token in zip(q, written.stream, strict=True)]
    assert record.log_probability.tolist() == pytest.approx(likelihoods, abs=1e-4)
    if temperature:
        assert record.overlap.tolist() == pytest.approx(overlaps(p, q, temperature), abs=1e-4)
    else:
        assert record.overlap.tolist() == (p.argmax(-1) == q.argmax(-1)).float().tolist()


def test_the_stream_is_the_targets_own_up_to_its_end(target: RecordedModel) -> None:
    written = write(target.engine, a_prompt(), Sampling(temperature=0.8, seed=3), 128)
    assert set(written.stream[:-1]).isdisjoint(EOS)
    assert written.stream[-1] in EOS or len(written.stream) == 128
    assert tuple(choice.token for choice, _ in step_by_step(target.engine, written)) == written.stream


@pytest.mark.soak
def test_every_domain_is_recorded_from_different_prompts(tmp_path: Path) -> None:
    for domain in zoo.DOMAINS:
        texts = [f"{domain} {number} " + " ".join(map(str, range(number, 80 + number))) for number in range(9)]
        with lzma.open(tmp_path / f"{domain}.dev.jsonl.xz", "wt", encoding="utf-8") as lines:
            lines.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    out = tmp_path / "traces.npz"
    options = ["--tune-prompts", "1", "--test-prompts", "2", "--limit-tokens", "8"]
    record_traces.main(["--corpora", str(tmp_path), "--out", str(out), *options])
    traces = TraceSet.load(out)
    assert [trace.number for trace in traces] == list(range(5 * 3 * 2))
    for domain in zoo.DOMAINS:
        for temperature in record_traces.TEMPERATURES:
            found = traces.select(domains=[domain], temperature=temperature)
            assert [trace.split for trace in found] == ["tune", "test", "test"]
            assert len({trace.drafters[DRAFTER].prompt_nll for trace in found}) == 3
