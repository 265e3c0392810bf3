"""The sizes of a model's parts, before any weight is read. Pure."""

from dataclasses import dataclass

from cosine_protocol.stage_messages import LayerRange


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSizes:
    """Bytes of the weights of a model: of each layer, the embedding, the output layer, and what every part has.

    They are known before any weight is read. Of the layers' bytes `experts_bytes` are those of experts, and each
    token is sent to the share `expert_share` of these.
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
        """Bytes of a part's weights."""
        ends = self.embedding_bytes * part.is_first + self.output_bytes * part.is_last
        return self.common_bytes + ends + sum(self.layers_bytes[part.first : part.end])

    def read_layers_bytes(self, tokens: int) -> float:
        """Bytes of the layers' weights that a pass of so many tokens reads, each sent to experts at random."""
        read_share: float = 1.0 - (1.0 - self.expert_share) ** tokens
        return sum(self.layers_bytes) - (1.0 - read_share) * self.experts_bytes


def size_text(size_bytes: float) -> str:
    """Bytes as people read them."""
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**29 else f"{size_bytes / 2**20:.1f} MiB"
