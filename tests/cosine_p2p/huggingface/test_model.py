"""Tests that `generate` over a swarm equals `generate` of transformers."""

import threading
from typing import Any

import pytest
import torch
from transformers import LogitsProcessorList, TextIteratorStreamer, pipeline

from cosine_p2p.huggingface import SwarmModelForCausalLM
from cosine_p2p.huggingface.arrays import plain
from cosine_p2p.request.options import choice_seed
from cosine_protocol.errors import GenerationFailed, UsageError
from cosine_protocol.records import GenerationDefaults
from tests.cosine_p2p.huggingface.conftest import embedded

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

TEXTS = ["Once upon a time", "def fibonacci(n):\n    ", "The doctor said that the patient"]
TOKENS = 24


@pytest.fixture
def prompt(tokenizer: Any) -> Any:
    return tokenizer(TEXTS[:1], return_tensors="pt").input_ids


@pytest.fixture
def batch(tokenizer: Any) -> Any:
    found = tokenizer(TEXTS, return_tensors="pt", padding=True)
    return {name: found[name] for name in ("input_ids", "attention_mask")}


def test_the_same_ids_as_transformers(model: SwarmModelForCausalLM, reference: Any, prompt: Any) -> None:
    assert torch.equal(
        model.generate(prompt, max_new_tokens=TOKENS), reference.generate(prompt, max_new_tokens=TOKENS)
    )
    by_default = model.generate(inputs=prompt.to(model.device))
    assert torch.equal(by_default, reference.generate(inputs=prompt, max_new_tokens=20))
    assert torch.equal(model.generate(prompt, max_length=30), reference.generate(prompt, max_length=30))


def test_the_models_config_is_the_default(reference: Any, prompt: Any, caplog: pytest.LogCaptureFixture) -> None:
    own: dict[str, Any] = {
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
        "repetition_penalty": 1.3,
    }
    published = GenerationDefaults(**own, max_new_tokens=TOKENS, not_honoured=("num_beams",))
    expected = reference.generate(prompt, do_sample=False, repetition_penalty=1.3, max_new_tokens=TOKENS)
    plain_greedy = reference.generate(prompt, do_sample=False, max_new_tokens=TOKENS)
    assert not torch.equal(expected, plain_greedy)
    with SwarmModelForCausalLM.from_pretrained("zoo:target", join=lambda: embedded(published)) as model:
        assert model.generation_config.to_diff_dict() == {"eos_token_id": [0], **own, "max_new_tokens": TOKENS}
        assert "num_beams, which a swarm cannot honour" in caplog.text
        assert torch.equal(model.generate(prompt, do_sample=False), expected)
        named = {**own, "max_new_tokens": 9}
        assert torch.equal(
            model.generate(prompt, seed=3, max_new_tokens=9), model.generate(prompt, seed=3, **named)
        )
        unpenalised = model.generate(prompt, do_sample=False, repetition_penalty=1.0)
        assert torch.equal(unpenalised, plain_greedy)
    left_out = SwarmModelForCausalLM.from_pretrained(
        "zoo:target", join=lambda: embedded(published), generation_config="none"
    )
    with left_out as model:
        assert model.generation_config.to_diff_dict() == {"eos_token_id": [0]}
        assert torch.equal(model.generate(prompt, max_new_tokens=TOKENS), plain_greedy)


def test_a_batch_padded_on_the_left(model: SwarmModelForCausalLM, reference: Any, batch: Any) -> None:
    assert 0 in batch["attention_mask"]
    expected = reference.generate(**batch, max_new_tokens=TOKENS)
    assert torch.equal(model.generate(**batch, max_new_tokens=TOKENS), expected)


def test_rows_that_end_early_are_padded_right(model: SwarmModelForCausalLM, reference: Any, batch: Any) -> None:
    length = batch["input_ids"].shape[1]
    plain = reference.generate(**batch, max_new_tokens=TOKENS)
    ending = int(plain[0, length + 5])
    options: dict[str, Any] = {"max_new_tokens": TOKENS, "eos_token_id": [ending]}
    expected = reference.generate(**batch, **options, pad_token_id=3)
    assert expected[0, -1] == 3
    assert torch.equal(model.generate(**batch, **options, pad_token_id=3), expected)
    assert model.generate(**batch, **options)[0, -1] == ending
    assert model.generate(batch["input_ids"][:1], max_new_tokens=TOKENS, eos_token_id=ending)[0, -1] == ending


