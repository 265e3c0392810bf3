"""The process that converts a tokenizer: `python -m cosine_node.models.tokenizer_worker FOLDER OUT [FILE]`.

`FILE` is the one of SentencePiece's, if there is one. The last line of stdout tells how it went: `{"error": ""}`,
or what was wrong.
"""

import json
import sys
from types import ModuleType
from typing import Any, cast


def convert(folder: str, out: str, pieces: str | None = None) -> None:
    """Let transformers read the tokenizer in a folder and save it as it saves tokenizers.

    Raises `ValueError` with a sentence for one that has no tokenizer.json, and whatever transformers raises.
    """
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
        raise ValueError(f"transformers reads it with {type(tokenizer).__name__}, which makes no tokenizer.json")
    tokenizer.save_pretrained(out)


def main() -> None:
    """Convert as the arguments say."""
    # As if it were not installed: tokenizers need none of it, and to import it takes longer than all else here.
    sys.modules["torch"] = cast(ModuleType, None)
    error = ""
    try:
        convert(*sys.argv[1:])
    except Exception as failure:
        # Broad, because the task ends here, and its parent says so.
        error = next(iter(str(failure).splitlines()), "") or type(failure).__name__
    sys.stdout.write("\n" + json.dumps({"error": error}))


if __name__ == "__main__":
    main()
