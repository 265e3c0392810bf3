"""The self-test at load: passes over token trees and shared pages must give the model's own logits.

The reference is how `generate` runs a model: the prompt into the model's own cache, then token by token.
Configurations do not describe a model completely, so a few texts are run both ways, in the dtype that will serve.
The logits may differ by rounding, whose effect is measured on the same model for each text: after a run of spaces,
rounding moves the output of the first nine layers of Gemma 3 270M up to 34 times as far as usual. During the test,
sliding windows are shortened: a text longer than a window of 4096 tokens would take longer than the whole start of
a node, and the modules read the shorter window from the same attribute.
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

from cosine_engine.base import Row
from cosine_engine.compiled.model import is_compilable
from cosine_engine.context_length import UNBOUNDED_TOKENS
from cosine_engine.forward.cached_model import CachedModel
from cosine_engine.forward.partial_model import few_layers, part_of
from cosine_engine.forward.pass_model import PassModel
from cosine_engine.forward.pass_plan import separate_feed
from cosine_engine.forward.support import (
    UnsupportedModel,
    cache_parameter,
    context_tokens,
    first_line,
    numerics,
    numerics_of,
    packed_obstacle,
)
from cosine_engine.kv_pool import PAGE_TOKENS, PagePool
from cosine_engine.paged import PagedEngine
from cosine_engine.pool_size import TokenBytes
from cosine_engine.self_test import POOL_TOKENS, RowGroup, SelfTestRow, SelfTestTexts, Text, self_test_rows
from cosine_engine.torch.pass_way import PassWay
from cosine_engine.tree import SequenceTree
from cosine_protocol.request import Sampling

LOG = logging.getLogger(__name__)

Logits = dict[Text, Tensor]
"""Float32 logits [vocab] after each text."""


def cached_logits(model: Any, texts: SelfTestTexts) -> Logits:
    """Return the reference logits: a prompt, then token by token with the model's own cache; `far` without one."""
    found = dict(_whole(model, *_far(texts)))
    for prompt, continuations in texts.continued:
        found |= _stepped(model, prompt, continuations)
    return found


@dataclass(frozen=True, slots=True)
class AllowedRounding:
    """The errors of the logits after a text due to rounding, for each of `ROUNDINGS` perturbed copies of the text.

    `of_ways` are the errors against the pass with a cache, `of_copies` those against the unperturbed text without a
    cache.
    """

    of_ways: tuple[float, ...]
    of_copies: tuple[float, ...]

    def without(self, copy: int) -> "AllowedRounding":
        """Return the errors of the other copies."""
        return AllowedRounding(*(found[:copy] + found[copy + 1 :] for found in (self.of_ways, self.of_copies)))


def roundings(model: Any, texts: SelfTestTexts, expected: Logits) -> dict[Text, AllowedRounding]:
    """Measure how far rounding moves the logits after every text, with passes over whole texts without a cache.

    In each copy of a text, each element of the embeddings is moved to a neighbouring number of the dtype. All later
    rounding is then independent of that of the unperturbed text, so that their difference is the rounding error of
    the whole model in this dtype. If a model computes different logits with and without a cache, only `of_ways`
    shows it.
    """
    alike: list[tuple[list[Text], Sequence[int] | None]] = [
        ([prompt + each for each in continuations], None) for prompt, continuations in texts.continued
    ]
    alike.append(_far(texts))
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
        text: AllowedRounding(
            tuple(error_of(logits, expected[text]) for logits in copies),
            tuple(error_of(logits, as_they_are[text]) for logits in copies),
        )
        for text, copies in found.items()
    }


def _far(texts: SelfTestTexts) -> tuple[list[Text], Sequence[int] | None]:
    """Return the texts at the end of the context and their positions; None means positions from 0 on."""
    begin, *rest = texts.far
    # Not every model accepts positions; those from 0 on are its default.
    are_own = texts.far_positions == tuple(range(len(texts.far_positions)))
    return [begin + branch for branch in rest], None if are_own else texts.far_positions


