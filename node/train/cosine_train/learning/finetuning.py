"""One round of learning: weights are fine-tuned on the target's text, and kept close to their earlier predictions.

The drafter learns from the target's text, as guided experience in E2CL (Wang et al. 2024). On text that the shipped
weights write, the new weights stay close to them (self-distillation, as in "learning without forgetting", Li and
Hoiem 2016).
"""

import copy
import math
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

from cosine_engine.base import Engine
from cosine_engine.forward.support import cache_parameter
from cosine_engine.torch.loading import load_model
from cosine_engine.vocabulary import DraftVocabulary
from cosine_protocol.errors import UsageError
from cosine_train.learning.child import RoundOutcome
from cosine_train.learning.decision import Acceptance
from cosine_train.learning.streams import VerifiedStream
from cosine_train.training.distilling import POOL_TOKENS, drafter_in, right_choices
from cosine_train.training.loop import TrainingPlan, train
from cosine_train.training.new_drafter import adopt, tables_by_token

LONGEST_TOKENS: Final = 1024
"""Bounds the memory of a step: of a longer text only the end of the prompt and the beginning are used."""
MOST_TOKENS: Final = 200_000
"""Bounds the time of a round: tokens of all epochs together. Of more texts the newest are used."""
UNKNOWN: Final = -1
"""No token of any target, so that every vocabulary maps it to its reserved id."""
LEAST_TIMES: Final = 2
"""Minimum count of a new token: a token seen once may not occur again, and teaches little."""
MOST_KNOWN: Final = 16_384
"""Maximum vocabulary. At width 576 an output of this size costs as much as two or three layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSettings:
    """Settings of a round. Positions with a wrong guess or none count `wrong_weight` times.

    `own_weight` is the weight of the distance to the shipped weights on `own_texts` texts of `own_tokens` tokens
    that these write. `vocab_tokens` are the target's.

    Tuned together, on `draft-dialogue` and `smol-code` with medical texts: the gain grows up to nine epochs, and
    `own_weight` limits the loss in the drafter's own domain to two points. Half as many own texts are memorised in
    nine epochs, and more of other texts is forgotten.
    """

    vocab_tokens: int
    seed: int = 0
    epochs: float = 9.0
    batch_rows: int = 8
    learning_rate: float = 1e-3
    wrong_weight: float = 2.0
    own_weight: float = 8.0
    own_texts: int = 256
    own_tokens: int = 128


def train_round(
    base: Path,
    learned: Sequence[VerifiedStream],
    held_out: Sequence[VerifiedStream],
    out: Path,
    settings: RoundSettings,
    *,
    shipped: Path,
) -> RoundOutcome:
    """Train the weights of the folder `base` and write them to the folder `out`, in bfloat16.

    The predictions of the `shipped` weights limit forgetting over many rounds. Raises `UsageError` without texts.
    """
    began_s = time.monotonic()
    vocabulary = DraftVocabulary.read(base)
    learned = _newest(learned)
    if not learned:
        raise UsageError("There are no texts to learn from.")
    torch.manual_seed(settings.seed)
    rng = random.Random(settings.seed)
    model = load_model(str(base), dtype=torch.float32)
    old = (copy.deepcopy(model) if shipped == base else load_model(str(shipped), dtype=torch.float32)).eval()
    shipped_vocabulary = DraftVocabulary.read(shipped)
    starts = [rng.choice(learned).prompt[0] for _ in range(settings.own_texts)]
    own_text = _own_text(old, starts, shipped_vocabulary, tokens=settings.own_tokens)
    if vocabulary is not None and (larger := grown(model, vocabulary, (one.tokens for one in learned))) is not None:
        model, vocabulary = larger
    places = None
    if vocabulary is not None and shipped_vocabulary is not None:
        places = torch.tensor(vocabulary.own_tokens((*shipped_vocabulary.target_ids, UNKNOWN)))

    def draw(step: int) -> list[VerifiedStream]:
        return rng.sample(learned, min(settings.batch_rows, len(learned)))

    def loss_of(new: Any, streams: list[VerifiedStream]) -> Tensor:
        experienced = _experience_loss(new, streams, vocabulary, settings.wrong_weight)
        rows = own_text[rng.sample(range(len(own_text)), min(settings.batch_rows, len(own_text)))]
        return experienced + settings.own_weight * _own_loss(new, old, rows, places)

    tokens = sum(len(stream.tokens) for stream in learned)
    epochs = min(settings.epochs, MOST_TOKENS / tokens)
    steps = math.ceil(epochs * len(learned) / settings.batch_rows)
    plan = TrainingPlan(
        learning_rate=settings.learning_rate,
        warmup_steps=max(1, min(10, steps // 10)),
        weight_decay=0.01,
        budget_steps=steps,
    )
    train(model.train(), draw, loss_of, plan, device="cpu")
    model.to(torch.bfloat16).save_pretrained(out)
    if vocabulary is not None:
        vocabulary.write(out)
    before, after = (
        acceptance_along(drafter_in(folder, vocab_tokens=settings.vocab_tokens), held_out) for folder in (base, out)
    )
    return RoundOutcome(
        before=before,
        after=after,
        trained_tokens=round(epochs * tokens),
        steps=steps,
        seconds=time.monotonic() - began_s,
    )


def acceptance_along(drafter: Engine, streams: Sequence[VerifiedStream]) -> Acceptance:
    """Return the right first choices along texts, with the target's noise; too long texts are left out."""
    longest = min(drafter.context_tokens, POOL_TOKENS)
    fitting = [stream for stream in streams if len(stream.prompt) + len(stream.tokens) <= longest]
    right = sum(right_choices(drafter, one.prompt, one.tokens, one.sampling) for one in fitting)
    return Acceptance(right, sum(len(stream.tokens) for stream in fitting))


