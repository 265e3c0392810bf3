"""A self-test at load: do passes over token trees and shared pages give the logits of the model's own way?

That way is `generate`'s: a prompt into the model's cache, then token by token. Configurations cannot be trusted to
say everything, so a few texts are run both ways, in the dtype that will serve. How far rounding moves logits is
measured on the same model, text by text: after a run of spaces it moves what leaves the first nine layers of Gemma
3 270M up to 34 times as far as usual. Sliding windows are shortened meanwhile: a text longer than a window of 4096
tokens would take longer than the whole start, and the modules read the same number.
"""

import inspect
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from cosine_node.engine.base import Row
from cosine_node.engine.context_length import UNBOUNDED_TOKENS
from cosine_node.engine.kv_pool import PAGE_TOKENS, PagePool
from cosine_node.engine.paged import PagedEngine
from cosine_node.engine.pool_size import TokenBytes
from cosine_node.engine.self_test import POOL_TOKENS, Group, SelfTestRow, SelfTestTexts, Text, self_test_rows
from cosine_node.engine.torch.attention import latent_layers
from cosine_node.engine.torch.cached_model import CachedModel
from cosine_node.engine.torch.partial_model import few_layers, part_of
from cosine_node.engine.torch.pass_model import PassModel
from cosine_node.engine.torch.pass_way import PassWay
from cosine_node.engine.torch.support import (
    UnsupportedModel,
    cache_parameter,
    context_tokens,
    numerics,
    packed_obstacle,
)
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling

LOG = logging.getLogger(__name__)

Logits = dict[Text, Tensor]
"""Float32 logits [vocab] after each text."""


def cached_logits(model: Any, texts: SelfTestTexts) -> Logits:
    """Those of `generate`: a prompt fills the model's own cache, then token by token. `far` needs no cache."""
    first, second = texts.branches
    branches = [(*branch, texts.after_branch) for branch in (first, second)]
    deeper = [
        (*path, texts.after_grandchildren)
        for path in zip(texts.siblings, texts.children, texts.grandchildren, strict=True)
    ]
    far, positions = _far(texts)
    return {
        **_stepped(model, texts.long, branches),
        **_stepped(model, texts.short, deeper),
        **dict(_whole(model, far, positions)),
    }


@dataclass(frozen=True, slots=True)
class Rounding:
    """How far rounding moves the logits after a text, once for each of `ROUNDINGS` copies with other rounding.

    `of_ways` is against the way with a cache, `of_copies` against the same text without one and without copies.
    """

    of_ways: tuple[float, ...]
    of_copies: tuple[float, ...]

    def without(self, copy: int) -> "Rounding":
        """What the other copies show."""
        return Rounding(*(found[:copy] + found[copy + 1 :] for found in (self.of_ways, self.of_copies)))


def roundings(model: Any, texts: SelfTestTexts, expected: Logits) -> dict[Text, Rounding]:
    """How far rounding moves the logits after every text, by another exact way: whole texts without a cache.

    Each element of the embeddings is moved to a neighbouring number of the dtype, otherwise in each of the copies.
    From there on each copy rounds independently of the text as it is: their difference is the rounding of the whole
    model in this dtype. A model whose two ways do not give the same logits shows that between its ways alone.
    """
    paths = zip(texts.siblings, texts.children, texts.grandchildren, strict=True)
    alike = [
        ([(*texts.long, *branch, texts.after_branch) for branch in texts.branches], None),
        ([(*texts.short, *path, texts.after_grandchildren) for path in paths], None),
        _far(texts),
    ]
    as_they_are = dict(chain(*(_whole(model, equally_long, positions) for equally_long, positions in alike)))
    found: dict[Text, list[Tensor]] = {}
    hook = model.get_input_embeddings().register_forward_hook(_to_neighbours)
    try:
        for equally_long, positions in alike:
            for text, logits in _whole(model, ROUNDINGS * equally_long, positions):
                found.setdefault(text, []).append(logits)
    finally:
        hook.remove()
    return {
        text: Rounding(
            tuple(error_of(logits, expected[text]) for logits in copies),
            tuple(error_of(logits, as_they_are[text]) for logits in copies),
        )
        for text, copies in found.items()
    }


def _far(texts: SelfTestTexts) -> tuple[list[Text], Sequence[int] | None]:
    """The texts that end where the context does, and their positions; None for those from 0 on."""
    begin, *rest = texts.far
    # Not every model can be told positions: those from 0 on are its own.
    are_own = texts.far_positions == tuple(range(len(texts.far_positions)))
    return [begin + branch for branch in rest], None if are_own else texts.far_positions


