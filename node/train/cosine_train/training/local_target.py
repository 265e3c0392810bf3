"""A target on this machine that answers many questions at once and returns its likeliest tokens.

The engine is made for exact token trees; here only plain chains are needed, fast. Each answer has a slot of keys
and values, and one product covers all slots.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AttentionInterface

from cosine_node.engine.torch.sampling import best_tokens, noise_of
from cosine_protocol.errors import UsageError
from cosine_train.training.answers import Answer, TargetPrompt

ATTENTION_NAME: Final = "cosine_answer_slots"
"""The name of this attention in a model's configuration."""
BLOCK_TOKENS: Final = 64
"""Tokens by which the KV cache grows. Products over the whole cache need no copy, unlike those over a part."""
LIKELY_TOKENS: Final = 24
"""Likely tokens stored per position. The remaining probability is that of all others."""
SAMPLED_TOKENS: Final = 256
"""Candidates of a sampled token, since noise costs time. At 0.8 all others have a probability below 1 %."""
REFILL_SHARE: Final = 1 / 32
"""Share of the slots that are refilled together, by one pass."""
READ_ROWS: Final = 8
"""Bounds memory: texts that are read in one pass."""
TRIAL_TOKENS: Final = 12
"""Tokens with which this attention is compared with the model's own."""
TRIAL_TOLERANCE: Final = 0.25
"""Maximum relative distance of the logits. SmolLM2-135M had 0.07 in bfloat16."""


