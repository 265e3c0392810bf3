"""Recorded generations: files, prompts that name them, and what ships."""

import math

import numpy as np

from cosine_engine.zoo import names
from cosine_lab.emulation.traces import CANDIDATES, EOS, VOCAB_TOKENS, TraceSet


def test_the_shipped_traces_are_sound_and_each_is_found_by_its_prompt() -> None:
    traces = TraceSet.load_shipped()
    for trace in traces:
        prompt = trace.prompt()
        assert len(prompt) == trace.prompt_tokens and all(0 <= token < VOCAB_TOKENS for token in prompt)
        assert traces.find(prompt) is trace
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
