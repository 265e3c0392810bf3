"""A target behind a swarm in memory is asked by ordinary requests."""

import random

import pytest

from cosine_node.training.local_target import TargetPrompt
from cosine_node.training.swarm_target import SwarmTarget
from cosine_p2p.client import Join
from cosine_protocol.request import Sampling
from tests.cosine_p2p.test_blocking import joining
from tests.swarm.reference import plain_stream, prompt_of

NEW_TOKENS = 9


@pytest.mark.parametrize("slots", [1, 4])
def test_answers_are_the_texts_of_the_swarm(slots: int) -> None:
    join: Join = joining()
    target = SwarmTarget(join, {}, slots=slots, new_tokens=NEW_TOKENS)
    texts = [prompt_of(random.Random(number)) for number in range(4)]
    prompts = [
        TargetPrompt(
            number,
            "letters",
            tuple(target.codec.encode(text)),
            Sampling(temperature=0.8 * (number % 2), seed=number),
        )
        for number, text in enumerate(texts)
    ]
    answers = {answer.question: answer for answer in target.answers(prompts)}
    for prompt, text in zip(prompts, texts, strict=True):
        answer = answers[prompt.question]
        assert answer.tokens == plain_stream(text, prompt.sampling, tokens=NEW_TOKENS)
        assert answer.prompt == prompt.tokens
        assert answer.likely_ids.shape == (NEW_TOKENS, 0)