def _to_neighbours(module: nn.Module, inputs: object, embeddings: Tensor) -> Tensor:
    """Move elements up and down in a random pattern per text; normalisation would undo a common factor."""
    del module, inputs
    generator = torch.Generator().manual_seed(0)
    texts, *others, width = embeddings.shape
    signs = torch.randint(0, 2, (texts, *(1 for _ in others), width), generator=generator) * 2 - 1
    return embeddings * (1 + torch.finfo(embeddings.dtype).eps * signs.to(embeddings))


def _stepped(model: Any, prompt: Text, continuations: Sequence[Text]) -> Logits:
    """Return logits of a prompt in one pass, then of its equally long continuations, one token of each per pass."""
    parameters = inspect.signature(type(model).forward).parameters
    name = cache_parameter(type(model))
    output = model(input_ids=_ids(model, [prompt]), use_cache=True)
    found = dict(_by_text([prompt], output.logits))
    cache = getattr(output, name, None) if name else None
    if name is None or cache is None:
        raise UnsupportedModel(model.config.model_type, "it does not return a transformers cache")
    cache.reorder_cache(torch.zeros(len(continuations), dtype=torch.int64, device=model.device))
    for step in range(len(continuations[0])):
        ids = _ids(model, [(continuation[step],) for continuation in continuations])
        arguments: dict[str, Any] = {name: cache, "use_cache": True}
        # As `generate` does: some models do not count positions themselves.
        if "position_ids" in parameters:
            arguments["position_ids"] = torch.full_like(ids, len(prompt) + step)
        output = model(input_ids=ids, **arguments)
        for continuation, logits in zip(continuations, output.logits[:, -1].float(), strict=True):
            found[prompt + continuation[: step + 1]] = logits
    return found


def _whole(model: Any, texts: Sequence[Text], positions: Sequence[int] | None) -> Iterator[tuple[Text, Tensor]]:
    """Return the logits of equally long texts in one pass without a cache. Default positions: from 0 on."""
    ids = _ids(model, texts)
    placed = {}
    if positions is not None:
        # Without a mask, transformers would treat a gap in the positions as the start of another text.
        placed = {
            "position_ids": torch.tensor(positions, device=model.device).expand_as(ids),
            "attention_mask": torch.ones_like(ids),
        }
    return _by_text(texts, model(input_ids=ids, use_cache=False, **placed).logits)


def _by_text(texts: Sequence[Text], logits: Tensor) -> Iterator[tuple[Text, Tensor]]:
    """Yield the logits [texts, tokens, vocab] of equally long texts with the beginning of the text they follow."""
    for text, rows in zip(texts, logits.float(), strict=True):
        yield from ((text[: i + 1], row) for i, row in enumerate(rows))


def _ids(model: Any, texts: Sequence[Text]) -> Tensor:
    return torch.tensor(texts, dtype=torch.int64, device=model.device)


class _FarTree(SequenceTree):
    """A sequence whose tokens have given positions by their depth. Its nodes must not be kept."""

    __slots__ = ("positions",)

    def __init__(self, positions: Sequence[int]) -> None:
        super().__init__(sampling=Sampling(), prompt_tokens=0)
        self.positions = positions

    def index_after(self, parent: int) -> int:
        return self.positions[len(self.path(parent))]


class SelfTestPasses(PagedEngine):
    """Runs the self-test's passes on a model with at least `POOL_TOKENS` slots. Its pool serves one `run`."""

    def __init__(self, passes: PassModel) -> None:
        self._passes = passes
        super().__init__(
            PagePool(tokens=POOL_TOKENS),
            vocab_tokens=passes.vocab_tokens,
            # A model whose context is shorter than the self-test fails by itself.
            context_tokens=max(context_tokens(passes.model.config), POOL_TOKENS),
            numerics=numerics(passes.model),
        )

    def run(self, texts: SelfTestTexts) -> list[SelfTestRow[Tensor]]:
        """Return the rows of the self-test, from six passes."""
        far = self.open(sampling=Sampling(), prompt_tokens=0)
        self._trees[far] = _FarTree(texts.far_positions)
        return self_test_rows(self, self._logits, texts, far=far)

    def _logits(self, rows: Sequence[Row]) -> list[Tensor]:
        trees = self.feed(rows)
        wanted = list(range(sum(len(row.tokens) for row in rows)))
        logits = self._passes.logits(list(zip(trees, rows, strict=True)), wanted=wanted)
        return list(logits.float())


