"""The process that tries a constraint: `python -m cosine_node.engine.constraints.trial`.

On stdin is `{"kind": ..., "text": ...}`.

The last line of stdout tells how it went: `{"fault": ""}`, or what is wrong. It may take any time, and its parent
ends it. Its tokens are the single bytes, so that it starts quickly; every text can be written with them.
"""

import json
import sys
from collections.abc import Sequence
from typing import ClassVar, Final

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from cosine_node.engine.constraints.grammars import grammar_of, limits

MAX_MEMORY_BYTES: Final = 2 << 30
"""Address space of the process, of which it takes 0.3 GB for a small constraint."""

MAX_REASON: Final = 160
"""Characters of what llguidance says."""


class ByteTokens:
    """The tokenizer of single bytes, as llguidance wants it."""

    eos_token_id: int = 256
    bos_token_id: int | None = None
    tokens: Sequence[bytes] = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids: ClassVar[Sequence[int]] = [256]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def fault_of(kind: int, text: str) -> str:
    """What is wrong with a constraint, a clause; empty if nothing is."""
    try:
        grammar = grammar_of(kind, text)
    except (ValueError, RecursionError) as error:
        return _clause(str(error))
    matcher = LLMatcher(LLTokenizer(TokenizerWrapper(ByteTokens())), grammar, log_level=0, limits=limits())
    if not matcher.is_error():
        matcher.compute_bitmask()
    return _clause(matcher.get_error())


def _clause(said: str) -> str:
    """What llguidance says, on one line and not at length."""
    line = " ".join(said.split())
    return line if len(line) <= MAX_REASON else f"{line[:MAX_REASON]} ..."


def main() -> None:
    """Try the constraint on stdin."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    asked = json.load(sys.stdin)
    sys.stdout.write("\n" + json.dumps({"fault": fault_of(asked["kind"], asked["text"])}))


if __name__ == "__main__":
    main()
