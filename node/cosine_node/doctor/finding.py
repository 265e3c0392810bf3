"""Findings of the doctor: the status of what was checked, and for a failure what to do about it."""

from dataclasses import dataclass
from enum import StrEnum


class CheckStatus(StrEnum):
    """The result of a check. Only a failure keeps a node from working."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Finding:
    """`what` was looked at, `found` says how it is, `fix` names the command or option that changes it."""

    what: str
    status: CheckStatus
    found: str
    fix: str = ""

    def __post_init__(self) -> None:
        if self.status is CheckStatus.FAILURE and not self.fix:
            raise ValueError(f"the failure of {self.what} says not what to do")


def fine(what: str, found: str) -> Finding:
    return Finding(what, CheckStatus.OK, found)


def warning(what: str, found: str, fix: str) -> Finding:
    return Finding(what, CheckStatus.WARNING, found, fix)


def failure(what: str, found: str, fix: str) -> Finding:
    return Finding(what, CheckStatus.FAILURE, found, fix)


def skipped(what: str, reason: str) -> Finding:
    return Finding(what, CheckStatus.SKIPPED, reason)
