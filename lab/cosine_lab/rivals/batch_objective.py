"""CoSine's batch objective (arXiv 2503.10325): draft lengths of requests that share drafters and a verifier."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

FORGET_S: Final = 2.0
"""A choice: a request begins several rounds a second, so one that is silent so long is over."""

Seconds = Callable[[int, int], float]


def draft_sizes(
    acceptances: Sequence[float],
    wanted: Sequence[int],
    *,
    draft_s: Seconds,
    verify_s: Seconds,
    most: int,
) -> tuple[int, ...]:
    """Draft sizes g, 0 <= g_i <= `wanted`_i, that minimise (T_draft + T_verify) / b.

    T_draft is `draft_s(requests that draft, longest g)`, T_verify is `verify_s(requests, G)` with G = sum g at most
    `most`. With b the number of requests no draft would ever pay, so b is what the
    batch is expected to commit: 1 + a + ... + a^g tokens of a request with acceptance a. For a given longest draft
    and G, the best sizes take the tokens that are likeliest to be accepted; so this is exact where no cost falls
    with longer drafts and T_draft does not depend on how many draft. The paper shortens the largest drafts until
    G fits; here the tokens that are worth least are never taken.
    """
    sizes = [0] * len(wanted)
    best_cost, best = verify_s(len(sizes), 0) / max(1, len(sizes)), tuple(sizes)
    for longest in range(1, max(wanted, default=0) + 1):
        sizes, committed = [0] * len(wanted), float(len(wanted))
        while sum(sizes) < most:
            growing = [i for i, g in enumerate(sizes) if g < min(longest, wanted[i])]
            if not growing:
                break
            chosen = max(growing, key=lambda i: (acceptances[i] ** (sizes[i] + 1), -i))
            sizes[chosen] += 1
            committed += acceptances[chosen] ** sizes[chosen]
            spent_s = draft_s(sum(map(bool, sizes)), max(sizes)) + verify_s(len(sizes), sum(sizes))
            cost = spent_s / committed
            if cost < best_cost:
                best_cost, best = cost, tuple(sizes)
    return best


@dataclass(slots=True)
class _Need:
    wanted: int
    acceptance: float
    at_s: float


class BatchDirector:
    """Gives the requests that share it their draft sizes by `draft_sizes`; its options are those of that function.

    A request says what it wants when it begins a round. One that has not asked for `FORGET_S` is taken to be over.
    """

    def __init__(self, *, draft_s: Seconds, verify_s: Seconds, most: int = 64) -> None:
        self._draft_s = draft_s
        self._verify_s = verify_s
        self._most = most
        self._needs: dict[bytes, _Need] = {}

    def size(self, request: bytes, *, wanted: int, acceptance: float, now_s: float) -> int:
        """The draft size of a request for the round it begins; 0 for a plain pass."""
        self._needs[request] = _Need(wanted, acceptance, now_s)
        self._needs = {r: need for r, need in self._needs.items() if now_s - need.at_s <= FORGET_S}
        needs = list(self._needs.values())
        sizes = draft_sizes(
            [need.acceptance for need in needs],
            [need.wanted for need in needs],
            draft_s=self._draft_s,
            verify_s=self._verify_s,
            most=self._most,
        )
        return sizes[list(self._needs).index(request)]