def _to_neighbours(module: nn.Module, inputs: object, embeddings: Tensor) -> Tensor:
    """Move elements up and down in a pattern for each text: a common factor would be lost in normalisation."""
    del module, inputs
    generator = torch.Generator().manual_seed(0)
    texts, *others, width = embeddings.shape
    signs = torch.randint(0, 2, (texts, *(1 for _ in others), width), generator=generator) * 2 - 1
    return embeddings * (1 + torch.finfo(embeddings.dtype).eps * signs.to(embeddings))


def _stepped(model: Any, prompt: Text, continuations: Sequence[Text]) -> Logits:
    """A prompt in one pass, then its continuations, equally long, a token of each in one pass."""
    parameters = inspect.signature(type(model).forward).parameters
    name = cache_parameter(type(model))
    output = model(input_ids=_ids(model, [prompt]), use_cache=True)
    found = dict(_by_text([prompt], output.logits))
    cache = getattr(output, name, None) if name else None
    if name is None or cache is None:
        raise UnsupportedModel(model.config.model_type, "it keeps no cache of transformers")
    cache.reorder_cache(torch.zeros(len(continuations), dtype=torch.int64, device=model.device))
    for step in range(len(continuations[0])):
        ids = _ids(model, [(continuation[step],) for continuation in continuations])
        arguments: dict[str, Any] = {name: cache, "use_cache": True}
        # `generate` says the positions, and some models do not count them otherwise.
        if "position_ids" in parameters:
            arguments["position_ids"] = torch.full_like(ids, len(prompt) + step)
        output = model(input_ids=ids, **arguments)
        for continuation, logits in zip(continuations, output.logits[:, -1].float(), strict=True):
            found[prompt + continuation[: step + 1]] = logits
    return found


def _whole(model: Any, texts: Sequence[Text], positions: Sequence[int] | None) -> Iterator[tuple[Text, Tensor]]:
    """Equally long texts in one pass without a cache, at the positions from 0 or at others."""
    ids = _ids(model, texts)
    placed = {}
    if positions is not None:
        # With a mask of their own, tokens whose positions do not follow each other still are one text.
        placed = {
            "position_ids": torch.tensor(positions, device=model.device).expand_as(ids),
            "attention_mask": torch.ones_like(ids),
        }
    return _by_text(texts, model(input_ids=ids, use_cache=False, **placed).logits)


def _by_text(texts: Sequence[Text], logits: Tensor) -> Iterator[tuple[Text, Tensor]]:
    """The logits [texts, tokens, vocab] of a pass over equally long texts by what each token ends."""
    for text, rows in zip(texts, logits.float(), strict=True):
        yield from ((text[: i + 1], row) for i, row in enumerate(rows))


def _ids(model: Any, texts: Sequence[Text]) -> Tensor:
    return torch.tensor(texts, dtype=torch.int64, device=model.device)


class _FarTree(SequenceTree):
    """A sequence whose tokens stand at given positions by their depth. Its nodes may not be kept."""

    __slots__ = ("positions",)

    def __init__(self, positions: Sequence[int]) -> None:
        super().__init__(sampling=Sampling(), prompt_tokens=0)
        self.positions = positions

    def index_after(self, parent: int) -> int:
        return self.positions[len(self.path(parent))]


class SelfTestPasses(PagedEngine):
    """A model of at least `POOL_TOKENS` slots over an empty pool: good for one `run`."""

    def __init__(self, passes: PassModel) -> None:
        self._passes = passes
        super().__init__(
            PagePool(tokens=POOL_TOKENS),
            vocab_tokens=passes.vocab_tokens,
            # A model whose context is shorter than the self-test says so itself.
            context_tokens=max(context_tokens(passes.model.config), POOL_TOKENS),
            numerics=numerics(passes.model),
        )

    def run(self, texts: SelfTestTexts) -> list[SelfTestRow[Tensor]]:
        """The rows of the self-test, in six passes."""
        far = self.open(sampling=Sampling(), prompt_tokens=0)
        self._trees[far] = _FarTree(texts.far_positions)
        return self_test_rows(self, self._logits, texts, far=far)

    def _logits(self, rows: Sequence[Row]) -> list[Tensor]:
        trees = self.feed(rows)
        wanted = list(range(sum(len(row.tokens) for row in rows)))
        logits = self._passes.logits(list(zip(trees, rows, strict=True)), wanted=wanted)
        return list(logits.float())


