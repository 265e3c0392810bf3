"""The conversion of a tokenizer, for a child process (`cosine_engine.processes.answer`)."""

import sys
from types import ModuleType
from typing import Any, cast

from cosine_protocol.errors import UsageError


def convert(folder: str, out: str, pieces: str | None = None) -> None:
    """Load the tokenizer in a folder with transformers and save it. Raises `UsageError`.

    `pieces` is a file of SentencePiece, if there is one.
    """
    # Tokenizers do not need PyTorch, whose import would take most of the time.
    sys.modules["torch"] = cast(ModuleType, None)
    try:
        from transformers import AutoTokenizer
        from transformers.convert_slow_tokenizer import SentencePieceExtractor

        if pieces is not None:
            # transformers would read a damaged file as one of tiktoken, with a misleading error.
            SentencePieceExtractor(pieces)
        # Mistral's library, if installed, would write no tokenizer.json.
        tokenizer: Any = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True, mistral_format=False
        )
        if not getattr(tokenizer, "is_fast", False):
            kind = type(tokenizer).__name__
            raise UsageError(f"transformers reads it with {kind}, which writes no tokenizer.json")
        tokenizer.save_pretrained(out)
    except UsageError:
        raise
    except Exception as failure:
        # Broad: libraries may raise anything for an untrusted file.
        raise UsageError(next(iter(str(failure).splitlines()), "") or type(failure).__name__) from failure
