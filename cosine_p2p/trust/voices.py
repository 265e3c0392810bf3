"""How many voices peers have that say the same, where the words of several may rest on one machine's. Pure.

A head's word is that of its stages, and one stage that lies makes all heads over it say the same. So as many words
count as a largest set of them has of which no two share anything.

Peers connected through others are never taken for one voice: a liar could name the stages of all honest heads; here
at worst its own word is left out. The set is built greedily, from the words that share with fewest others; a
largest one may take exponential time, and honest words share little. Judges that are seen in one /24 or /48 have
one voice too.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one judge says of a text, and what its word rests on: its `stages` and its address range `place`."""

    judge: str
    is_accusation: bool
    stages: frozenset[str] = frozenset()
    place: str = ""

    @property
    def computers(self) -> frozenset[str]:
        """The peers whose word it is, with the judge: it may be a stage of another."""
        return self.stages | {self.judge}

    @property
    def grounds(self) -> frozenset[str]:
        return self.computers | {self.place} if self.place else self.computers


def voices(words: Sequence[Collection[str]]) -> int:
    """The voices of words, each given as what it rests on."""
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
    """The voices against and for an author."""

    accusing: int
    clearing: int

    @classmethod
    def of(cls, opinions: Sequence[Opinion], *, author: Collection[str] = ()) -> "Poll":
        """Opinions on a text of `author`: who shares something with it may accuse it, but not clear it."""
        accusing = [one.grounds for one in opinions if one.is_accusation]
        clearing = [one.grounds for one in opinions if not one.is_accusation and one.computers.isdisjoint(author)]
        return cls(voices(accusing), voices(clearing))


def in_turns(peers: Iterable[str], places: Mapping[str, str]) -> list[str]:
    """Peers in order, but no place has a second turn before each had its first; all unknown places share one."""
    turns = Counter[str]()
    numbered = []
    for peer in peers:
        place = places.get(peer, "")
        numbered.append((turns[place], peer))
        turns[place] += 1
    return [peer for _, peer in sorted(numbered, key=lambda each: each[0])]