SELF_TEST_WINDOW: Final = 4
"""Shorter than every text of the self-test, so that a model that ignores its window is detected."""
ROUNDINGS: Final = 2
"""Number of perturbed copies of a text. If one direction dominates, an error exceeds three times the larger of two
copies in one of 16 texts, and three times a single copy in one of 5 (normal errors)."""
MOST_UNITS: Final = 3.0
"""Maximum error in units of the text's rounding. 16-bit rows of dense models reached 1.2 (trained, 7M weights) and
1.1 (tiny), float32 rows of Gemma 3 270M that round 30 times as far as others 2.9."""
LEAST_TOLERANCE: Final = 1e-4
"""Minimum tolerance in standard deviations of the logits, for float32. Scores this close count as near-ties in a
result."""
MOST_BETWEEN_WAYS: Final = 1e-3
"""Maximum difference, in the same unit, between passes with and without a cache that counts as a text's rounding:
large numbers that cancel are summed in another order, which copies do not show. Models that compute differently
with a cache differ by 0.4 and more."""
MOST_TOLERANCE: Final = 2.0
"""Maximum tolerance in the same unit. Faults in small models move logits by 0.2 to 5; above it, few are found."""
OUTLIERS_ALLOWED: Final = 3.0
"""Factor on the measured fraction of outliers. Rounding that changes the experts of a mixture affects random rows,
rarely this many times more."""
MOST_OUTLIERS: Final = 0.5
"""Maximum fraction of outliers: faults affect all or nearly all rows of a group."""
ATTEMPTS: Final = 4
"""A group must fail with the texts of each attempt. By chance, a mixture with 10 % outliers does in 1 of 1000."""

FAILURES: Final = (
    *(TypeError, ValueError, AttributeError, LookupError),
    *(AssertionError, NotImplementedError, RuntimeError),
)
"""The errors of models that do not follow transformers' attention interface."""


def find_way(model: Any) -> PassWay:
    """Return the fastest way in which a model's passes are exact. Raises `UnsupportedModel` if there is none.

    Parts of a model require packed passes.
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
    """Return the ways that a model's configuration and layers allow, the fastest first."""
    if packed_obstacle(type(model), model.config) is not None:
        return [PassWay.CACHED, PassWay.STEPPED]
    return [way for way in PassWay if way is not PassWay.COMPILED or is_compilable(model)]


def check_exactness(model: Any, way: PassWay = PassWay.PACKED) -> None:
    """Raise `UnsupportedModel` unless passes equal the model's own. The model keeps the attention of `way`.

    The test is 24 passes over 412 tokens, repeated with other texts only if a group of rows was off. Parts of a
    model, which may be as large as memory allows, are tested with a few layers of each kind.
    """
    model_type: str = model.config.model_type
    suspects: dict[RowGroup, float] = {}
    try:
        is_sampled = way is PassWay.COMPILED or part_of(model) is not None
        tried = few_layers(model) if is_sampled else nullcontext()
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
                    break
            if not suspects and way is PassWay.COMPILED and (variant := variant_group(passes)) is not None:
                raise UnsupportedModel(model_type, f"in a self-test {variant} gave other bits than alone")
    except (torch.OutOfMemoryError, UnsupportedModel):
        raise
    except FAILURES as failure:
        raise UnsupportedModel(model_type, f"a self-test pass failed ({first_line(failure)})") from failure
    if not suspects:
        return
    group, units = next(iter(suspects.items()))
    raise UnsupportedModel(
        model_type,
        f"in a self-test {group} gave other logits than its own passes with a cache, "
        f"by {units:,.0f} times the effect of rounding in {numerics_of(model.dtype, None, None)}",
    )


