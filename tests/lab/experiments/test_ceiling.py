"""The most that any order of feeding could reach over a ring, on texts whose drafters are known."""

import numpy as np
import pytest

from cosine_lab.emulation.traces import DrafterTrace, Trace
from cosine_lab.experiments.ceiling import Stages, ceiling_of
from cosine_node.engine.curve import CostCurve

STAGES = Stages(curve=CostCurve(((1, 0.01),)), count=2, way_s=0.08)
"""A traversal of 100 ms, a pass every 10 ms, however many nodes it carries."""
TOKENS = 40


def text_of(*, right: float, certain: float) -> Trace:
    """A text of different tokens, whose drafter has so many of them among its candidates, the first so probable."""
    stream = tuple(range(1, 1 + TOKENS))
    hits = [int(right * (place + 1)) > int(right * place) for place in range(TOKENS)]
    tokens = [[token if hit else 2000, *range(3000, 3007)] for token, hit in zip(stream, hits, strict=True)]
    probabilities = np.full((TOKENS, 8), (1.0 - certain) / 7, np.float32)
    probabilities[:, 0] = certain
    zeros = np.zeros(TOKENS, np.float32)
    own = DrafterTrace(np.array(tokens, np.int32), probabilities, zeros, zeros, 1.0)
    return Trace(1, "code", "test", 0.0, 0, 10, stream, (False,) * TOKENS, {"draft-a": own})


def test_a_text_that_nobody_drafts_takes_a_traversal_a_token() -> None:
    found = ceiling_of([text_of(right=0.0, certain=0.5)], STAGES, tokens=TOKENS)
    assert found.seconds == found.luckiest_s == pytest.approx(0.1 * (TOKENS - 1))


def test_a_text_whose_drafter_is_right_takes_one_in_all() -> None:
    found = ceiling_of([text_of(right=1.0, certain=0.99)], STAGES, tokens=TOKENS)
    assert found.seconds == pytest.approx(0.1)


def test_each_token_that_nobody_offers_costs_one() -> None:
    found = ceiling_of([text_of(right=0.9, certain=0.99)], STAGES, tokens=TOKENS)
    # The last of the misses is the last token, which nothing has to be fed for.
    assert found.seconds == pytest.approx(0.1 * TOKENS / 10, abs=0.101)


def test_the_nodes_of_a_pass_are_weighed_against_its_time() -> None:
    dear = Stages(curve=CostCurve(((1, 0.01), (2, 0.1))), count=2, way_s=0.08)
    assert ceiling_of([text_of(right=1.0, certain=0.99)], dear, tokens=TOKENS).nodes == 1
