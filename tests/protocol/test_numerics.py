"""Parsing of numerics."""

import pytest

from cosine_protocol.numerics import arithmetic_of, held_type_of, library_of, numerics_text, repeats, stored_type_of


@pytest.mark.parametrize(
    ("numerics", "arithmetic", "stored", "held", "is_same", "said"),
    [
        ("float32", "float32", None, None, True, "weights in float32, arithmetic in float32"),
        ("bfloat16", "bfloat16", None, None, False, "weights in bfloat16, arithmetic in bfloat16"),
        ("bfloat16 deterministic", "bfloat16", None, None, True, "weights in bfloat16, arithmetic in bfloat16"),
        ("bfloat16/int8", "bfloat16", None, "int8", False, "weights in int8, arithmetic in bfloat16"),
        ("float32/float16", "float32", None, "float16", True, "weights in float16, arithmetic in float32"),
        (
            *("gguf:Q4_1+float32/float16", "float32", "Q4_1", "float16", True),
            "weights in float16 (Q4_1 in its file), arithmetic in float32",
        ),
        ("gguf:Q8_0+bfloat16", "bfloat16", "Q8_0", None, False, "weights in Q8_0, arithmetic in bfloat16"),
        ("gguf:Q4_1+llama.cpp", "llama.cpp", "Q4_1", None, False, "weights in Q4_1, arithmetic of llama.cpp"),
        ("vllm:float32", "float32", None, None, True, "weights in float32, arithmetic in float32"),
        ("vllm:bfloat16/gptq", "bfloat16", None, "gptq", False, "weights in gptq, arithmetic in bfloat16"),
        ("gguf:F32+llama.cpp", "llama.cpp", "F32", None, True, "weights in F32, arithmetic of llama.cpp"),
    ],
)
def test_numerics(
    numerics: str, arithmetic: str, stored: str | None, held: str | None, *, is_same: bool, said: str
) -> None:
    assert (arithmetic_of(numerics), stored_type_of(numerics), held_type_of(numerics)) == (arithmetic, stored, held)
    assert (repeats(numerics), numerics_text(numerics)) == (is_same, said)


def test_numerics_name_their_library() -> None:
    named = {"vllm:bfloat16": "vLLM", "gguf:Q4_1+llama.cpp": "llama.cpp", "gguf:Q4_1+float32/float16": "PyTorch"}
    assert {numerics: library_of(numerics) for numerics in named} == named
