"""`pipeline("text-generation", ...)` of transformers over a swarm says what it says over the model itself."""

from typing import Any

import pytest
from transformers import pipeline

from cosine_p2p.huggingface import SwarmModelForCausalLM

pytestmark = pytest.mark.slow

TEXTS = ["Once upon a time", "def fibonacci(n):\n    "]
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12}


@pytest.fixture
def pipe(model: SwarmModelForCausalLM, tokenizer: Any) -> Any:
    return pipeline("text-generation", model=model, tokenizer=tokenizer)


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
