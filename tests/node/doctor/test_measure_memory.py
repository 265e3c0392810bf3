"""The doctor announces the memory of a model within 15 % of what a node with it then holds."""

import re

import pytest

from tests.node.doctor.measure_memory import (
    BEGIN,
    DTYPES,
    END,
    MIB,
    MODELS,
    PAGE,
    Measured,
    measure,
    told_memory,
    write_table,
)

MOST_OFF = 0.15
HELD_TWICE = {("deepseek_v3", "float32")}
"""Of these the file of the weights stays mapped beside the weights; the cause is not known."""
TABLE = PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]
ROWS = [
    (found[1], found[2], int(found[3]), int(found[4]))
    for found in re.finditer(r"^\| (\S+) \| (\w+) \| (\d+) MiB \| (\d+) MiB \|", TABLE, re.MULTILINE)
]


def test_what_is_announced_was_measured_for_every_model() -> None:
    assert {(model_type, dtype) for model_type, dtype, _, _ in ROWS} == {
        (model_type, dtype) for model_type in MODELS for dtype in DTYPES
    }


@pytest.mark.parametrize(("model_type", "dtype", "told_mib", "used_mib"), ROWS)
def test_what_was_announced_was_taken(model_type: str, dtype: str, told_mib: int, used_mib: int) -> None:
    is_near = told_mib / used_mib == pytest.approx(1.0, abs=MOST_OFF)
    assert is_near is ((model_type, dtype) not in HELD_TWICE)


def test_a_row_says_what_was_measured_as_the_doctors_sentence_is_read() -> None:
    row = Measured("kind", "float32", told_bytes=90 * MIB, used_bytes=100 * MIB, told_tokens=8, kv_tokens=1234)
    assert write_table([row]).splitlines()[-1] == "| kind | float32 | 90 MiB | 100 MiB | 0.90 | 1,234 |"
    found = "it takes about 1.50 GiB of 4.00 GiB free here: 400 MiB of weights, 1 MiB of KV cache for 12 tokens"
    assert told_memory(found) == (1536 * MIB, 12)
    assert told_memory("it takes about 12 MiB of 1.00 GiB free here: 12 MiB of weights") == (12 * MIB, 0)
    with pytest.raises(ValueError, match="the doctor does not tell"):
        told_memory("the model's size is not known")


@pytest.mark.soak
@pytest.mark.network
@pytest.mark.timeout(300)
def test_a_model_is_measured_again() -> None:
    found = measure(MODELS["gpt2"], "bfloat16")
    assert found.ratio == pytest.approx(1.0, abs=MOST_OFF)
    assert found.told_tokens == found.kv_tokens
