"""llama.cpp's bench in its smallest form: the embedded target as a file, and what its rows mean."""

from typing import Any

import pytest

from cosine_lab.experiments.llama import LOOP, OURS, TORCH, LlamaOptions, PlainLoop, run
from cosine_protocol.errors import UsageError
from tests.node.engine.gguf_models import tiny_gguf
from tests.node.engine.tiny_models import tiny_llama


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(LlamaOptions.quick(), say=lambda _: None)


def test_everybody_is_timed_in_every_part(result: dict[str, Any]) -> None:
    timed = [(row["part"], row["engine"]) for row in result["rows"]]
    assert timed == [
        ("passes", OURS),
        ("passes", TORCH),
        ("one request", OURS),
        ("one request", TORCH),
        ("one request", LOOP),
        ("one request, sampled", OURS),
        ("one request, sampled", LOOP),
        ("2 requests at once", OURS),
        ("2 requests at once", TORCH),
    ]
    for row in result["rows"]:
        assert all(row[name] > 0 for name in ("tokens_per_s", "ratio", "ms_of_1", "ms_of_16") if name in row)
    # The ratios are to the plain loop, and to PyTorch where there is none.
    assert [row["ratio"] for row in result["rows"] if row["engine"] == LOOP] == [1.0, 1.0]
    assert result["rows"][-1]["ratio"] == 1.0


def test_the_plain_loop_writes_the_models_own_text() -> None:
    import torch

    prompt = (5, 9, 77, 140)
    expected = tiny_llama().generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=12, eos_token_id=None, pad_token_id=0
    )
    loop = PlainLoop(tiny_gguf(), tokens=64, threads=1)
    for _ in range(2):
        assert loop.decode(prompt, 12).tokens == expected[0, len(prompt) :].tolist()


def test_what_is_no_file_is_refused() -> None:
    with pytest.raises(UsageError, match="zoo:target is no GGUF file"):
        run(LlamaOptions(model="zoo:target"), say=lambda _: None)
