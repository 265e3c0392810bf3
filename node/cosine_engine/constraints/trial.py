"""The trial of a constraint in a separate process, which its parent ends after a time limit.

Its tokens are the single bytes, with which it starts quickly and can write every text.
"""

import sys
from collections.abc import Sequence
from typing import ClassVar, Final

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from cosine_engine.constraints.grammars import clause, fault_in, grammar_of, limits
from cosine_protocol.request import ConstraintKind

MAX_MEMORY_BYTES: Final = 2 << 30
"""Maximum address space of the process, which takes 0.3 GB for a small constraint."""


class ByteTokens:
    """The tokenizer of single bytes in llguidance's form."""

    eos_token_id: int = 256
    bos_token_id: int | None = None
    tokens: Sequence[bytes] = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids: ClassVar[Sequence[int]] = [256]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def fault_of(kind: int, text: str) -> str:
    """Return the fault of a constraint as a clause, "" for none."""
    try:
        grammar = grammar_of(kind, text)
    except (ValueError, RecursionError) as error:
        return clause(str(error))
    return fault_in(LLMatcher(LLTokenizer(TokenizerWrapper(ByteTokens())), grammar, log_level=0, limits=limits()))


def peak_bytes() -> int:
    """Return the maximum memory of this process so far; 0 if the system does not report it."""
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


def trial(kind: int, text: str) -> tuple[str, int]:
    """Return the fault of a constraint as a clause, "" for none, and its memory. Bounds the process's memory."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    # The library's share of memory is excluded.
    fault_of(ConstraintKind.REGEX, "a")
    before_bytes = peak_bytes()
    return fault_of(kind, text), peak_bytes() - before_bytes
