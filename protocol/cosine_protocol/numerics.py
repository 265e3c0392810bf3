"""The numerics of an engine, equal for engines whose texts differ only by rounding. Pure.

`[gguf:TYPE+][vllm:]ARITHMETIC[/HELD][ deterministic]`: the type of the weights in a GGUF file; if vLLM computes;
the dtype of the arithmetic, or `llama.cpp`; the type that weights were rounded to; whether results are independent
of the batch. For example `bfloat16`, `vllm:bfloat16/gptq`, `gguf:Q4_1+llama.cpp`, `gguf:Q4_1+float32/float16`.
"""

from typing import Final

QUANTISED: Final = "/"  # Precedes the type to which an engine quantises weights at load.
DETERMINISTIC: Final = " deterministic"  # Ends the numerics of an engine with the same bits in every pass.
LLAMA: Final = "llama.cpp"  # The arithmetic of an engine that computes as llama.cpp does for the type of weights.
VLLM: Final = "vllm:"  # Begins the numerics of an engine on vLLM.
GROUPED: Final = ("int4", "int8")  # Weights in groups; in float32, inputs of products are rounded to eight bits.
DTYPES: Final = ("float32", "bfloat16", "float16")  # The arithmetic of engines on PyTorch.


def arithmetic_of(numerics: str) -> str:
    """The dtype of the arithmetic, for example `float32`, or `LLAMA`."""
    return numerics.partition(" ")[0].rpartition("+")[2].partition(QUANTISED)[0].removeprefix(VLLM)


def library_of(numerics: str) -> str:
    """The library that computes, by its own name."""
    if arithmetic_of(numerics) == LLAMA:
        return LLAMA
    return "vLLM" if numerics.startswith(VLLM) else "PyTorch"


def stored_type_of(numerics: str) -> str | None:
    """The type of the weights in a GGUF file, for example `Q4_1`; None for weights from elsewhere."""
    return numerics.removeprefix("gguf:").rpartition("+")[0] or None


def held_type_of(numerics: str) -> str | None:
    """The type that weights were rounded to at load, for example `float16`; None if they were not."""
    return numerics.partition(" ")[0].partition(QUANTISED)[2] or None


def repeats(numerics: str) -> bool:
    """True if texts repeat exactly: in 16 bits, with rounded inputs and in llama.cpp the batch decides ties."""
    is_float32 = arithmetic_of(numerics) == "float32" and held_type_of(numerics) not in GROUPED
    is_exact = is_float32 or numerics == f"gguf:F32+{LLAMA}"
    return is_exact or numerics.endswith(DETERMINISTIC)


def numerics_text(numerics: str) -> str:
    """Numerics as text, for example "weights in float16 (Q4_1 in its file), arithmetic in float32"."""
    stored, held, arithmetic = stored_type_of(numerics), held_type_of(numerics), arithmetic_of(numerics)
    weights = f"{held} ({stored} in its file)" if stored and held else held or stored or arithmetic
    where = "arithmetic of llama.cpp" if arithmetic == LLAMA else f"arithmetic in {arithmetic}"
    return f"weights in {weights}, {where}"


def repetition_text(numerics: str) -> str:
    """A clause about the repeatability of texts."""
    return "texts are the same in every run" if repeats(numerics) else "texts may differ at near ties"
