"""What a model makes of tokens between its layers, kept for a draft head by the slots of the pool."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cosine_node.engine.kv_pool import Integers


class PassFeatures:
    """Keeps what enters some layers of a model; one more than the last names what leaves that one.

    What was made of a token lies in its slot, as its keys and values do: so cached prefixes have it too. The flat
    decoder puts what it sees into `seen` itself, other models are listened to.
    """

    def __init__(self, model: Any, layers: Sequence[int], *, slots: int, is_flat: bool) -> None:
        self.seen: dict[int, Tensor] | None = dict.fromkeys(layers, torch.empty(0)) if layers else None
        self._layers = tuple(layers)
        width = len(layers) * model.config.get_text_config().hidden_size if layers else 0
        self._kept = torch.zeros(slots if layers else 0, width, dtype=model.dtype, device=model.device)
        if layers and not is_flat:
            body = model.get_decoder()
            ends = [*body.layers, body.norm]
            for layer in layers:
                ends[layer].register_forward_pre_hook(self._note(layer), with_kwargs=True)

    @property
    def token_bytes(self) -> int:
        """Memory of a token."""
        return self._kept.shape[1] * self._kept.element_size()

    def keep(self, slots: Integers) -> None:
        """Keep what was seen in a pass whose first tokens have these slots; what follows them is padding."""
        if self.seen is not None:
            made = torch.cat([self.seen[layer][: len(slots)] for layer in self._layers], -1)
            self._kept[torch.from_numpy(slots).to(made.device)] = made

    def of(self, slots: Sequence[int]) -> Tensor:
        """What was made of the tokens in these slots, [slots, layers * hidden]."""
        return self._kept[torch.tensor(slots, dtype=torch.int64, device=self._kept.device)]

    def _note(self, layer: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            assert self.seen is not None
            entering: Tensor = args[0] if args else kwargs["hidden_states"]
            self.seen[layer] = entering[0]

        return note
