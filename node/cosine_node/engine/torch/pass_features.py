"""What a model makes of the tokens of a pass between its layers, noted for a draft head to read."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class PassFeatures:
    """Notes what enters some layers of a model in each pass; one more than the last names what leaves that one.

    The flat decoder puts it into `seen` itself, other models are listened to. A pass may be computed in several
    pieces, each of which may be padded.
    """

    def __init__(self, model: Any, layers: Sequence[int], *, is_flat: bool) -> None:
        self.seen: dict[int, Tensor] | None = dict.fromkeys(layers, torch.empty(0)) if layers else None
        self._layers = tuple(layers)
        self._pieces: list[Tensor] = []
        if layers and not is_flat:
            body = model.get_decoder()
            ends = [*body.layers, body.norm]
            for layer in layers:
                ends[layer].register_forward_pre_hook(self._note(layer), with_kwargs=True)

    def _note(self, layer: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            assert self.seen is not None
            entering: Tensor = args[0] if args else kwargs["hidden_states"]
            self.seen[layer] = entering[0]

        return note

    def end_piece(self, *, tokens: int) -> None:
        """Take what was seen of the first so many tokens of a piece."""
        if self.seen is not None:
            self._pieces.append(torch.cat([self.seen[layer][:tokens] for layer in self._layers], -1))

    def take(self) -> Tensor | None:
        """What was seen of all tokens since the last call, [tokens, layers * hidden]; None if nothing is noted."""
        pieces, self._pieces = self._pieces, []
        if not pieces:
            return None
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
