"""A trial at load time: do passes over token trees and shared pages give the logits of the model's own way?

That way is `generate`'s: a prompt into the model's cache, then token by token. Configurations cannot be trusted to
say everything, so a few texts are run both ways, in the dtype that will serve. How far rounding moves logits in it
is measured on the same model. Sliding windows are shortened meanwhile: a text longer than a window of 4096 tokens
would take longer than the whole start, and the modules read the same number.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor

from cosine_node.engine.cached_model import CachedModel
from cosine_node.engine.latent_attention import has_latents
from cosine_node.engine.partial_model import part_of
from cosine_node.engine.pass_model import PassModel
from cosine_node.engine.pass_way import PassWay
from cosine_node.engine.support import UNBOUNDED_TOKENS, UnsupportedModel, context_tokens, packed_obstacle
from cosine_node.engine.trial_passes import TrialPasses
from cosine_node.engine.trial_reference import cached_logits, cacheless_logits
from cosine_node.engine.trial_rows import POOL_TOKENS, Group
from cosine_node.engine.trial_texts import TrialTexts

TRIAL_WINDOW: Final = 4
"""Shorter than every text of the trial, so that a model that ignores its window is noticed."""
MOST_UNITS: Final = 4.0
"""In units of rounding: 16-bit rows of dense models reached 2.5 (trained, 7M weights) and 1.9 (tiny)."""
LEAST_TOLERANCE: Final = 1e-4
"""A choice for float32, in standard deviations of the logits: scores so close count as near-ties in a result."""
MOST_TOLERANCE: Final = 2.0
"""A choice, in the same unit: faults in small models move logits by 0.2 to 5: above, few could be told."""
OUTLIERS_ALLOWED: Final = 3.0
"""A choice: rounding that moves experts of a mixture strikes rows at random, rarely so many times more."""
MOST_OUTLIERS: Final = 0.5
"""A choice: faults strike all rows of a group or nearly all."""
ATTEMPTS: Final = 4
"""A choice: a group fails with each of so many texts, or by chance; a mixture with 10 % outliers in 1 of 1000."""

FAILURES: Final = (
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    AssertionError,
    NotImplementedError,
    RuntimeError,
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
    return [way for way in PassWay if way is not PassWay.EXPANDED or has_latents(model)]


def check_exactness(model: Any, way: PassWay = PassWay.PACKED) -> None:
    """Raise `UnsupportedModel` unless passes equal the model's own. Leaves the attention of that way on.

    20 passes over 187 tokens, and again with other texts only where a group of rows was off.
    """
    model_type: str = model.config.model_type
    suspects: dict[Group, float] = {}
    try:
        with short_windows(model) as has_window, torch.inference_mode():
            passes = way.pass_model(model, slots=POOL_TOKENS)
            if way is PassWay.CACHED and isinstance(passes, CachedModel) and passes.forgets_state():
                raise UnsupportedModel(model_type, "in a trial several tokens at once forgot the state of a layer")
            for attempt in range(ATTEMPTS):
                off = off_groups(passes, attempt, way, has_window=has_window)
                suspects = {group: units for group, units in off.items() if not attempt or group in suspects}
                if not suspects:
                    return
    except (torch.OutOfMemoryError, UnsupportedModel):
        raise
    except FAILURES as failure:
        said = next(iter(str(failure).splitlines()), type(failure).__name__)
        raise UnsupportedModel(model_type, f"a trial pass failed ({said})") from failure
    group, units = next(iter(suspects.items()))
    raise UnsupportedModel(
        model_type,
        f"in a trial {group} gave other logits than its own passes with a cache, "
        f"{units:,.0f} times as far off as rounding in {_name(model.dtype)} takes them",
    )


def off_groups(passes: PassModel, attempt: int, way: PassWay, *, has_window: bool) -> dict[Group, float]:
    """The groups of rows that were off, and how far: their largest error in units of the dtype's rounding.

    Raises `UnsupportedModel` where that is so large that a fault could not be told from it.
    """
    model = passes.model
    longest = context_tokens(model.config)
    texts = TrialTexts.of(
        vocab_tokens=passes.vocab_tokens,
        # Where no end is known, positions far out may be none that the model has. With its own attention its tokens
        # stand where its cache ends, and nowhere else.
        context_tokens=0 if longest == UNBOUNDED_TOKENS or not way.is_packed else longest,
        has_window=has_window,
        attempt=attempt,
    )
    model.set_attn_implementation("eager")
    expected = cached_logits(model, texts)
    own_errors = [error_of(logits, expected[text]) for text, logits in cacheless_logits(model, texts).items()]
    model.set_attn_implementation(passes.attention_name)
    errors: dict[Group, list[float]] = {}
    for row in TrialPasses(passes).run(texts):
        errors.setdefault(row.group, []).append(error_of(row.logits, expected[row.text]))

    unit = max(median(own_errors), LEAST_TOLERANCE / MOST_UNITS)
    # Written so that NaN is off, here and below.
    if not MOST_UNITS * unit <= MOST_TOLERANCE:
        raise UnsupportedModel(
            model.config.model_type,
            f"in a trial its own passes with and without a cache differed in {_name(model.dtype)} "
            f"by {unit:.2g} standard deviations of the logits, so that no fault could be told from rounding",
        )
    outliers = sum(not error <= MOST_UNITS * unit for error in own_errors) / len(own_errors)
    allowed = min(OUTLIERS_ALLOWED * outliers, MOST_OUTLIERS)
    return {
        group: max(of_rows) / unit
        for group, of_rows in errors.items()
        if sum(not error <= MOST_UNITS * unit for error in of_rows) > int(allowed * len(of_rows))
    }


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
    """Make every sliding window `TRIAL_WINDOW` tokens long for a while, wherever it stands; is there one?"""
    windowed: dict[int, tuple[Any, int]] = {}
    for holder in (model.config, model.config.get_text_config(), *model.modules()):
        window = vars(holder).get("sliding_window")
        # Some configurations have a flag of that name.
        if isinstance(window, int) and not isinstance(window, bool) and window:
            windowed[id(holder)] = (holder, window)
    try:
        for holder, _ in windowed.values():
            holder.sliding_window = TRIAL_WINDOW
        yield bool(windowed)
    finally:
        for holder, window in windowed.values():
            holder.sliding_window = window