def off_groups(passes: PassModel, attempt: int, way: PassWay, *, has_window: bool) -> dict[RowGroup, float]:
    """Return the groups of rows that were off, with their largest error in units of rounding.

    Raises `UnsupportedModel` if rounding is too large to detect faults.
    """
    model = passes.model
    longest = context_tokens(model.config)
    texts = SelfTestTexts.of(
        vocab_tokens=passes.vocab_tokens,
        # If the context length is unknown, the model may lack far positions. With its own attention, a model only
        # accepts positions that follow its cache.
        context_tokens=0 if longest == UNBOUNDED_TOKENS or not way.is_packed else longest,
        has_window=has_window,
        attempt=attempt,
    )
    model.set_attn_implementation("eager")
    expected = cached_logits(model, texts)
    rounding = roundings(model, texts, expected)
    model.set_attn_implementation(passes.attention_name)
    errors: dict[RowGroup, list[tuple[Text, float]]] = {}
    for row in SelfTestPasses(passes).run(texts):
        errors.setdefault(row.group, []).append((row.text, error_of(row.logits, expected[row.text])))

    least_unit = max(
        median(chain(*(of_text.of_ways for of_text in rounding.values()))), LEAST_TOLERANCE / MOST_UNITS
    )
    # Written so that NaN fails, here and below.
    if not MOST_UNITS * least_unit <= MOST_TOLERANCE:
        raise UnsupportedModel(
            model.config.model_type,
            f"in a self-test its own passes with and without a cache differed by {least_unit:.2g} standard "
            f"deviations of the logits in {numerics_of(model.dtype, None, None)}, which would hide any fault",
        )

    def units(error: float, of_text: AllowedRounding) -> float:
        """Return an error in units of its text's rounding, or of the median text's if that is larger."""
        between_ways = min(max(of_text.of_ways), MOST_BETWEEN_WAYS)
        return error / min(max(least_unit, between_ways, *of_text.of_copies), MOST_TOLERANCE / MOST_UNITS)

    # The error of one copy, in units of the other copies' rounding, is distributed as that of a correct pass.
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


def variant_group(passes: PassModel) -> RowGroup | None:
    """Return a group of rows that gave other bits in a pass than alone, or None if none did."""
    longest = context_tokens(passes.model.config)
    texts = SelfTestTexts.of(
        vocab_tokens=passes.vocab_tokens,
        context_tokens=0 if longest == UNBOUNDED_TOKENS else longest,
        has_window=True,
        attempt=0,
    )
    # Tokens at the end of the context have no past that could be fed first.
    rows = [row for row in SelfTestPasses(passes).run(texts) if row.group is not RowGroup.FAR]
    alone = _logits_alone(passes, [row.text for row in rows])
    return next((row.group for row in rows if not torch.equal(row.logits, alone[row.text])), None)


def _logits_alone(passes: PassModel, texts: list[Text]) -> dict[Text, Tensor]:
    """Return the logits [vocab] after each text and each of its beginnings, from passes over one text."""
    found: dict[Text, Tensor] = {}
    for text in sorted(texts, key=len, reverse=True):
        if text not in found:
            logits = passes.logits([separate_feed(text)], wanted=list(range(len(text)))).float()
            found |= {text[: i + 1]: logits[i] for i in range(len(text))}
    return found


def error_of(found: Tensor, expected: Tensor) -> float:
    """Return the largest error of logits [vocab], in standard deviations of the expected ones.

    A constant added to all logits changes no choice and does not count. If the best two logits are further apart
    than twice this error, the best token is the same in both.
    """
    error = found - expected
    return float((error - error.mean()).abs().max() / expected.std().clamp_min(torch.finfo(torch.float32).tiny))


@contextmanager
def short_windows(model: Any) -> Iterator[bool]:
    """Temporarily set every sliding window to `SELF_TEST_WINDOW` tokens; yield True if there is one."""
    windowed: dict[int, tuple[Any, int]] = {}
    for holder in (model.config, model.config.get_text_config(), *model.modules()):
        window = vars(holder).get("sliding_window")
        # In some configurations this is a flag.
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
    """Return the memory of a token slot, from a one-token pass of a model without weights (PyTorch's meta device).

    The fastest way that runs there is assumed to be exact. None if no way runs.
    """
    # On the meta device, PyTorch has the products of a mixture's experts only in bfloat16. The sizes then scale
    # with the dtype, except states, which are always float32.
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