SELF_TEST_WINDOW: Final = 4
"""Shorter than every text of the self-test, so that a model that ignores its window is noticed."""
ROUNDINGS: Final = 2
"""Where one direction of a text outgrows the others, an error is three times the larger of two in one text of 16,
and three times a single one in one of 5 (normal errors)."""
MOST_UNITS: Final = 3.0
"""In units of the text's rounding: 16-bit rows of dense models reached 1.2 (trained, 7M weights) and 1.1 (tiny),
rows of Gemma 3 270M in float32 that round 30 times as far as others 2.9."""
LEAST_TOLERANCE: Final = 1e-4
"""For float32, in standard deviations of the logits: scores so close count as near-ties in a result."""
MOST_BETWEEN_WAYS: Final = 1e-3
"""Up to here, in the same unit, what the two ways differ by in one text is rounding: large numbers that cancel are
summed in another order, and copies do not show that. Models whose ways are not the same differ by 0.4 and more."""
MOST_TOLERANCE: Final = 2.0
"""In the same unit: faults in small models move logits by 0.2 to 5: above, few could be told."""
OUTLIERS_ALLOWED: Final = 3.0
"""Rounding that moves experts of a mixture strikes rows at random, rarely so many times more."""
MOST_OUTLIERS: Final = 0.5
"""Faults strike all rows of a group or nearly all."""
ATTEMPTS: Final = 4
"""A group fails with each of so many texts, or by chance; a mixture with 10 % outliers in 1 of 1000."""

FAILURES: Final = (
    *(TypeError, ValueError, AttributeError, LookupError),
    *(AssertionError, NotImplementedError, RuntimeError),
)
"""What models raise that do not follow transformers' attention interface."""


def find_way(model: Any) -> PassWay:
    """The fastest way in which a model's passes are exact. Raises `UnsupportedModel` if there is none.

    A part of a model has packed passes only.
    """
    ways = possible_ways(model)
    if part_of(model) is not None:
        ways = [way for way in ways if way.is_packed]
    if not ways:
        raise UnsupportedModel(model.config.model_type, "its passes cannot be packed, so it cannot be run in parts")
    for way in ways:
        try:
            check_exactness(model, way)
        except UnsupportedModel:
            if way is ways[-1]:
                raise
        else:
            break
    return way


def possible_ways(model: Any) -> list[PassWay]:
    """The ways in which a model's passes might be exact, by its configuration and layers; the fastest first."""
    if packed_obstacle(type(model), model.config) is not None:
        return [PassWay.CACHED, PassWay.STEPPED]
    return [way for way in PassWay if way is not PassWay.EXPANDED or latent_layers(model)]


def check_exactness(model: Any, way: PassWay = PassWay.PACKED) -> None:
    """Raise `UnsupportedModel` unless passes equal the model's own. Leaves the attention of that way on.

    24 passes over 412 tokens, and again with other texts only where a group of rows was off. Of a part of a model,
    which may have as many weights as fit into a machine, they go through few layers of each kind.
    """
    model_type: str = model.config.model_type
    suspects: dict[Group, float] = {}
    try:
        tried = nullcontext() if part_of(model) is None else few_layers(model)
        with tried, short_windows(model) as has_window, torch.inference_mode():
            passes = way.pass_model(model, slots=POOL_TOKENS)
            if way is PassWay.CACHED and isinstance(passes, CachedModel) and passes.forgets_state():
                raise UnsupportedModel(
                    model_type, "in a self-test several tokens at once forgot the state of a layer"
                )
            for attempt in range(ATTEMPTS):
                off = off_groups(passes, attempt, way, has_window=has_window)
                suspects = {group: units for group, units in off.items() if not attempt or group in suspects}
                if not suspects:
                    return
    except (torch.OutOfMemoryError, UnsupportedModel):
        raise
    except FAILURES as failure:
        said = next(iter(str(failure).splitlines()), type(failure).__name__)
        raise UnsupportedModel(model_type, f"a self-test pass failed ({said})") from failure
    group, units = next(iter(suspects.items()))
    raise UnsupportedModel(
        model_type,
        f"in a self-test {group} gave other logits than its own passes with a cache, "
        f"{units:,.0f} times as far off as rounding in {_name(model.dtype)} takes them",
    )