class AnswerSlots:
    """Keys and values of `slots` answers with their prompts, which grow with the longest of them.

    Within `filling` a pass feeds prompts, from position 0, to some slots; otherwise one token to every slot, at its
    place in `positions` [slots], all below `longest`.
    """

    def __init__(self, *, slots: int, device: torch.device) -> None:
        self.positions = torch.zeros(slots, dtype=torch.int64, device=device)
        # Kept here, since reading it from the device in each layer would synchronise.
        self.longest = 1
        self._slots = torch.arange(slots, device=device)
        self._filled: Tensor | None = None
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    @contextmanager
    def filling(self, slots: Sequence[int]) -> Iterator[None]:
        """Make the rows of a pass the prompts of these slots."""
        self._filled = torch.tensor(slots, device=self._slots.device)
        yield
        self._filled = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float) -> Tensor:
        """Write keys and values, and return the attention [rows, tokens, heads, width].

        Query, key and value are [rows, heads, tokens, width].
        """
        longest = key.shape[2] if self._filled is not None else self.longest
        keys, values = self._room(layer, key, value, longest)
        if self._filled is not None:
            keys[self._filled, :, : key.shape[2]] = key
            values[self._filled, :, : value.shape[2]] = value
            is_grouped = query.shape[1] != key.shape[1]
            output = F.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=scale, enable_gqa=is_grouped
            )
            return output.transpose(1, 2)
        rows, heads, _, width = query.shape
        keys[self._slots, :, self.positions] = key[:, :, 0]
        values[self._slots, :, self.positions] = value[:, :, 0]
        is_ahead = torch.arange(keys.shape[2], device=query.device) > self.positions[:, None]
        grouped = query.view(rows, key.shape[1], heads // key.shape[1], width)
        scores = grouped @ keys.transpose(-1, -2) * scale
        weights = scores.masked_fill_(is_ahead[:, None, None], float("-inf")).softmax(-1)
        return (weights @ values).view(rows, 1, heads, -1)

    def _room(self, layer: int, key: Tensor, value: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a layer, [slots, heads, at least `tokens`, width] each."""
        held = self._layers.get(layer)
        if held is not None and held[0].shape[2] >= tokens:
            return held
        capacity = -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS
        rooms = [part.new_zeros(len(self._slots), part.shape[1], capacity, part.shape[3]) for part in (key, value)]
        for room, part in zip(rooms, held or (), strict=False):
            room[:, :, : part.shape[2]] = part
        self._layers[layer] = (rooms[0], rooms[1])
        return self._layers[layer]


def slot_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    slots: AnswerSlots,
    scaling: float | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer over `slots`, as transformers calls it. Raises `UsageError` for other kinds."""
    others = (
        attention_mask,
        *(extra.get(name) for name in ("sliding_window", "softcap", "s_aux", "position_bias")),
    )
    if any(other is not None for other in others):
        raise UsageError("The target has an attention of its own, which cannot be batched here; ask it in a swarm.")
    layer: Any = module.layer_idx
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    output = slots.attend(layer, query, key, value, scale=scale)
    return output.reshape(*output.shape[:2], -1), None


AttentionInterface.register(ATTENTION_NAME, slot_attention)


@dataclass(slots=True)
class _Writing:
    """An unfinished answer in a slot, with the likely tokens and their logs of each position."""

    prompt: TargetPrompt
    tokens: list[int] = field(default_factory=list)
    likely_ids: list[NDArray[np.int32]] = field(default_factory=list)
    likely_logs: list[NDArray[np.float16]] = field(default_factory=list)


class LocalTarget:
    """A causal language model that writes up to `slots` answers at once, each until one of `eos` or `new_tokens`.

    Tokens are chosen as by a verifier, greedily or with the keyed noise of the seed, but only among the
    `SAMPLED_TOKENS` likeliest. The model's attention is replaced, so that it must not be used elsewhere. Raises
    `UsageError` for a model with special attention.
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
    def likely_after(self, tokens: Sequence[int], count: int) -> list[tuple[int, float]]:
        """Return the `count` likeliest next tokens after these, and their probabilities."""
        room = AnswerSlots(slots=1, device=self._last.device)
        with room.filling([0]):
            hidden = self._model.base_model(input_ids=self._padded([tokens]), slots=room, use_cache=False)[0]
        chances = self._model.get_output_embeddings()(hidden[0, -1:]).float().softmax(-1)[0]
        best = chances.topk(min(count, len(chances)))
        return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))

    def has_ended(self, answer: Answer) -> bool:
        """Return True for an answer that ends with an end token."""
        return answer.tokens[-1] in self._eos

    @torch.inference_mode()
    def answers(self, prompts: Iterable[TargetPrompt]) -> Iterator[Answer]:
        """Yield the answers as they end, in any order. Raises `UsageError` for NaN."""
        waiting = iter(prompts)
        room = AnswerSlots(slots=len(self._writing), device=self._last.device)
        while True:
            free = [slot for slot, writing in enumerate(self._writing) if writing is None]
            if len(free) >= max(1, round(REFILL_SHARE * len(self._writing))):
                self._begin(room, free, list(islice(waiting, len(free))))
                yield from self._ended(room)
            live = {slot: writing for slot, writing in enumerate(self._writing) if writing is not None}
            if not live:
                return
            room.longest = max(len(writing.prompt.tokens) + len(writing.tokens) for writing in live.values())
            output = self._model(
                input_ids=self._last[:, None],
                position_ids=room.positions[:, None].clone(),
                slots=room,
                use_cache=False,
            )
            room.positions[list(live)] += 1
            self._write(list(live), output.logits[list(live), 0])
            yield from self._ended(room)

    @torch.inference_mode()
    def readings(self, prompts: Iterable[TargetPrompt]) -> Iterator[Answer]:
        """Yield the given answers with the target's likely tokens. Raises `UsageError` for NaN."""
        waiting = iter(prompts)
        while batch := list(islice(waiting, READ_ROWS)):
            room = AnswerSlots(slots=len(batch), device=self._last.device)
            texts = [prompt.tokens + prompt.given[:-1] for prompt in batch]
            with room.filling(range(len(batch))):
                hidden = self._model.base_model(input_ids=self._padded(texts), slots=room, use_cache=False)[0]
            for row, prompt in enumerate(batch):
                places = hidden[row, len(prompt.tokens) - 1 : len(texts[row])]
                ids, logs = _likely(self._model.get_output_embeddings()(places))
                yield prompt.answer(prompt.given, ids, logs)

    def _padded(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Return tokens [rows, longest], padded at the end, which no token attends to."""
        padded = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64, device=self._last.device)
        for row, tokens in enumerate(rows):
            padded[row, : len(tokens)] = torch.tensor(tokens)
        return padded

    def _begin(self, room: AnswerSlots, free: Sequence[int], prompts: Sequence[TargetPrompt]) -> None:
        """Feed prompts into free slots, and choose the first token of each answer."""
        if not prompts:
            return
        taken = list(free[: len(prompts)])
        for slot, prompt in zip(taken, prompts, strict=True):
            self._writing[slot] = _Writing(prompt)
        padded = self._padded([prompt.tokens for prompt in prompts])
        ends = torch.tensor([len(prompt.tokens) for prompt in prompts], device=padded.device) - 1
        with room.filling(taken):
            hidden = self._model.base_model(input_ids=padded, slots=room, use_cache=False)[0]
        room.positions[taken] = ends + 1
        self._write(
            taken, self._model.get_output_embeddings()(hidden[torch.arange(len(taken), device=ends.device), ends])
        )

    def _write(self, slots: Sequence[int], logits: Tensor) -> None:
        """Choose the next token of these slots by `logits` [slots, vocabulary]."""
        writings = [writing for slot in slots if (writing := self._writing[slot]) is not None]
        likely, logs = _likely(logits)
        chosen = likely[:, 0].tolist()
        sampled = [row for row, writing in enumerate(writings) if writing.prompt.sampling.temperature]
        for row, token in zip(sampled, _sampled(logits[sampled], [writings[row] for row in sampled]), strict=True):
            chosen[row] = token
        for row, (writing, token) in enumerate(zip(writings, chosen, strict=True)):
            if not np.isfinite(logs[row, 0]):
                raise UsageError("The target gives NaN or infinite logits; choose another --dtype.")
            writing.tokens.append(token)
            writing.likely_ids.append(likely[row])
            writing.likely_logs.append(logs[row])
        fresh = [writing.tokens[-1] for writing in writings]
        self._last[list(slots)] = torch.tensor(fresh, device=self._last.device)

    def _ended(self, room: AnswerSlots) -> Iterator[Answer]:
        """Empty the slots of finished answers, and yield these."""
        for slot, writing in enumerate(self._writing):
            if writing is None:
                continue
            if writing.tokens[-1] in self._eos or len(writing.tokens) >= self._new_tokens:
                self._writing[slot] = None
                room.positions[slot] = 0
                tokens, ids, logs = tuple(writing.tokens), writing.likely_ids, writing.likely_logs
                yield writing.prompt.answer(tokens, np.stack(ids), np.stack(logs))


def _sampled(logits: Tensor, writings: Sequence[_Writing]) -> list[int]:
    """Return the next token of each of these answers, by `logits` [answers, vocabulary]."""
    if not writings:
        return []
    values, ids = best_tokens(logits, min(SAMPLED_TOKENS, logits.shape[1]))
    noise = noise_of(ids, [(writing.prompt.sampling.seed, len(writing.tokens)) for writing in writings])
    temperatures = torch.tensor([[writing.prompt.sampling.temperature] for writing in writings], device=ids.device)
    best = (values.float() / temperatures + noise).argmax(-1, keepdim=True)
    tokens: list[int] = ids.gather(1, best)[:, 0].tolist()
    return tokens


def _likely(logits: Tensor) -> tuple[NDArray[np.int32], NDArray[np.float16]]:
    """Return the likeliest tokens by `logits` [rows, vocabulary], and the logs of their probabilities."""
    scores = logits.float()
    values, ids = best_tokens(scores, min(LIKELY_TOKENS, scores.shape[1]))
    # Several times as fast as logsumexp on a CPU.
    totals = (scores - values[:, :1]).exp().sum(-1, keepdim=True).log() + values[:, :1]
    return ids.to(torch.int32).cpu().numpy(), (values - totals).to(torch.float16).cpu().numpy()


@torch.inference_mode()
def _trial_logits(model: Any, **attention: AnswerSlots) -> Tensor:
    """Return the logits after each of the first tokens of the vocabulary."""
    tokens = torch.arange(TRIAL_TOKENS, device=model.device)[None]
    logits: Tensor = model(input_ids=tokens, use_cache=False, **attention).logits
    return logits.float()
