"""Texts as `generate` of transformers writes them, greedily or with the noise of a request's seed."""

from typing import Any

import torch
import transformers as tf
from torch import Tensor

from cosine_protocol.noise import gumbel
from tests.node.engine.random_serving import Asked, Position


class _KeyedNoise(tf.LogitsProcessor):  # type: ignore[misc]  # transformers has no types
    """Noise of a seed on log-probabilities: the best token is then a sample of them."""

    def __init__(self, *, seed: int, prompt_tokens: int) -> None:
        self._seed = seed
        self._prompt_tokens = prompt_tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        position = input_ids.shape[1] - self._prompt_tokens
        noise = [gumbel(seed=self._seed, position=position, token=token) for token in range(scores.shape[1])]
        return scores.log_softmax(-1) + torch.tensor(noise)


def write_with_generate(model: Any, asked: Asked, tokens: int) -> list[Position]:
    """So many tokens of a request and their margins, by transformers' own loop, cache and filters."""
    sampling = asked.sampling
    processors = tf.LogitsProcessorList()
    if not sampling.is_greedy:
        processors += [
            tf.TemperatureLogitsWarper(sampling.temperature),
            tf.TopPLogitsWarper(sampling.top_p),
            _KeyedNoise(seed=sampling.seed, prompt_tokens=len(asked.prompt)),
        ]
    # Its own generation config may force the last token of a text, among others.
    model.generation_config = tf.GenerationConfig()
    written = model.generate(
        torch.tensor([asked.prompt]),
        do_sample=False,
        logits_processor=processors,
        max_new_tokens=tokens,
        eos_token_id=None,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
    )
    best = [scores[0].float().topk(2) for scores in written.scores]
    return [(int(ids[0]), float(values[0] - values[1])) for values, ids in best]
