"""Names of learned weights in records: model, version number, and the beginning of the version's digest. Pure."""

import re
from dataclasses import dataclass
from typing import Final

from cosine_protocol.fields import MAX_NAME_BYTES

DIGEST_CHARACTERS: Final = 8  # The length of the digest in a name.
_LEARNED: Final = re.compile(rf"(.+)\+learned-([1-9][0-9]{{0,8}})-([0-9a-f]{{{DIGEST_CHARACTERS}}})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LearnedName:
    """The parts of a name, which the node claims: the model, the version's number, the start of its digest."""

    model: str
    number: int
    digest: str

    def __str__(self) -> str:
        ending = f"+learned-{self.number}-{self.digest}"
        return self.model.encode()[: MAX_NAME_BYTES - len(ending)].decode(errors="ignore") + ending

    @classmethod
    def of(cls, name: str) -> "LearnedName | None":
        """Parse a name in a record; None if the weights were not learned."""
        found = _LEARNED.fullmatch(name)
        return None if found is None else cls(found[1], int(found[2]), found[3])
