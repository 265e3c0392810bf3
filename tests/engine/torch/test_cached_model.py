"""Models with their own attention, or a recurrent state, write the text of `generate` under any serving."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import transformers as tf

from cosine_engine.base import PREFIX, PassAbandoned, Row
from cosine_engine.forward import cached_model
from cosine_engine.forward.cached_model import PathBatch
from cosine_engine.forward.support import UnsupportedModel
from cosine_engine.torch.engine import TorchEngine
from cosine_engine.torch.load_self_test import check_exactness, find_way
from cosine_engine.torch.pass_way import PassWay
from cosine_protocol.request import Sampling
from tests.engine.random_serving import draw_requests, serve_alone, serve_together
from tests.engine.random_walk import generated
from tests.engine.tiny_models import COMMON, OWN_ATTENTION, RECURRENT, STEPPED, VOCAB, build
from tests.thoroughness import quick_first, soak_rest

MODELS: dict[str, Callable[[], Any]] = {**OWN_ATTENTION, **RECURRENT, **STEPPED}
QUICK = ["falcon-alibi", "gpt_neo", "lfm2"]
NAMES = soak_rest(QUICK + [name for name in MODELS if name not in QUICK], len(QUICK))
TEXT_TOKENS = 10


def way_of(name: str) -> PassWay:
    return PassWay.STEPPED if name in STEPPED else PassWay.CACHED


def engine_of(name: str) -> TorchEngine:
    return TorchEngine(build(MODELS[name]()), pool_tokens=1024, way=way_of(name))


def check_served(name: str, engine: TorchEngine) -> None:
    """Serve requests in one pass, with prompts in pieces, shared prefixes, trees and preemption."""
    model = build(MODELS[name]())
    asked = draw_requests(5, vocab_tokens=VOCAB, longest=60, seed=1, is_shaped=False)
    for one in asked:
        one.expected = serve_alone(engine, one, TEXT_TOKENS)
        if one.sampling.is_greedy:
            assert [token for token, _ in one.expected] == generated(model, one.prompt, TEXT_TOKENS)
    assert serve_together(engine, asked, at_once=3, seed=2, tolerance=1e-3) == 0
    assert engine.live_tokens == 0


@pytest.mark.parametrize("name", NAMES)
def test_requests_write_the_text_of_generate_however_they_are_served(name: str) -> None:
    check_served(name, engine_of(name))


def test_requests_whose_states_were_dropped_feed_their_tokens_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_model, "LEAST_STATES", 2)
    monkeypatch.setattr(cached_model, "TOKENS_A_STATE", 1024)
    check_served("jamba", engine_of("jamba"))


def feed(engine: TorchEngine, sequence: int, tokens: Sequence[int]) -> int:
    row = Row.chain(sequence, tokens, scored_from=len(tokens) - 1)
    [result] = engine.forward([row])
    engine.keep(sequence, row.nodes)
    return result.choices[0].token


@pytest.mark.parametrize("name", ["bloom", "mamba2"])
def test_a_pass_can_be_abandoned_and_leaves_nothing_behind(name: str) -> None:
    engine = engine_of(name)
    sequence = engine.open(sampling=Sampling(), prompt_tokens=20)
    hook = engine._passes.model.get_input_embeddings().register_forward_hook(lambda *_: engine.abandon())
    with pytest.raises(PassAbandoned):
        feed(engine, sequence, range(3, 23))
    assert engine.live_tokens == 0
    hook.remove()
    again = feed(engine, sequence, range(3, 23))
    fresh = engine_of(name)
    assert again == feed(fresh, fresh.open(sampling=Sampling(), prompt_tokens=20), range(3, 23))


@pytest.mark.parametrize("name", quick_first(["nemotron", "qwen3_5"]))
def test_what_entered_layers_is_kept_for_the_tokens_of_trees_too(name: str) -> None:
    model = build(MODELS[name]())
    engine = TorchEngine(build(MODELS[name]()), pool_tokens=256, way=PassWay.CACHED, feature_layers=(1, 2))
    sequence = engine.open(sampling=Sampling(), prompt_tokens=5)
    engine.forward([Row.chain(sequence, [5, 6, 7, 8, 9])])
    engine.keep(sequence, range(5))
    engine.forward([Row(sequence, (10, 11, 12, 13, 14), (0, 1, 2, 3, 4), (PREFIX, 0, 0, 1, 2))])
    engine.keep(sequence, [0, 2, 4])
    engine.forward([Row(sequence, (15, 16), (0, 1), (PREFIX, PREFIX))])
    engine.keep(sequence, [1])
    text = [5, 6, 7, 8, 9, 10, 12, 14, 16]
    seen = list[torch.Tensor]()
    body = model.get_decoder()
    for entered in (body.layers[1], body.norm):
        entered.register_forward_pre_hook(lambda _, args: seen.append(args[0][0]))
    with torch.inference_mode():
        model(input_ids=torch.tensor([text]))
    made = engine.activations(sequence, 0, len(text)).read()
    assert torch.allclose(made, torch.cat(seen, -1), atol=1e-4)


@pytest.mark.parametrize("name", ["bloom", "mamba"])
def test_a_model_whose_layers_a_draft_head_cannot_read_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedModel, match="a draft head cannot"):
        TorchEngine(build(MODELS[name]()), pool_tokens=256, way=way_of(name), feature_layers=(1,))


@pytest.mark.parametrize("dtype", soak_rest([torch.bfloat16, torch.float32, torch.float16]), ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_the_self_test_finds_the_way_in_which_a_model_is_exact(name: str, dtype: torch.dtype) -> None:
    assert find_way(build(MODELS[name]()).to(dtype)) is way_of(name)


def _keeps_no_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cached_model, "_restore", lambda layer, state, rows: None)


def _writes_to_wrong_slots(patch: pytest.MonkeyPatch) -> None:
    slots = PathBatch.slots
    patch.setattr(PathBatch, "slots", lambda batch: [*slots(batch)[1:], slots(batch)[0]])


def _forgets_the_first_token(patch: pytest.MonkeyPatch) -> None:
    gathered = cached_model.GatheredLayer.update

    def faulty(self: Any, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        keys, values = gathered(self, key_states, value_states, *args, **kwargs)
        first = torch.zeros_like(values)
        first[:, :, 1:] = values[:, :, 1:]
        return keys, first if len(self._past.slots) else values

    patch.setattr(cached_model.GatheredLayer, "update", faulty)


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("falcon-rotary", _writes_to_wrong_slots),
        ("bloom", _forgets_the_first_token),
        ("qwen3_next", _keeps_no_state),
        ("qwen3_next", _forgets_the_first_token),
        ("mamba2", _keeps_no_state),
    ],
)
def test_the_self_test_refuses_every_fault(
    name: str, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = MODELS[name]()
    # Projections keep the size of their inputs, as in trained models.
    config.initializer_range = 0.1
    model = build(config)
    check_exactness(model, way_of(name))
    plant(monkeypatch)
    with pytest.raises(UnsupportedModel, match="in a self-test"):
        check_exactness(model, way_of(name))


def test_layers_that_forget_their_state_are_not_run_several_tokens_at_once() -> None:
    with pytest.raises(UnsupportedModel, match=r"'mamba'.*in a self-test several tokens at once forgot the state"):
        check_exactness(build(STEPPED["mamba"]()).to(torch.bfloat16), PassWay.CACHED)


def test_a_model_with_a_state_that_is_no_cache_of_transformers_is_refused_in_one_sentence() -> None:
    config = tf.RecurrentGemmaConfig(
        **COMMON, lru_width=64, attention_window_size=16, block_types=["recurrent", "attention"]
    )
    with pytest.raises(UnsupportedModel, match="'recurrent_gemma' cannot be used: it does not return") as caught:
        find_way(build(config))
    assert "\n" not in str(caught.value)
