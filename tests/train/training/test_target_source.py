"""The target in training, here or behind a swarm in memory: its answers, and the drafters made of it."""

import random

import pytest

from cosine_engine.vocabulary import DraftVocabulary
from cosine_protocol.request import Sampling
from cosine_train.training.answers import TargetPrompt
from cosine_train.training.target_source import SwarmSource
from tests.cosine_p2p.test_blocking import joining
from tests.swarm.reference import plain_stream, prompt_of

KNOWN = DraftVocabulary((5, 6, 70))
NEW_TOKENS = 9


@pytest.mark.parametrize("slots", [1, 4])
def test_of_a_swarm_the_answers_are_its_texts_and_drafters_begin_untrained(slots: int) -> None:
    limits = {"slots": slots, "new_tokens": NEW_TOKENS}
    source = SwarmSource(join=joining(), options={}, layers=1, width=64, seed=0, **limits)
    texts = [prompt_of(random.Random(number)) for number in range(4)]
    samplings = [Sampling(temperature=0.8 * (number % 2), seed=number) for number in range(4)]
    prompts = [
        TargetPrompt(number, "letters", tuple(source.codec.encode(text)), sampling)
        for number, (text, sampling) in enumerate(zip(texts, samplings, strict=True))
    ]
    answers = {answer.question: answer for answer in source.target().answers(prompts)}
    for prompt, text in zip(prompts, texts, strict=True):
        answer = answers[prompt.question]
        assert answer.tokens == plain_stream(text, prompt.sampling, tokens=NEW_TOKENS)
        assert (answer.prompt, answer.likely_ids.shape) == (prompt.tokens, (NEW_TOKENS, 0))
    assert source.new_drafter(KNOWN).config.hidden_size == 64
