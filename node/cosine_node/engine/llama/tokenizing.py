"""A process that tells llama.cpp's own tokens of texts, with which a node compares its own before it serves a file.

Run as a module, `python -m cosine_node.engine.llama.tokenizing FILE`, so that it can be ended: llama.cpp stops a
process at a vocabulary that makes no sense to it. It reads one JSON list of texts from stdin, and answers with
`{"tokens"}`, a list for each text as it begins and ends by itself, or with `{"error"}`.
"""

import json
import sys
from ctypes import c_int32
from typing import Final

from cosine_node.engine.llama.library import llama_library
from cosine_protocol.errors import UsageError

BYTES_OF_A_SPACE: Final = 3
"""In the letter that stands for it in some vocabularies; no byte of a text becomes more tokens than that."""
ADDED_TOKENS: Final = 8
"""Room for what llama.cpp puts before and after a text."""


def llama_tokens(file: str, texts: list[str]) -> list[list[int]]:
    """The tokens of texts, control tokens read as such. Raises `UsageError` for a file that cannot be loaded."""
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
        tokens = (c_int32 * room)()
        count = library.c.llama_tokenize(vocabulary, data, len(data), tokens, room, True, True)
        found.append(list(tokens[: max(0, count)]))
    return found


def main() -> None:
    try:
        answer: dict[str, object] = {"tokens": llama_tokens(sys.argv[1], json.load(sys.stdin))}
    except UsageError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
