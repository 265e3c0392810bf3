"""A process that loads a GGUF file into llama.cpp without its weights, which ends it where a file makes no sense.

Run as a module, `python -m cosine_node.engine.llama.trial FILE`. It answers with `{}` or `{"error"}`.
"""

import json
import sys
from pathlib import Path

from cosine_node.engine.llama.library import llama_library
from cosine_node.engine.llama.model import LlamaContext, LlamaModel
from cosine_node.gguf.file import GgufFile
from cosine_protocol.errors import CosineError

CONTEXT_TOKENS = 256
"""llama.cpp's own step."""


def main() -> None:
    answer = {}
    try:
        model = LlamaModel(llama_library(), GgufFile.open(Path(sys.argv[1])), has_weights=False)
        LlamaContext(model, tokens=CONTEXT_TOKENS, lanes=1, pass_tokens=1, threads=1)
    except CosineError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
