"""The choices of a verifier about drafts under free pacing."""

from dataclasses import dataclass
from typing import Final

MAX_COORDINATED: Final = 8
"""A choice: a decision takes 0.3 ms of the event loop, so that they take a few percent of it at 60 ms a pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All of it is on, except in scenarios that compare with strategies which know none of it.

    With `uses_prompt_lookup` the verifier drafts what followed the same words before (`prompt_lookup`); with
    `tries_own_drafts` that, and what its own drafter guesses (`home_drafter`), only where it measures faster than
    not to (`cosine_p2p.strategy.speed_trial`). With `keeps_account` a request whose drafts cost more than they
    bring gets plain passes (`account`). With `drops_costly_nodes` only drafts that raise the expected tokens per
    second enter a pass, else all live ones up to the token budget (`selection`). With `only_best_path`
    only the most probable child of each node does, with `max_nodes` no more than so many for each request.
    """

    uses_prompt_lookup: bool = True
    tries_own_drafts: bool = True
    keeps_account: bool = True
    drops_costly_nodes: bool = True
    only_best_path: bool = False
    max_nodes: int | None = None
