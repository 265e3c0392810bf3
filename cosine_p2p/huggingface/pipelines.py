"""A model's interface, besides `generate`, for `pipeline("text-generation", ...)` of transformers 5.23."""

import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final, Self

from cosine_protocol.records import NodeRecord

MODEL_TYPE: Final = "cosine-swarm"  # The name in transformers' list of supported classes.


class ModelOptions(SimpleNamespace):
    """The default options of a model's calls, with the interface of `GenerationConfig`."""

    def update(self, **options: object) -> None:
        vars(self).update(options)

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the options that are set."""
        return {name: value for name, value in vars(self).items() if value is not None}


class PipelineModel:
    """A remote model, which cannot be moved or trained. `device` is for `inputs.to(model.device)`."""

    device = "cpu"
    input_modalities = ("text",)
    output_modalities = ("text",)

    def __init__(self, verifier: NodeRecord, own: Mapping[str, Any]) -> None:
        self.config = SimpleNamespace(
            name_or_path=verifier.target,
            eos_token_id=list(verifier.eos),
            max_position_embeddings=verifier.context_tokens,
            model_type=MODEL_TYPE,
            is_encoder_decoder=False,
        )
        self.generation_config = ModelOptions(eos_token_id=list(verifier.eos), **own)

    def can_generate(self) -> bool:
        """Return True, and register the class with transformers, whose pipeline warns about unknown ones."""
        models = sys.modules.get("transformers.models.auto.modeling_auto")
        if models is not None:
            models.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(MODEL_TYPE, type(self).__name__)
        return True

    def to(self, *_: object, **__: object) -> Self:
        """Do nothing: inputs may be on any device, and outputs are on the same."""
        return self

    def eval(self) -> Self:
        """Do nothing: verifiers never train."""
        return self