def _newest(streams: Sequence[VerifiedStream]) -> list[VerifiedStream]:
    """Return the last streams, of `MOST_TOKENS` in all."""
    newest: list[VerifiedStream] = []
    tokens = 0
    for stream in reversed(streams):
        tokens += len(stream.tokens)
        if tokens > MOST_TOKENS:
            break
        newest.append(stream)
    return newest[::-1]


def _experience_loss(
    model: Any, streams: Sequence[VerifiedStream], vocabulary: DraftVocabulary | None, wrong_weight: float
) -> Tensor:
    """Return the cross-entropy with the target's tokens; those not guessed count `wrong_weight` times."""
    texts = []
    for stream in streams:
        text = stream.tokens[: LONGEST_TOKENS // 2]
        prompt = stream.prompt[len(text) - LONGEST_TOKENS :]
        texts.append((_own(vocabulary, prompt + text), len(prompt), stream.guesses[: len(text)], text))
    rows = torch.zeros(len(texts), max(len(tokens) for tokens, *_ in texts) - 1, dtype=torch.long)
    at_row: list[int] = []
    at_column: list[int] = []
    wanted: list[int] = []
    weights: list[float] = []
    for row, (tokens, prompt_tokens, guesses, text) in enumerate(texts):
        rows[row, : len(tokens) - 1] = torch.tensor(tokens[:-1])
        at_row += [row] * len(text)
        at_column += range(prompt_tokens - 1, len(tokens) - 1)
        wanted += tokens[prompt_tokens:]
        weights += [1.0 if guess == token else wrong_weight for guess, token in zip(guesses, text, strict=True)]
    hidden = model.base_model(input_ids=rows, use_cache=False)[0][at_row, at_column]
    logs = model.get_output_embeddings()(hidden).float().log_softmax(-1)
    losses = functional.nll_loss(logs, torch.tensor(wanted), reduction="none")
    return torch.dot(torch.tensor(weights) / sum(weights), losses)


def _own_loss(model: Any, old: Any, rows: Tensor, places: Tensor | None) -> Tensor:
    """The divergence of the new weights from the shipped on text of the shipped (forward KL).

    `places` are the new ids of the shipped weights' ids, the reserved one last; None where both are the same.
    """
    with torch.no_grad():
        before = old(input_ids=rows, use_cache=False).logits.float().log_softmax(-1)
    after = model(input_ids=rows if places is None else places[rows], use_cache=False).logits.float()
    after = after.log_softmax(-1)
    if places is not None:
        after = in_earlier_ids(after, places[:-1])
    divergence: Tensor = (before.exp() * (before - after)).sum(-1).mean()
    return divergence


@torch.no_grad()
def _own_text(model: Any, starts: Sequence[int], vocabulary: DraftVocabulary | None, *, tokens: int) -> Tensor:
    """Return texts that a model writes, each from one token."""
    text = torch.tensor(_own(vocabulary, starts))[:, None]
    name = cache_parameter(type(model))
    assert name is not None
    last, past = text, None
    for _ in range(tokens):
        outcome = model(input_ids=last, use_cache=True, **{name: past})
        logits, past = outcome.logits[:, -1].float(), outcome[name]
        if vocabulary is not None:
            logits[:, vocabulary.reserved_id :] = -math.inf
        last = torch.multinomial(logits.softmax(-1), 1)
        text = torch.cat([text, last], dim=1)
    return text


def _own(vocabulary: DraftVocabulary | None, tokens: Sequence[int]) -> tuple[int, ...]:
    return tuple(tokens) if vocabulary is None else vocabulary.own_tokens(tokens)


def grown(
    model: Any, vocabulary: DraftVocabulary, texts: Iterable[tuple[int, ...]]
) -> tuple[Any, DraftVocabulary] | None:
    """Return the model and vocabulary extended by frequent unknown tokens; None without such tokens.

    New tokens begin as the reserved id, which represented them before.
    """
    known = set(vocabulary.target_ids)
    counts = Counter(token for text in texts for token in text if token not in known)
    often = [token for token, times in counts.most_common() if times >= LEAST_TIMES]
    often = often[: max(0, MOST_KNOWN - len(known))]
    if not often:
        return None
    larger = DraftVocabulary(tuple(sorted((*vocabulary.target_ids, *often))))
    config = copy.deepcopy(model.config)
    config.vocab_size = larger.reserved_id + 1
    taught: Any = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager", trust_remote_code=False
    )
    weights = model.state_dict()
    with torch.no_grad():
        for name, weight in taught.state_dict().items():
            if name in tables_by_token(taught):
                weight[:] = weights[name][vocabulary.reserved_id]
    adopt(taught, model, larger, vocabulary)
    return taught, larger


def in_earlier_ids(logs: Tensor, places: Tensor) -> Tensor:
    """Return log-probabilities [..., earlier tokens and the reserved id], to which new tokens are added.

    `places` are the present ids of the earlier tokens.
    """
    is_new = torch.ones(logs.shape[-1], dtype=torch.bool)
    is_new[places] = False
    return torch.cat([logs[..., places], logs[..., is_new].logsumexp(-1, keepdim=True)], -1)
