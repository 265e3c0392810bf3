"""Findings of the doctor."""

from dataclasses import dataclass
from enum import StrEnum

from cosine_protocol.errors import CosineError


class CheckStatus(StrEnum):
    """The result of a check. Only a failure keeps a node from working."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    what: Name of the check.
    found: Clause that describes the result.
    fix: Sentence that says what to do. "" if there is nothing to do.
    """

    what: str
    status: CheckStatus
    found: str
    fix: str = ""

    def __post_init__(self) -> None:
        if self.status is CheckStatus.FAILURE and not self.fix:
            raise ValueError(f"the failure of {self.what} does not say what to do")


def fine(what: str, found: str) -> Finding:
    return Finding(what, CheckStatus.OK, found)


def warning(what: str, found: str, fix: str) -> Finding:
    return Finding(what, CheckStatus.WARNING, found, fix)


def failure(what: str, found: str, fix: str) -> Finding:
    return Finding(what, CheckStatus.FAILURE, found, fix)


def skipped(what: str, reason: str) -> Finding:
    return Finding(what, CheckStatus.SKIPPED, reason)


def refusal(what: str, error: CosineError, fix: str) -> Finding:
    """A failure with the sentence of an error. Advice after its last semicolon replaces `fix`."""
    found, _, advice = str(error).rpartition("; ")
    return failure(what, found or advice, advice[:1].upper() + advice[1:] if found else fix)
