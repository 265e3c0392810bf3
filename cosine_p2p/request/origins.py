"""The origins of a text: the number of tokens by source. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cosine_protocol.verify import FORCED_AUTHOR, HOME_AUTHOR

TARGET_SOURCE: Final = "target"  # The `source` of tokens that were not drafted.
HOME_SOURCE: Final = "home"  # The `source` of tokens of the verifier's own drafter.
FORCED_SOURCE: Final = "forced"  # The `source` of tokens that a constraint forces.
OWN_SOURCES: Final[Mapping[int, str]] = {0: TARGET_SOURCE, HOME_AUTHOR: HOME_SOURCE, FORCED_AUTHOR: FORCED_SOURCE}
"""The sources of tokens that no drafter of the swarm drafted, by the author byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOrigin:
    """The origin of one token of a text; `source` and `is_copied` are those of a `Chunk`.

    `round` counts the passes of verifiers, from 1. `confidence` is the drafter's, if its signed draft is known.
    `content` and `reasoning` are the text that became certain with the token, and may be empty.
    """

    token: int
    source: str
    is_copied: bool = False
    round: int = 0
    confidence: float | None = None
    content: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Tokens of a text from one `source` (as of a `Chunk`); `domain` is a drafter's expertise, else ""."""

    source: str
    is_copied: bool = False
    domain: str = ""
    tokens: int = 0

    @property
    def is_own(self) -> bool:
        return self.source in OWN_SOURCES.values()

    @property
    def name(self) -> str:
        if self.is_copied:
            return "copied"
        names = {HOME_SOURCE: "verifier's drafter", FORCED_SOURCE: "forced", TARGET_SOURCE: "target alone"}
        return names.get(self.source) or self.domain or "drafter"


class OriginCount:
    def __init__(self) -> None:
        own = ((HOME_SOURCE, False), (FORCED_SOURCE, False), (TARGET_SOURCE, True), (TARGET_SOURCE, False))
        self._own = dict.fromkeys(own, 0)
        self._drafted: Counter[str] = Counter()

    def note(self, source: str, *, is_copied: bool, tokens: int) -> None:
        if (source, is_copied) in self._own:
            self._own[source, is_copied] += tokens
        else:
            self._drafted[source] += tokens

    def own(self) -> tuple[Origin, ...]:
        """Return the verifier's own origins, also those without tokens."""
        return tuple(
            Origin(source=source, is_copied=is_copied, tokens=tokens)
            for (source, is_copied), tokens in self._own.items()
        )

    def origins(self, domains: Mapping[str, str]) -> tuple[Origin, ...]:
        """Return origins with tokens: drafters, most tokens first, then the verifier. `domains`: by peer id."""
        drafted = (
            Origin(source=source, domain=domains.get(source, ""), tokens=tokens)
            for source, tokens in self._drafted.most_common()
        )
        return tuple(origin for origin in (*drafted, *self.own()) if origin.tokens)


def joined_origins(texts: Iterable[Iterable[Origin]]) -> tuple[Origin, ...]:
    count, domains = OriginCount(), dict[str, str]()
    for origin in (origin for text in texts for origin in text):
        count.note(origin.source, is_copied=origin.is_copied, tokens=origin.tokens)
        domains[origin.source] = origin.domain
    return count.origins(domains)


def told_origins(origins: Iterable[Origin]) -> str:
    """Return the origins of a text as text: `code 30, copied 43, target alone 40`."""
    return ", ".join(f"{one.name} {one.tokens}" for one in origins) or "none"
