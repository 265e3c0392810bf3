"""Sizes of a model's parts. Pure."""

from dataclasses import dataclass

from cosine_protocol.stage import LayerRange


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSizes:
    """Bytes of a model's weights: of each layer, embedding, output layer, and the part that every stage holds.

    `experts_bytes` of the layers' bytes are experts, of which each token uses the share `expert_share`.
    """

    layers_bytes: tuple[int, ...]
    embedding_bytes: int
    output_bytes: int
    common_bytes: int
    experts_bytes: int = 0
    expert_share: float = 1.0

    @property
    def layers(self) -> int:
        return len(self.layers_bytes)

    def of(self, part: LayerRange) -> int:
        """The bytes of a part's weights."""
        ends = self.embedding_bytes * part.is_first + self.output_bytes * part.is_last
        return self.common_bytes + ends + sum(self.layers_bytes[part.first : part.end])

    def read_layers_bytes(self, tokens: int) -> float:
        """The bytes of the layers' weights that a pass of `tokens` tokens reads, with experts at random."""
        read_share: float = 1.0 - (1.0 - self.expert_share) ** tokens
        return sum(self.layers_bytes) - (1.0 - read_share) * self.experts_bytes


def size_text(size_bytes: float) -> str:
    """A size with its unit."""
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**29 else f"{size_bytes / 2**20:.1f} MiB"
