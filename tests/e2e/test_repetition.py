"""Greedy texts are equal alone and in a batch, with and without the verifier's own drafts."""

from pathlib import Path

import pytest

from cosine_protocol.numerics import repeats
from tests.e2e.repetition import PROMPTS, repetition

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(300)]


def test_a_prompt_gets_one_text_in_every_run(tmp_path: Path) -> None:
    options = ("--dtype", "float32", "--threads", "1")
    numerics, texts = repetition(tmp_path, "zoo:target", options, tokens=24, prompts=PROMPTS[:4])
    assert repeats(numerics)
    assert [len(each) for each in texts] == [1] * 4
