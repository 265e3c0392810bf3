"""What `pipeline("text-generation", ...)` of transformers 5.23 asks for of a model besides `generate`."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, Self

MODEL_TYPE: Final = "cosine-swarm"  # Our name in transformers' list of classes that it does not warn of.


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmConfig:
    """The few facts of a model's configuration that a client knows."""

    name_or_path: str
    eos_token_id: list[int]
    max_position_embeddings: int
    model_type: str = MODEL_TYPE
    is_encoder_decoder: bool = False


class ModelOptions(SimpleNamespace):
    """Options that hold for every call of a model which gives no others; stands for a `GenerationConfig`."""

    def update(self, **options: object) -> None:
        vars(self).update(options)

    def to_diff_dict(self) -> dict[str, Any]:
        """The options that are set."""
        return {name: value for name, value in vars(self).items() if value is not None}


class PipelineModel:
    """A model that nobody moves or trains: it lies elsewhere. `device` is for `inputs.to(model.device)`."""

    device = "cpu"
    input_modalities = ("text",)
    output_modalities = ("text",)

    def __init__(self, config: SwarmConfig, own: Mapping[str, Any]) -> None:
        self.config = config
        self.generation_config = ModelOptions(eos_token_id=list(config.eos_token_id), **own)

    def can_generate(self) -> bool:
        """True. A pipeline then looks for the class in a list and warns where it is not there."""
        models = sys.modules.get("transformers.models.auto.modeling_auto")
        if models is not None:
            models.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(MODEL_TYPE, type(self).__name__)
        return True

    def to(self, *_: object, **__: object) -> Self:
        """Nothing: inputs may lie on any device, and outputs lie where they do."""
        return self

    def eval(self) -> Self:
        """Nothing: verifiers never train."""
        return self
