"""A process that tells llama.cpp's logits after a few tokens, with which a node compares PyTorch's.

Run as a module, `python -m cosine_node.engine.llama.telling FILE`, so that its memory is free again when PyTorch
loads the same file. It reads `[tokens, step]` from stdin, and answers with `{"logits"}`, every step-th one after
each token, or with `{"error"}`.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from cosine_node.engine.llama.library import llama_library
from cosine_node.engine.llama.loading import default_threads
from cosine_node.engine.llama.model import FedToken, LlamaContext, LlamaModel
from cosine_node.gguf.file import GgufFile
from cosine_protocol.errors import CosineError

CACHE_TOKENS = 256
"""llama.cpp's own step."""


def llama_logits(file: Path, tokens: Sequence[int], step: int) -> list[list[float]]:
    """Raises `CosineError` for a file that llama.cpp cannot load, or that our engine of it does not run."""
    model = LlamaModel(llama_library(), GgufFile.open(file))
    context = LlamaContext(
        model,
        tokens=CACHE_TOKENS,
        lanes=1,
        pass_tokens=len(tokens),
        threads=default_threads(model.parameters),
    )
    fed = [FedToken(token, place, [0], True) for place, token in enumerate(tokens)]
    found: list[list[float]] = context.logits(fed)[:, ::step].tolist()
    return found


def main() -> None:
    tokens, step = json.load(sys.stdin)
    try:
        answer: dict[str, object] = {"logits": llama_logits(Path(sys.argv[1]), tokens, step)}
    except CosineError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
