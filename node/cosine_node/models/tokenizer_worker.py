"""The conversion of a tokenizer, for a process of its own (`cosine_node.processes.answer`)."""

import sys
from types import ModuleType
from typing import Any, cast

from cosine_protocol.errors import UsageError


def convert(folder: str, out: str, pieces: str | None = None) -> None:
    """Let transformers read the tokenizer in a folder and save it as it saves tokenizers.

    `pieces` is the file of SentencePiece's, if there is one. Raises `UsageError` with what is wrong.
    """
    # As if it were not installed: tokenizers need none of it, and to import it takes longer than all else here.
    sys.modules["torch"] = cast(ModuleType, None)
    try:
        from transformers import AutoTokenizer
        from transformers.convert_slow_tokenizer import SentencePieceExtractor

        if pieces is not None:
            # Where this fails transformers tries to read the file as tiktoken's, and says what is wrong with that.
            SentencePieceExtractor(pieces)
        # Mistral's own library, where it is installed, would read files of Mistral's and make no tokenizer.json.
        tokenizer: Any = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True, mistral_format=False
        )
        if not getattr(tokenizer, "is_fast", False):
            kind = type(tokenizer).__name__
            raise UsageError(f"transformers reads it with {kind}, which makes no tokenizer.json")
        tokenizer.save_pretrained(out)
    except UsageError:
        raise
    except Exception as failure:
        # Broad, because libraries may raise anything at a stranger's file.
        raise UsageError(next(iter(str(failure).splitlines()), "") or type(failure).__name__) from failure
