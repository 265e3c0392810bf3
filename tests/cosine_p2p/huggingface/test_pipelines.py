"""`pipeline("text-generation", ...)` of transformers over a swarm says what it says over the model itself."""

import logging
from typing import Any

import pytest
from transformers import pipeline
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from cosine_p2p.huggingface import SwarmModelForCausalLM
from cosine_p2p.huggingface.pipelines import MODEL_TYPE, ModelOptions

pytestmark = pytest.mark.slow

TEXTS = ["Once upon a time", "def fibonacci(n):\n    "]
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12}


@pytest.fixture
def pipe(model: SwarmModelForCausalLM, tokenizer: Any) -> Any:
    return pipeline("text-generation", model=model, tokenizer=tokenizer)


def test_the_same_texts_as_over_the_model(pipe: Any, reference: Any, tokenizer: Any) -> None:
    expected = pipeline("text-generation", model=reference, tokenizer=tokenizer)
    assert pipe(TEXTS, **GREEDY) == expected(TEXTS, **GREEDY)
    assert pipe(TEXTS[0], return_full_text=False, **GREEDY) == expected(TEXTS[0], return_full_text=False, **GREEDY)


@pytest.mark.thorough
def test_batches_chats_and_stops(pipe: Any, reference: Any, tokenizer: Any) -> None:
    expected = pipeline("text-generation", model=reference, tokenizer=tokenizer)
    chat = [{"role": "user", "content": "What is 3 plus 4?"}]
    for prompt, options in ((TEXTS, {"batch_size": 2}), (chat, {}), (TEXTS[0], {"stop_sequence": "time"})):
        assert pipe(prompt, **options, **GREEDY) == expected(prompt, **options, **GREEDY)


@pytest.mark.thorough
def test_a_pipeline_samples_where_nobody_says_otherwise(pipe: Any) -> None:
    first, again = (pipe(TEXTS[0], max_new_tokens=12, seed=3) for _ in range(2))
    assert first == again != pipe(TEXTS[0], **GREEDY)


def test_the_models_own_options_hold_where_a_call_names_no_others(
    model: SwarmModelForCausalLM, pipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "generation_config", ModelOptions(num_beams=None))
    model.generation_config.update(**GREEDY)
    assert model.generation_config.to_diff_dict() == GREEDY
    assert pipe(TEXTS[0]) == pipe(TEXTS[0], **GREEDY)
    assert model.generate([[5, 6, 7]]) == model.generate([[5, 6, 7]], **GREEDY)
    assert len(model.generate([[5, 6, 7]], max_new_tokens=3)[0]) == 6


def test_nothing_is_said_against_the_model(
    model: SwarmModelForCausalLM,
    tokenizer: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_TYPE, raising=False)
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    made = pipeline("text-generation", model=model.eval(), tokenizer=tokenizer)
    assert "SwarmModelForCausalLM" in repr(made)
    assert not caplog.records


def test_what_is_known_of_the_model(model: SwarmModelForCausalLM) -> None:
    assert tuple(model.config.eos_token_id) == model.eos_token_ids
    assert model.config.name_or_path
    assert model.config.max_position_embeddings > 0