def off_groups(passes: PassModel, attempt: int, way: PassWay, *, has_window: bool) -> dict[Group, float]:
    """The groups of rows that were off, and how far: their largest error in units of the dtype's rounding.

    Raises `UnsupportedModel` where that is so large that a fault could not be told from it.
    """
    model = passes.model
    longest = context_tokens(model.config)
    texts = SelfTestTexts.of(
        vocab_tokens=passes.vocab_tokens,
        # Where no end is known, positions far out may be none that the model has. With its own attention its tokens
        # stand where its cache ends, and nowhere else.
        context_tokens=0 if longest == UNBOUNDED_TOKENS or not way.is_packed else longest,
        has_window=has_window,
        attempt=attempt,
    )
    model.set_attn_implementation("eager")
    expected = cached_logits(model, texts)
    rounding = roundings(model, texts, expected)
    model.set_attn_implementation(passes.attention_name)
    errors: dict[Group, list[tuple[Text, float]]] = {}
    for row in SelfTestPasses(passes).run(texts):
        errors.setdefault(row.group, []).append((row.text, error_of(row.logits, expected[row.text])))

    least_unit = max(
        median(chain(*(of_text.of_ways for of_text in rounding.values()))), LEAST_TOLERANCE / MOST_UNITS
    )
    # Written so that NaN is off, here and below.
    if not MOST_UNITS * least_unit <= MOST_TOLERANCE:
        raise UnsupportedModel(
            model.config.model_type,
            f"in a self-test its own passes with and without a cache differed in {_name(model.dtype)} "
            f"by {least_unit:.2g} standard deviations of the logits, so that no fault could be told from rounding",
        )

    def units(error: float, of_text: Rounding) -> float:
        """An error in units of how far rounding moves the same text, or most."""
        between_ways = min(max(of_text.of_ways), MOST_BETWEEN_WAYS)
        return error / min(max(least_unit, between_ways, *of_text.of_copies), MOST_TOLERANCE / MOST_UNITS)

    # What one copy shows between the ways, beside what the others show, is as the error of a sound pass.
    of_sound = [
        units(error, of_text.without(i)) for of_text in rounding.values() for i, error in enumerate(of_text.of_ways)
    ]
    outliers = sum(not found <= MOST_UNITS for found in of_sound) / len(of_sound)
    allowed = min(OUTLIERS_ALLOWED * outliers, MOST_OUTLIERS)
    off = {}
    for group, rows in errors.items():
        of_rows = [units(error, rounding[text]) for text, error in rows]
        if sum(not found <= MOST_UNITS for found in of_rows) > int(allowed * len(of_rows)):
            off[group] = max(of_rows)
    return off


def error_of(found: Tensor, expected: Tensor) -> float:
    """The largest error of logits [vocab], in standard deviations of what was expected.

    A constant added to all logits changes no choice and is no error. Where the best two are further apart than
    twice this, the same one is best in both.
    """
    error = found - expected
    return float((error - error.mean()).abs().max() / expected.std().clamp_min(torch.finfo(torch.float32).tiny))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@contextmanager
def short_windows(model: Any) -> Iterator[bool]:
    """Make every sliding window `SELF_TEST_WINDOW` tokens long for a while, wherever it stands; is there one?"""
    windowed: dict[int, tuple[Any, int]] = {}
    for holder in (model.config, model.config.get_text_config(), *model.modules()):
        window = vars(holder).get("sliding_window")
        # Some configurations have a flag of that name.
        if isinstance(window, int) and not isinstance(window, bool) and window:
            windowed[id(holder)] = (holder, window)
    try:
        for holder, _ in windowed.values():
            holder.sliding_window = SELF_TEST_WINDOW
        yield bool(windowed)
    finally:
        for holder, window in windowed.values():
            holder.sliding_window = window


def token_bytes_of(config: Any, dtype: torch.dtype) -> TokenBytes | None:
    """The memory of a token slot, from a pass over one token of a model without weights (PyTorch's meta device).

    The fastest way that can be run so is taken to be exact. None if there is none.
    """
    # PyTorch has the products of a mixture's experts without weights in bfloat16 alone; the rest of such a model is
    # then as large as in this dtype but for states that are kept in float32 in any case.
    for run_as in dict.fromkeys((dtype, torch.bfloat16)):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                config, dtype=run_as, attn_implementation="eager", trust_remote_code=False
            )
        for way in possible_ways(model):
            try:
                token = way.pass_model(model, slots=PAGE_TOKENS).token_bytes
            except (UnsupportedModel, *FAILURES):
                LOG.debug("%s models have no %s without weights", config.model_type, way.value, exc_info=True)
            else:
                times = dtype.itemsize / run_as.itemsize
                return replace(token, total=round(times * token.total), windowed=round(times * token.windowed))
    return None
