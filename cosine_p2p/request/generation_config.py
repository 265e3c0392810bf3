"""A model's generation config, read as transformers does; verifiers publish it (docs/generate.md)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cosine_p2p.request.arguments import FLAG, TOKEN_IDS, read_argument, whole
from cosine_p2p.request.model_config import FILE_NAME as MODEL_CONFIG
from cosine_p2p.request.model_config import read_config_object, read_model_config, text_part
from cosine_p2p.request.model_defaults import VALUES
from cosine_p2p.request.options import read_option
from cosine_protocol.errors import UsageError
from cosine_protocol.fields import MAX_NEW_TOKENS
from cosine_protocol.records import MAX_NOT_HONOURED, GenerationDefaults

FILE_NAME: Final = "generation_config.json"  # As `save_pretrained` writes it.
ASKS_FOR_NOTHING: Final[Mapping[str, object]] = {
    "num_beams": 1,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "guidance_scale": 1.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "no_repeat_ngram_size": 0,
    "typical_p": 1.0,
}
"""Values that disable an option; None, False and empty values always do."""
NOT_HONOURED: Final = frozenset({
    *ASKS_FOR_NOTHING, "bad_words_ids", "begin_suppress_tokens", "constraints", "dola_layers",
    "exponential_decay_length_penalty", "force_words_ids", "forced_bos_token_id", "forced_eos_token_id",
    "max_time", "penalty_alpha", "sequence_bias", "suppress_tokens", "token_healing", "top_h",
    "watermarking_config",
})  # fmt: skip
"""Options of a config that change the tokens and that a swarm does not support."""


def asks_for_nothing(name: str, value: Any) -> bool:
    """Return whether an option of transformers with this value has no effect."""
    if value is None or value is False or value == ASKS_FOR_NOTHING.get(name):
        return True
    return hasattr(value, "__len__") and len(value) == 0


def read_eos(folder: Path) -> tuple[int, ...]:
    """Return a model's end-of-sequence ids, from its generation config, its config, or its text config.

    Null is ignored; a negative id means none. Raises `UsageError` if any of them cannot be read.
    """
    found: tuple[int, ...] | None = None
    model = read_model_config(folder)
    own = read_config_object(folder / FILE_NAME)
    for name, config in ((FILE_NAME, own), (MODEL_CONFIG, model), (MODEL_CONFIG, text_part(model))):
        ids = config.get("eos_token_id")
        if ids is None:
            continue
        listed = ids if isinstance(ids, list) else [ids]
        valid = [token for token in listed if not (isinstance(token, int) and token < 0)]
        try:
            read = read_argument("eos_token_id", valid, TOKEN_IDS)
        except UsageError as error:
            raise UsageError(f"{folder / name} cannot be read ({error}); fetch the model again.") from None
        found = read if found is None else found
    return found or ()


def read_generation_config(folder: Path) -> GenerationDefaults | None:
    """Return a folder's generation config, if any; invalid values count as unsupported. Raises `UsageError`."""
    config = read_config_object(folder / FILE_NAME)
    set_options = {name: value for name, value in config.items() if value is not None}
    values: dict[str, Any] = {}
    lost = {name for name in set_options.keys() & NOT_HONOURED if not asks_for_nothing(name, set_options[name])}
    for name in set_options.keys() & {*VALUES, "do_sample"}:
        try:
            values[name] = _read_value(name, set_options[name])
        except UsageError:
            lost.add(name)
    read = GenerationDefaults(**values, not_honoured=tuple(sorted(lost)[:MAX_NOT_HONOURED]))
    return None if read == GenerationDefaults() else read


def _read_value(name: str, value: Any) -> Any:
    if name == "do_sample":
        return read_argument(name, value, FLAG)
    if name == "max_new_tokens":
        return min(read_argument(name, value, whole(1)), MAX_NEW_TOKENS)
    # vLLM disables top_k by -1.
    return 0 if name == "top_k" and value == -1 else read_option(name, value)
