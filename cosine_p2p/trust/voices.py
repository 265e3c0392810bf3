"""The number of independent voices among opinions, several of which may depend on one machine. Pure.

The opinion of a chain's head depends on its stages, and one lying stage can make all heads that use it say the
same. So the number of voices is the size of a largest set of opinions of which no two share a stage.

Opinions are not merged transitively: a liar could name the stages of all honest heads; here at worst its own
opinion is ignored. The set is built greedily, from the opinions that share with the fewest others, since a largest
one may take exponential time and honest opinions share little. Judges seen in one /24 or /48 have one voice too.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Opinion:
    """A judge's opinion on a text, and what it depends on: the `stages` and the `address_range`."""

    judge: str
    is_accusation: bool
    stages: frozenset[str] = frozenset()
    address_range: str = ""

    @property
    def computers(self) -> frozenset[str]:
        """The peers that computed it, with the judge, which may be a stage of another."""
        return self.stages | {self.judge}

    @property
    def grounds(self) -> frozenset[str]:
        return self.computers | {self.address_range} if self.address_range else self.computers


def voices(words: Sequence[Collection[str]]) -> int:
    """The number of voices of opinions, each given by what it depends on."""
    grounds = [frozenset(each) for each in words]
    sharing = {
        one: {other for other in range(len(grounds)) if other != one and grounds[one] & grounds[other]}
        for one in range(len(grounds))
    }
    count = 0
    while sharing:
        taken = min(sharing, key=lambda one: len(sharing[one]))
        gone = sharing[taken] | {taken}
        sharing = {one: others - gone for one, others in sharing.items() if one not in gone}
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class Poll:
    """The number of voices against and for an author."""

    accusing: int
    clearing: int

    @classmethod
    def of(cls, opinions: Sequence[Opinion], *, author: Collection[str] = ()) -> "Poll":
        """Count opinions on a text of `author`; a judge that shares a peer with it may only accuse."""
        accusing = [one.grounds for one in opinions if one.is_accusation]
        clearing = [one.grounds for one in opinions if not one.is_accusation and one.computers.isdisjoint(author)]
        return cls(voices(accusing), voices(clearing))


def alternating(peers: Iterable[str], ranges: Mapping[str, str]) -> list[str]:
    """Reorder peers so that address ranges alternate; unknown ranges count as one."""
    counts = Counter[str]()
    numbered = []
    for peer in peers:
        address_range = ranges.get(peer, "")
        numbered.append((counts[address_range], peer))
        counts[address_range] += 1
    return [peer for _, peer in sorted(numbered, key=lambda each: each[0])]