def test_seeds_give_the_same_samples_again(model: SwarmModelForCausalLM, prompt: Any) -> None:
    options: dict[str, Any] = {"do_sample": True, "temperature": 0.9, "top_p": 0.95, "max_new_tokens": 12}
    three = model.generate(prompt, num_return_sequences=3, seed=7, **options)
    assert three.shape == (3, prompt.shape[1] + 12)
    assert len({tuple(row) for row in three.tolist()}) == 3
    for index in range(3):
        alone = model.generate(prompt, seed=choice_seed(7, index), **options)
        assert torch.equal(alone[0], three[index])


def test_stop_strings_end_texts(model: SwarmModelForCausalLM, reference: Any, tokenizer: Any, prompt: Any) -> None:
    text = tokenizer.decode(reference.generate(prompt, max_new_tokens=TOKENS)[0, prompt.shape[1] :])
    options = {"max_new_tokens": TOKENS, "stop_strings": [text[10:14]], "tokenizer": tokenizer}
    assert torch.equal(model.generate(prompt, **options), reference.generate(prompt, **options))


@pytest.mark.parametrize("is_list", [False, True])
def test_a_streamer_has_the_text(model: SwarmModelForCausalLM, tokenizer: Any, prompt: Any, is_list: bool) -> None:
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60.0)
    block = prompt.tolist() if is_list else prompt
    outputs: list[Any] = []
    thread = threading.Thread(
        target=lambda: outputs.append(model.generate(block, streamer=streamer, max_new_tokens=TOKENS))
    )
    thread.start()
    text = "".join(streamer)
    thread.join()
    assert text == tokenizer.decode(plain(outputs[0])[0][prompt.shape[1] :])


def test_a_pipeline_gives_the_same_texts(model: SwarmModelForCausalLM, reference: Any, tokenizer: Any) -> None:
    pipe, expected = (pipeline("text-generation", model=each, tokenizer=tokenizer) for each in (model, reference))
    chat = [{"role": "user", "content": "What is 3 plus 4?"}]
    greedy: dict[str, Any] = {"do_sample": False, "max_new_tokens": 12}
    for prompt, options in ((TEXTS[:2], {"batch_size": 2}), (chat, {}), (TEXTS[0], {"stop_sequence": "time"})):
        assert pipe(prompt, **options, **greedy) == expected(prompt, **options, **greedy)
    # It samples where nobody says otherwise.
    first, again = (pipe(TEXTS[0], max_new_tokens=12, seed=3) for _ in range(2))
    assert first == again != pipe(TEXTS[0], **greedy)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"attention_mask": [[1]]}, "shape of input_ids"),
        ({"attention_mask": [[0, 0, 0]]}, "no token that is not padding"),
        ({"logits_processor": LogitsProcessorList([lambda ids, scores: scores])}, "logits_processor"),
        ({"num_beams": 4}, "num_beams"),
        ({"eos_token_id": -1}, "eos_token_id must be a token id from 0 to 2147483647 or a list of them, not -1"),
        ({"streamer": print}, "streamer must be an object with `put` and `end`"),
        ({"generation_config": {"max_new_tokens": 3}}, "generation_config must be an object"),
        ({"do_sample": True, "top_p": 2.0}, "top_p"),
    ],
)
def test_errors_name_what_is_wrong(model: SwarmModelForCausalLM, options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        model.generate([[5, 6, 7]], **options)


def test_a_prompt_beyond_the_context_or_none_and_another_dtype_are_refused(model: SwarmModelForCausalLM) -> None:
    with pytest.raises(UsageError, match="prompt is too long"):
        model.generate([[5] * 5000], max_new_tokens=1)
    with pytest.raises(UsageError, match="no prompt, or an empty one"):
        model.generate()
    with pytest.raises(GenerationFailed, match=r"\(float32 deterministic\)"):
        SwarmModelForCausalLM.from_pretrained("zoo:target", join=embedded, dtype=torch.bfloat16)
