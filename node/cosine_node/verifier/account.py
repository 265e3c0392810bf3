"""The speculation account of one request: it keeps drafts from ever costing more than they bring."""

from typing import Final

MAX_DEBT: Final = 0.02
FREE_PASSES: Final = 0.75


class SpeculationAccount:
    """Time spent minus committed tokens times the cost of a plain pass at the same load (DESIGN idea II).

    In debt past 2 % of the plain time so far, or three quarters of one pass while that is more, a request gets
    plain passes until it has recovered.
    """

    def __init__(self) -> None:
        self._plain_s = 0.0
        self._debt_s = 0.0
        self._pass_s = 0.0

    def charge(self, *, spent_s: float, tokens: int, plain_pass_s: float) -> None:
        """Book one pass: its duration with any waiting, what it committed, and what a plain one costs."""
        self._plain_s += tokens * plain_pass_s
        self._debt_s += spent_s - tokens * plain_pass_s
        self._pass_s = plain_pass_s

    @property
    def may_speculate(self) -> bool:
        return self._debt_s <= max(MAX_DEBT * self._plain_s, FREE_PASSES * self._pass_s)
