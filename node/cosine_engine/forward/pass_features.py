"""Features: activations between a model's layers, kept by pool slot for a draft head."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cosine_engine.forward.support import UnsupportedModel
from cosine_engine.kv_pool import Integers


def feature_bytes(model: Any, layers: Sequence[int]) -> int:
    """Return the memory of the features of a token."""
    width: int = model.config.get_text_config().hidden_size if layers else 0
    element_bytes: int = model.dtype.itemsize
    return len(layers) * width * element_bytes


@dataclass(frozen=True, slots=True)
class KeptFeatures:
    """`cosine_engine.base.Activations` of the tokens in `slots`, out of all `kept` [slots, layers * hidden].

    They are gathered only in `read`, which a pass calls: other threads must not compute (`in_ending_thread`).
    """

    kept: Tensor
    slots: Sequence[int]

    def __len__(self) -> int:
        return len(self.slots)

    def read(self) -> Tensor:
        """Return the features [tokens, layers * hidden]."""
        return self.kept[torch.tensor(self.slots, dtype=torch.int64, device=self.kept.device)]


class PassFeatures:
    """Keeps the inputs of some layers of a model; the number after the last layer means its output.

    The features of a token are kept by its slot, as are its keys and values, so that cached prefixes have them too.
    The flat decoder stores them in `seen`; other models get forward hooks. Raises `UnsupportedModel` if the layers
    cannot be identified.
    """

    def __init__(self, model: Any, layers: Sequence[int], *, slots: int, is_flat: bool = False) -> None:
        self._layers = tuple(layers)
        self.seen = self.room()
        self.token_bytes = feature_bytes(model, layers)
        width = self.token_bytes // model.dtype.itemsize
        self._kept = torch.zeros(slots if layers else 0, width, dtype=model.dtype, device=model.device)
        if layers and not is_flat:
            body = model.get_decoder()
            if not (hasattr(body, "layers") and hasattr(body, "norm")):
                raise UnsupportedModel(model.config.model_type, "a draft head cannot identify its layers")
            ends = [*body.layers, body.norm]
            for layer in layers:
                ends[layer].register_forward_pre_hook(partial(self._note, layer), with_kwargs=True)

    def room(self) -> dict[int, Tensor] | None:
        """Return a new dictionary for a pass's features by layer; None if no features are kept."""
        return dict.fromkeys(self._layers, torch.empty(0)) if self._layers else None

    def keep(
        self,
        slots: Integers,
        places: Sequence[int] | Integers | None = None,
        seen: Mapping[int, Tensor] | None = None,
    ) -> None:
        """Keep the features of the tokens with these slots.

        `places` are the tokens' places in the pass. Default: the first ones. `seen` is the `room` of the pass.
        Default: that of all passes.
        """
        seen = self.seen if seen is None else seen
        if seen is not None:
            made = torch.cat([seen[layer] for layer in self._layers], -1)
            if places is not None:
                made = made[torch.as_tensor(places, dtype=torch.int64, device=made.device)]
            self._kept[torch.from_numpy(slots).to(made.device)] = made[: len(slots)]

    def of(self, slots: Sequence[int]) -> KeptFeatures:
        """Return the features of the tokens in these slots."""
        return KeptFeatures(self._kept, slots)

    def _note(self, layer: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert self.seen is not None
        entering: Tensor = args[0] if args else kwargs["hidden_states"]
        self.seen[layer] = entering.flatten(0, -2)
