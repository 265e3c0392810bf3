"""A request gets the same text each time, alone or beside others, in all numerics that promise it."""

from pathlib import Path

import pytest

from cosine_protocol.numerics import repeats
from tests.e2e.repetition import PROMPTS, repetition
from tests.thoroughness import soak_rest

pytestmark = [pytest.mark.network, pytest.mark.thorough, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    "options",
    soak_rest([(), ("--dtype", "float32"), ("--dtype", "bfloat16", "--deterministic")]),
    ids=lambda options: " ".join(options) or "default",
)
def test_a_request_gets_the_same_text_each_time(options: tuple[str, ...], tmp_path: Path) -> None:
    found = repetition(tmp_path, "zoo:target", options, tokens=24, prompts=PROMPTS)
    assert repeats(found.numerics)
    assert [len(texts) for texts in found.texts] == [1] * len(PROMPTS)
