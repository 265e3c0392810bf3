from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cosine_node.engine.llama.loading import check_exactness, error_of, plain_logits
from cosine_node.engine.llama.model import LlamaContext
from cosine_node.engine.self_test import SelfTestTexts
from cosine_protocol.errors import UsageError
from tests.node.engine.engines import llama_engine
from tests.node.engine.random_walk import fresh_logits
from tests.node.engine.tiny_models import VOCAB, tiny_llama


@pytest.mark.parametrize("weights", ["F32", "F16", "Q8_0"])
def test_an_exact_engine_passes_and_is_left_empty(weights: str) -> None:
    engine = llama_engine(tiny_llama(), pool_tokens=256, weights=weights)
    check_exactness(engine, name="tiny", is_exact=weights == "F32")
    assert (engine.live_tokens, engine.cached_tokens, engine.free_tokens, engine.free_lanes) == (0, 0, 256, 64)


def test_plain_decoding_is_the_models_own() -> None:
    texts = SelfTestTexts.of(vocab_tokens=VOCAB, context_tokens=0, has_window=False, attempt=0)
    found = plain_logits(llama_engine(tiny_llama(), pool_tokens=256), texts)
    assert len(found) == 52
    for text, logits in found.items():
        assert np.allclose(logits, fresh_logits(tiny_llama(), list(text))[-1], atol=1e-5)


def _shares_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefix is shared without its first token."""
    own = LlamaContext.share
    monkeypatch.setattr(
        LlamaContext, "share", lambda self, source, target, start, stop: own(self, source, target, start + 1, stop)
    )


def _mixes_up_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits of a pass are those of the token before."""
    own = LlamaContext.logits
    monkeypatch.setattr(LlamaContext, "logits", lambda self, fed: np.roll(own(self, fed), 1, axis=0))


@pytest.mark.parametrize("plant", [_shares_too_little, _mixes_up_rows])
@pytest.mark.parametrize("weights", ["F32", "Q8_0"])
def test_a_fault_is_refused_in_a_sentence(
    plant: Callable[[pytest.MonkeyPatch], None], weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = llama_engine(tiny_llama(), pool_tokens=256, weights=weights)
    plant(monkeypatch)
    with pytest.raises(UsageError, match=r"tiny cannot be served exactly .* gave other logits"):
        check_exactness(engine, name="tiny", is_exact=weights == "F32")


def test_a_constant_added_to_all_logits_is_no_error() -> None:
    logits: Any = np.random.default_rng(0).standard_normal(50, dtype=np.float32)
    assert error_of(logits + 5, logits) < 1e-5
    assert np.isnan(error_of(logits * np.float32(np.nan), logits))
