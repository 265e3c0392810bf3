"""Recorded generations: files, prompts that name them, and what ships."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.emulation.traces import (
    CANDIDATES,
    DIGITS,
    EOS,
    VOCAB_TOKENS,
    DrafterTrace,
    Trace,
    TraceSet,
)
from cosine_node.zoo import DOMAINS, names
from cosine_protocol.errors import UsageError

MODELS = ("draft-a", "draft-b")


def drafter_trace(stream: Sequence[int], seed: int) -> DrafterTrace:
    """A drafter whose figures are exact in 16 bits, so that a file keeps them."""
    chance = np.random.default_rng(seed)
    n = len(stream)
    tokens = chance.permuted(np.tile(np.arange(1, 65, dtype=np.int32), (n, 1)), axis=1)[:, :CANDIDATES]
    tokens[:, 0] = np.where(chance.random(n) < 0.7, stream, tokens[:, 0])
    return DrafterTrace(
        candidate_tokens=tokens,
        candidate_probabilities=-np.sort(-chance.random((n, CANDIDATES))).astype(np.float16).astype(np.float32),
        log_probability=-chance.random(n).astype(np.float16).astype(np.float32),
        overlap=chance.random(n).astype(np.float16).astype(np.float32),
        prompt_nll=2.5,
    )


def a_trace(number: int, *, domain: str = "code", tokens: int = 12, temperature: float = 0.0) -> Trace:
    chance = np.random.default_rng(number)
    stream = tuple(chance.integers(65, VOCAB_TOKENS, tokens).tolist())
    return Trace(
        number=number,
        domain=domain,
        split="test",
        temperature=temperature,
        seed=number,
        prompt_tokens=DIGITS + number % 5,
        stream=stream,
        near_ties=tuple((chance.random(tokens) < 0.2).tolist()),
        drafters={model: drafter_trace(stream, number + i) for i, model in enumerate(MODELS)},
    )


traces = st.builds(
    a_trace,
    st.integers(0, VOCAB_TOKENS**DIGITS - 1),
    domain=st.sampled_from(DOMAINS),
    tokens=st.integers(1, 30),
    temperature=st.sampled_from([0.0, 0.8]),
)


def test_a_file_that_holds_no_traces_is_refused(tmp_path: Path) -> None:
    for name, content in (("text.npz", b"no traces"), ("empty.npz", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UsageError, match=name):
            TraceSet.load(tmp_path / name)
    with pytest.raises(UsageError, match=r"missing\.npz"):
        TraceSet.load(tmp_path / "missing.npz")


@given(trace=traces)
def test_a_prompt_finds_its_trace(trace: Trace) -> None:
    prompt = trace.prompt()
    assert len(prompt) == trace.prompt_tokens
    assert all(0 <= token < VOCAB_TOKENS for token in prompt)
    assert TraceSet([trace]).find(prompt) is trace


def test_the_shipped_traces_are_sound() -> None:
    for trace in TraceSet.load_shipped():
        assert tuple(trace.drafters) == tuple(sorted(set(names()) - {"target"}))
        assert 8 <= len(trace.stream) <= 128
        assert set(trace.stream[:-1]).isdisjoint(EOS)
        assert trace.stream[-1] in trace.eos or len(trace.stream) == 128
        for drafter in trace.drafters.values():
            claims, tokens = drafter.candidate_probabilities, drafter.candidate_tokens
            assert ((claims >= 0) & (claims <= 1)).all()
            assert (np.diff(claims, axis=1) <= 0).all()
            assert all(len(set(row)) == CANDIDATES for row in tokens.tolist())
            assert (drafter.log_probability <= 0).all()
            assert ((drafter.overlap >= 0) & (drafter.overlap <= 1)).all()
            assert 0 < drafter.prompt_nll < math.log(VOCAB_TOKENS)
            if trace.temperature == 0:
                assert ((tokens[:, 0] == trace.stream) == (drafter.overlap == 1)).all()
