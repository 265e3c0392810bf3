"""llama.cpp's answers about a GGUF file, for a separate process (`cosine_engine.processes.answer`).

llama.cpp ends a process at an invalid file, and keeps memory that PyTorch needs afterwards.
"""

from collections.abc import Sequence
from ctypes import c_int32
from pathlib import Path
from typing import Final

from cosine_engine.gguf.file import GgufFile
from cosine_engine.lanes.lanes import FedToken
from cosine_engine.llama.library import llama_library
from cosine_engine.llama.loading import default_threads
from cosine_engine.llama.model import LlamaContext, LlamaModel
from cosine_protocol.errors import UsageError

CONTEXT_TOKENS: Final = 256
"""llama.cpp's step."""
BYTES_OF_A_SPACE: Final = 3
"""Length of the letter for a space in some vocabularies; no byte of a text becomes more tokens."""
ADDED_TOKENS: Final = 8
"""Room for the tokens that llama.cpp adds before and after a text."""


def loads(file: str) -> None:
    """Load a file without its weights. Raises `CosineError`."""
    model = LlamaModel(llama_library(), GgufFile.open(Path(file)), has_weights=False)
    LlamaContext(model, tokens=CONTEXT_TOKENS, lanes=1, pass_tokens=1, threads=1)


def logits(file: str, tokens: Sequence[int], step: int) -> list[list[float]]:
    """Return every step-th logit after each of some tokens.

    Raises `CosineError` for a file that llama.cpp cannot load, or that our engine of it does not run.
    """
    model = LlamaModel(llama_library(), GgufFile.open(Path(file)))
    threads = default_threads(model.parameters)
    context = LlamaContext(model, tokens=CONTEXT_TOKENS, lanes=1, pass_tokens=len(tokens), threads=threads)
    fed = [FedToken(token, place, [0], True) for place, token in enumerate(tokens)]
    found: list[list[float]] = context.logits(fed)[:, ::step].tolist()
    return found


def tokens(file: str, texts: Sequence[str]) -> list[list[int]]:
    """Return the tokens of each text, control tokens read as such. Raises `UsageError` for a damaged file."""
    library = llama_library()
    params = library.c.llama_model_default_params()
    params.vocab_only = True
    params.n_gpu_layers = 0
    handle = library.c.llama_model_load_from_file(file.encode(), params)
    if handle is None:
        raise UsageError("; ".join(library.errors[:1]) or "it does not say why")
    vocabulary = library.c.llama_model_get_vocab(handle)
    found = []
    for text in texts:
        data = text.encode()
        room = BYTES_OF_A_SPACE * len(data) + ADDED_TOKENS
        buffer = (c_int32 * room)()
        count = library.c.llama_tokenize(vocabulary, data, len(data), buffer, room, True, True)
        found.append(list(buffer[: max(0, count)]))
    return found
