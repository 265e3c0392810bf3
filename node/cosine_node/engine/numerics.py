"""What the numerics of a record say of an engine. Its own names are in `torch.support` and `llama.loading`."""

from typing import Final

from cosine_protocol.numerics import DETERMINISTIC, LLAMA, arithmetic_of, held_type_of

DTYPES: Final = ("float32", "bfloat16", "float16")
"""The dtypes that PyTorch computes in here, by the names of `--dtype`."""
QUANTISATIONS: Final = ("float16", "int8", "int4")
"""What `--quantize` makes of weights, as numerics call it; other quantisations are the model's own files'."""


def join_options(numerics: str) -> tuple[str, ...]:
    """The options by which `cosine-node join` gets engines of these numerics from the same model.

    Numerics are those of PyTorch, as `float32`, `bfloat16/int8` or `gguf:Q4_1+float32/float16`, or of llama.cpp, as
    `gguf:Q4_1+llama.cpp`. There are none for others.
    """
    arithmetic, held = arithmetic_of(numerics), held_type_of(numerics)
    if arithmetic == LLAMA:
        return ("--engine", "llama")
    if arithmetic not in DTYPES:
        return ()
    quantised = ("--quantize", held) if held in QUANTISATIONS else ()
    deterministic = ("--deterministic",) if numerics.endswith(DETERMINISTIC) else ()
    return ("--engine", "torch", "--dtype", arithmetic, *quantised, *deterministic)
