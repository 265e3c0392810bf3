"""A target on this machine that answers many questions at once and tells what else it found likely."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cosine_node.distillation.answer_slots import ATTENTION_NAME, AnswerSlots
from cosine_node.distillation.answers import Answer
from cosine_node.engine.recipe import Query
from cosine_node.engine.sampling import best_tokens, choose
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling

LIKELY_TOKENS: Final = 24
"""A choice: tokens stored of each position. What is left joins the probability of all others."""
REFILL_SLOTS: Final = 8
"""A choice: slots that are filled again together, for their prompts are fed in one pass."""
READ_ROWS: Final = 8
"""Bounds memory: texts that are read in one pass."""
TRIAL_TOKENS: Final = 12
"""A choice: tokens on which a model with this attention must equal the model with its own."""
TRIAL_TOLERANCE: Final = 0.25
"""A choice: the distance of the logits by their norm. In bfloat16 SmolLM2-135M was 0.07 away."""


@dataclass(frozen=True, slots=True)
class TargetPrompt:
    """A question in tokens, and how its answer is to be chosen."""

    question: int
    domain: str
    tokens: tuple[int, ...]
    sampling: Sampling
    given: tuple[int, ...] = ()
    """An answer that somebody else gave, for `LocalTarget.readings`."""


@dataclass(slots=True)
class _Writing:
    """An answer under way in a slot, with the likely tokens and their logs of each position."""

    prompt: TargetPrompt
    tokens: list[int] = field(default_factory=list)
    likely_ids: list[NDArray[np.int32]] = field(default_factory=list)
    likely_logs: list[NDArray[np.float16]] = field(default_factory=list)

    def answer(self) -> Answer:
        return Answer(
            question=self.prompt.question,
            domain=self.prompt.domain,
            sampling=self.prompt.sampling,
            prompt=self.prompt.tokens,
            tokens=tuple(self.tokens),
            likely_ids=np.stack(self.likely_ids),
            likely_logs=np.stack(self.likely_logs),
        )


class LocalTarget:
    """A causal language model that writes up to `slots` answers at once, each until one of `eos` or `new_tokens`.

    Tokens are chosen as a verifier chooses them: greedily, or with the keyed noise of the seed. The model's
    attention is switched and it must not be used elsewhere. Raises `UsageError` for a model with an attention of
    its own.
    """

    def __init__(self, model: Any, *, eos: Iterable[int], slots: int, new_tokens: int) -> None:
        config = model.config.get_text_config()
        reference = _trial_logits(model.eval())
        model.set_attn_implementation(ATTENTION_NAME)
        room = AnswerSlots(slots=1, device=model.device)
        with room.filling([0]):
            found = _trial_logits(model, slots=room)
        if float((found - reference).norm() / reference.norm()) > TRIAL_TOLERANCE:
            raise UsageError(f"Models of type '{config.model_type}' have an attention that cannot be batched here.")
        self._model = model
        self._eos = frozenset(eos)
        self._new_tokens = new_tokens
        self._writing: list[_Writing | None] = [None] * slots
        self._last = torch.zeros(slots, dtype=torch.int64, device=model.device)

    @torch.inference_mode()
    def answers(self, prompts: Iterable[TargetPrompt]) -> Iterator[Answer]:
        """The answers as they end, in no order. Raises `UsageError` for a model that gives NaN."""
        waiting = iter(prompts)
        room = AnswerSlots(slots=len(self._writing), device=self._last.device)
        while True:
            free = [slot for slot, writing in enumerate(self._writing) if writing is None]
            if len(free) >= min(REFILL_SLOTS, len(self._writing)):
                self._begin(room, free, list(islice(waiting, len(free))))
                yield from self._ended(room)
            live = [slot for slot, writing in enumerate(self._writing) if writing is not None]
            if not live:
                return
            output = self._model(
                input_ids=self._last[:, None],
                position_ids=room.positions[:, None].clone(),
                slots=room,
                use_cache=False,
            )
            room.positions[live] += 1
            self._write(live, output.logits[live, 0])
            yield from self._ended(room)

    @torch.inference_mode()
    def readings(self, prompts: Iterable[TargetPrompt]) -> Iterator[Answer]:
        """The answers that were given, with what the target would have found likely at each of their tokens.

        Nothing waits for the token before it, as it does in writing. Raises `UsageError` as `answers`.
        """
        waiting = iter(prompts)
        while batch := list(islice(waiting, READ_ROWS)):
            room = AnswerSlots(slots=len(batch), device=self._last.device)
            texts = [prompt.tokens + prompt.given[:-1] for prompt in batch]
            with room.filling(range(len(batch))):
                hidden = self._model.base_model(input_ids=self._padded(texts), slots=room, use_cache=False)[0]
            for row, prompt in enumerate(batch):
                places = hidden[row, len(prompt.tokens) - 1 : len(texts[row])]
                ids, logs = _likely(self._model.get_output_embeddings()(places).float())
                yield Answer(
                    question=prompt.question,
                    domain=prompt.domain,
                    sampling=prompt.sampling,
                    prompt=prompt.tokens,
                    tokens=prompt.given,
                    likely_ids=ids,
                    likely_logs=logs,
                )

    def _padded(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Tokens [rows, longest]. What pads a row comes after it, so that nothing looks at it."""
        padded = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64, device=self._last.device)
        for row, tokens in enumerate(rows):
            padded[row, : len(tokens)] = torch.tensor(tokens)
        return padded

    def _begin(self, room: AnswerSlots, free: Sequence[int], prompts: Sequence[TargetPrompt]) -> None:
        """Feed prompts into free slots, and choose the first token of each answer."""
        if not prompts:
            return
        taken = list(free[: len(prompts)])
        lengths = [len(prompt.tokens) for prompt in prompts]
        for slot, prompt in zip(taken, prompts, strict=True):
            self._writing[slot] = _Writing(prompt)
        padded = self._padded([prompt.tokens for prompt in prompts])
        ends = torch.tensor(lengths, device=padded.device) - 1
        with room.filling(taken):
            hidden = self._model.base_model(input_ids=padded, slots=room, use_cache=False)[0]
        room.positions[taken] = ends + 1
        self._write(
            taken, self._model.get_output_embeddings()(hidden[torch.arange(len(taken), device=ends.device), ends])
        )

    def _write(self, slots: Sequence[int], logits: Tensor) -> None:
        """Choose the next token of these slots by `logits` [slots, vocabulary]."""
        writings = [writing for slot in slots if (writing := self._writing[slot]) is not None]
        queries = [Query(writing.prompt.sampling, len(writing.tokens)) for writing in writings]
        scores = logits.float()
        likely, logs = _likely(scores)
        for row, (writing, choice) in enumerate(zip(writings, choose(scores, queries), strict=True)):
            if choice is None:
                raise UsageError("The target gives NaN or infinite logits; choose another --dtype.")
            writing.tokens.append(choice.token)
            writing.likely_ids.append(likely[row])
            writing.likely_logs.append(logs[row])
        fresh = [writing.tokens[-1] for writing in writings]
        self._last[list(slots)] = torch.tensor(fresh, device=self._last.device)

    def _ended(self, room: AnswerSlots) -> Iterator[Answer]:
        """Empty the slots whose answers have come to their end."""
        for slot, writing in enumerate(self._writing):
            if writing is None:
                continue
            if writing.tokens[-1] in self._eos or len(writing.tokens) >= self._new_tokens:
                self._writing[slot] = None
                room.positions[slot] = 0
                yield writing.answer()


def _likely(scores: Tensor) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
    """The likeliest tokens by `scores` [rows, vocabulary] in float32, and the logs of their probabilities."""
    values, ids = best_tokens(scores, min(LIKELY_TOKENS, scores.shape[1]))
    # Several times as fast on a CPU as logsumexp.
    totals = (scores - values[:, :1]).exp().sum(-1, keepdim=True).log() + values[:, :1]
    return ids.to(torch.int32).cpu().numpy(), (values - totals).to(torch.float16).cpu().numpy()


@torch.inference_mode()
def _trial_logits(model: Any, **attention: AnswerSlots) -> Tensor:
    """Logits after each of the first tokens of the vocabulary."""
    tokens = torch.arange(TRIAL_TOKENS, device=model.device)[None]
    logits: Tensor = model(input_ids=tokens, use_cache=False, **attention).logits
    return logits.float()
