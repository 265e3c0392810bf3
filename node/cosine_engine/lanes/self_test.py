"""The self-test of an engine of lanes: its passes against plain decoding by the same library."""

from collections.abc import Sequence
from statistics import median

import numpy as np

from cosine_engine.base import Row
from cosine_engine.lanes.engine import LaneEngine
from cosine_engine.lanes.lanes import Floats
from cosine_engine.self_test import RowGroup, SelfTestTexts, Text, self_test_rows
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling


def check_exactness(engine: LaneEngine, *, name: str, library: str, is_exact: bool) -> None:
    """Raise `UsageError` unless the passes of an unused engine equal plain decoding.

    Plain decoding is one token per pass in a separate sequence, with the same weights and KV cache, so that only
    rounding differs. With few bits the difference is large: activations are rounded too, and one on the other side
    of a step changes all that follows. `is_exact` means that nothing is rounded below float32. 53 passes over one
    token, and six over several.
    """
    texts = SelfTestTexts.of(vocab_tokens=engine.vocab_tokens, context_tokens=0, has_window=False, attempt=0)
    expected: dict[Text, Floats] = {}
    for prompt, continuations in texts.continued:
        expected |= _stepped(engine, prompt, continuations)
    errors: dict[RowGroup, list[float]] = {}
    for row in self_test_rows(engine, engine.logits, texts):
        errors.setdefault(row.group, []).append(error_of(row.logits, expected[row.text]))
    engine.forget_prefixes()
    # In standard deviations of the logits. In float32 ggml still looks GELU up in half precision: 0.003 in Gemma 3
    # 270M; otherwise 0.003 was measured in F16, 0.06 in Q8_0 and 0.12 in Q4_1, with other places of slots.
    allowed = 0.02 if is_exact else 0.5
    for group, of_rows in errors.items():
        # NaN counts as an error.
        if not median(of_rows) <= allowed:
            raise UsageError(
                f"{name} cannot be served exactly with {library}: in a self-test {group} gave other logits than "
                f"plain decoding of the same file, {median(of_rows):.2g} standard deviations off."
            )


def _stepped(engine: LaneEngine, prompt: Text, continuations: Sequence[Text]) -> dict[Text, Floats]:
    """Return the logits of a prompt and, each separately, of its continuations."""
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
    """Return the largest error of logits [vocab] up to a constant, in standard deviations of the expected ones."""
    error = found - expected
    return float(np.abs(error - error.mean()).max() / max(float(expected.std()), float(np.finfo(np.float32).tiny)))
