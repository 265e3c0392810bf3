"""The speculation account of one request: it keeps drafts from costing more than they bring. Pure.

It guards a pass against a client whose draft probabilities are wrong, on purpose or not: nodes that are never
accepted make passes longer for everybody in them. An honest request of 60 tokens beside one whose drafts are all
wrong and sent as certain takes 0.87 s without accounts and 0.62 s with them; plain decoding takes 0.60 s (emulated
passes of 10 ms, 14.5 ms with a third token; `tests/node/verifier/test_service.py`). Drafts of our own client are
calibrated; there an account changes nothing.
"""

from typing import Final

# Choices: together the least that lets a request try drafts at all and keep the promise of 0.98x plain decoding.
MAX_DEBT: Final = 0.02
"""Share of the plain time so far."""
FREE_PASSES: Final = 0.75
"""Plain passes that a request may owe whatever its length, so that a short one can speculate."""


class SpeculationAccount:
    """Time spent minus committed tokens times the cost of a plain pass at the same load.

    In debt past 2 % of the plain time so far, or three quarters of one pass while that is more, a request gets
    plain passes until it has recovered.
    """

    def __init__(self) -> None:
        self._plain_s = 0.0
        self._debt_s = 0.0
        self._pass_s = 0.0

    def charge(self, *, spent_s: float, tokens: int, plain_pass_s: float) -> None:
        """Book one pass: its duration, the tokens it committed, and the time of a plain one at the same load."""
        self._plain_s += tokens * plain_pass_s
        self._debt_s += spent_s - tokens * plain_pass_s
        self._pass_s = plain_pass_s

    @property
    def may_speculate(self) -> bool:
        return self._debt_s <= max(MAX_DEBT * self._plain_s, FREE_PASSES * self._pass_s)
