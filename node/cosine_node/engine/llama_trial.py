"""A trial at load time: do passes of llama.cpp over token trees and shared prefixes give what plain decoding gives?

Plain decoding is one token a pass in a sequence of its own. Weights and KV cache are those that will serve, so the
two ways differ by rounding alone. In few bits a weight that is much: activations are rounded as well, and one that
falls on the other side of a step moves all that follows.
"""

from collections.abc import Sequence
from statistics import median
from typing import Final

import numpy as np
import numpy.typing as npt

from cosine_node.engine.base import Row
from cosine_node.engine.llama_engine import LlamaEngine
from cosine_node.engine.trial_rows import Group, trial_rows
from cosine_node.engine.trial_texts import Text, TrialTexts
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling

Floats = npt.NDArray[np.float32]

MOST_ERROR: Final = 1e-4
"""In standard deviations of the logits, for weights and KV cache in float32: as in `load_trial`."""
MOST_ROUNDED_ERROR: Final = 0.5
"""A choice for all others: 0.003 was measured in F16, 0.06 in Q8_0 and 0.12 in Q4_1, where slots lie otherwise."""


def check_exactness(engine: LlamaEngine, *, name: str, is_exact: bool) -> None:
    """Raise `UsageError` unless the passes of an engine that serves nobody yet are those of plain decoding.

    `is_exact` says that nothing is rounded below float32. 52 passes over one token, and six over several.
    """
    texts = TrialTexts.of(vocab_tokens=engine.vocab_tokens, context_tokens=0, has_window=False, attempt=0)
    expected = plain_logits(engine, texts)
    errors: dict[Group, list[float]] = {}
    for row in trial_rows(engine, engine.logits, texts):
        errors.setdefault(row.group, []).append(error_of(row.logits, expected[row.text]))
    engine.forget_prefixes()
    allowed = MOST_ERROR if is_exact else MOST_ROUNDED_ERROR
    for group, of_rows in errors.items():
        # Written so that NaN is off.
        if not median(of_rows) <= allowed:
            raise UsageError(
                f"{name} cannot be served exactly with llama.cpp: in a trial {group} gave other logits than plain "
                f"decoding of the same file, {median(of_rows):.2g} standard deviations off."
            )


def plain_logits(engine: LlamaEngine, texts: TrialTexts) -> dict[Text, Floats]:
    """The logits after each text of the trial and after all that it begins with, one token a pass."""
    first, second = texts.branches
    paths = zip(texts.siblings, texts.children, texts.grandchildren, strict=True)
    return {
        **_stepped(engine, texts.long, [(*first, texts.after_branch), second]),
        **_stepped(engine, texts.short, [(*path, texts.after_grandchildren) for path in paths]),
    }


def _stepped(engine: LlamaEngine, prompt: Text, continuations: Sequence[Text]) -> dict[Text, Floats]:
    """Those of a prompt and, each on its own, of what follows it."""
    sequence = engine.open(sampling=Sampling(), prompt_tokens=0)
    found: dict[Text, Floats] = {}
    for length, token in enumerate(prompt, 1):
        [found[prompt[:length]]] = engine.logits([Row.chain(sequence, (token,))])
        engine.keep(sequence, (0,))
    for continuation in continuations:
        for number, token in enumerate(continuation):
            row = Row(sequence, (token,), (number,), (number - 1,))
            [found[prompt + continuation[: number + 1]]] = engine.logits([row])
        engine.prune(sequence, (0,))
    engine.release(sequence)
    return found


def error_of(found: Floats, expected: Floats) -> float:
    """The largest error of logits [vocab], in standard deviations of what was expected, but for a constant."""
    error = found - expected
    return float(np.abs(error - error.mean()).max() / max(float(expected.std()), float(np.finfo(np.float32).tiny)))
