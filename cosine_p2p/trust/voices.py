"""How many voices peers have that say the same, where the words of several may rest on one machine's. Pure.

A head computes nothing: its word is that of its stages, and one stage that lies makes all heads over it say the
same. So words count as far as no two of them share anything: as many as a largest set of such words has.

Peers that are connected by what they share, one after the other, are never taken for one voice. What a word rests
on is told by whoever gives it, so a liar can name the stages of all honest heads and stand between them; it would
make them one. Here it costs them nothing: at worst the liar's own word is the one left out.

The set is built greedily, from the words that share something with fewest others, since finding a largest one may
take as long as strangers like. Honest words share little, so they come before whoever names much.

A key costs nothing, an address in another range does: judges that are seen in one /24 or /48 have one voice too.
Where a peer is seen is worth more than where its record says that it is, which is for it to say; but somebody with
many machines is in many ranges, and behind one relay all are in that of the relay.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one judge says of a text, and what its word rests on: the `stages` that computed for it.

    `place` is the address range of the judge, "" where that is not told apart.
    """

    judge: str
    is_accusation: bool
    stages: frozenset[str] = frozenset()
    place: str = ""

    @property
    def computers(self) -> frozenset[str]:
        """The peers whose word it is, the judge itself among them: it may be a stage of another."""
        return self.stages | {self.judge}

    @property
    def grounds(self) -> frozenset[str]:
        """All that it may share with others."""
        return self.computers | {self.place} if self.place else self.computers


def voices(words: Sequence[Collection[str]]) -> int:
    """The voices that words have together, each given as what it rests on."""
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
        """Count opinions on a text that rests on what `author` holds.

        Who shares something with the author cannot clear it, for both words are one. It may accuse it: a stage in
        both that lies says the same in both, so that another part of either is wrong.
        """
        accusing = [one.grounds for one in opinions if one.is_accusation]
        clearing = [one.grounds for one in opinions if not one.is_accusation and one.computers.isdisjoint(author)]
        return cls(voices(accusing), voices(clearing))


def in_turns(peers: Iterable[str], places: Mapping[str, str]) -> list[str]:
    """Peers in the order given, but that no place has a second turn before each had its first.

    All whose place is not known share one, so that nobody gains by hiding it.
    """
    turns = Counter[str]()
    numbered = []
    for peer in peers:
        place = places.get(peer, "")
        numbered.append((turns[place], peer))
        turns[place] += 1
    return [peer for _, peer in sorted(numbered, key=lambda each: each[0])]
