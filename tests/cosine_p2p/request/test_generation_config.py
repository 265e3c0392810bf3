"""Tests of a model's generation config."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from cosine_p2p.request.generation_config import read_generation_config
from cosine_protocol.errors import UsageError
from cosine_protocol.fields import MAX_NEW_TOKENS
from cosine_protocol.records import GenerationDefaults


def read(folder: Path, config: object) -> GenerationDefaults | None:
    (folder / "generation_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return read_generation_config(folder)


def test_transformers_own_defaults_are_none_but_where_it_would_sample(tmp_path: Path) -> None:
    GenerationConfig().save_pretrained(tmp_path)
    assert read_generation_config(tmp_path) is None
    GenerationConfig(no_repeat_ngram_size=3, num_beams=4).save_pretrained(tmp_path)
    assert read_generation_config(tmp_path) == GenerationDefaults(
        not_honoured=("no_repeat_ngram_size", "num_beams")
    )


def test_what_vllm_takes_is_taken(tmp_path: Path) -> None:
    honoured: dict[str, Any] = {
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.8,
        "min_p": 0.1,
        "repetition_penalty": 1.05,
    }
    others = {"eos_token_id": [7, 3], "pad_token_id": 3, "transformers_version": "4.37.0"}
    assert read(tmp_path, {**honoured, **others, "top_k": -1, "max_new_tokens": 10**9}) == GenerationDefaults(
        **honoured, top_k=0, max_new_tokens=MAX_NEW_TOKENS
    )


@pytest.mark.parametrize("config", ["{", "[]"])
def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path, config: str) -> None:
    with pytest.raises(UsageError, match="cannot be read") as refused:
        read(tmp_path, config)
    assert "generation_config.json" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "config",
    [
        {"temperature": "0.7"},
        {"temperature": -1},
        {"repetition_penalty": 0},
        {"top_p": 1.5},
        {"top_k": 2.5},
        '{"temperature": NaN}',
    ],
)
def test_a_value_that_means_nothing_is_named_and_not_honoured(tmp_path: Path, config: Any) -> None:
    (name,) = json.loads(config) if isinstance(config, str) else config
    assert read(tmp_path, config) == GenerationDefaults(not_honoured=(name,))
