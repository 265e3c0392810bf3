"""The options of `generate` of transformers, converted to those of a client."""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Number
from typing import Any, Final

from cosine_p2p.huggingface.arrays import plain
from cosine_p2p.request.arguments import (
    FLAG,
    STOP,
    TOKEN_ID,
    TOKEN_IDS,
    ArgumentKind,
    read_argument,
    refuse_unknown,
    whole,
)
from cosine_p2p.request.generation_config import NOT_HONOURED, asks_for_nothing
from cosine_p2p.request.model_defaults import VALUES
from cosine_p2p.request.options import GenerationOptions, read_option
from cosine_protocol.errors import UsageError
from cosine_protocol.fields import MAX_TOKEN_ID
from cosine_protocol.records import GenerationDefaults
from cosine_protocol.request import MAX_SEED

DEFAULT_NEW_TOKENS: Final = 20  # Default of transformers.
DEFAULT_TOP_K: Final = 50  # Default of transformers.

HONOURED: Final = frozenset({
    "do_sample", "eos_token_id", "max_length", "max_new_tokens", "min_p", "num_assistant_tokens",
    "num_return_sequences", "pad_token_id", "repetition_penalty", "return_dict_in_generate", "seed",
    "stop_strings", "temperature", "top_k", "top_p",
})  # fmt: skip
"""Options that work as in transformers."""
IGNORED: Final = frozenset({
    "assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind", "assistant_tokenizer",
    "bos_token_id", "cache_config", "cache_implementation", "compile_config", "continuous_batching_config",
    "decoder_start_token_id", "disable_compile", "early_stopping", "is_assistant", "length_penalty", "low_memory",
    "max_cache_len", "max_matching_ngram_size", "num_assistant_tokens_schedule", "prefill_chunk_size",
    "prompt_lookup_num_tokens", "remove_invalid_values", "renormalize_logits", "return_legacy_cache",
    "speculation_type", "synced_gpus", "target_lookbehind", "tokenizer", "transformers_version", "use_cache",
    "use_mtp",
})  # fmt: skip
"""Options without effect on the tokens, or without effect unless beams are used."""
REFUSED: Final = frozenset({
    *NOT_HONOURED, "assistant_ensemble_weight", "assistant_model", "cache", "custom_generate", "encoder_outputs",
    "inputs_embeds", "logits_processor", "negative_prompt_attention_mask", "negative_prompt_ids",
    "output_attentions", "output_hidden_states", "output_logits", "output_scores", "past_key_values",
    "position_ids", "prefix_allowed_tokens_fn", "stopping_criteria", "token_type_ids",
})  # fmt: skip
"""Unsupported options; those of a generation config are in `NOT_HONOURED`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """The options of every sequence of one `generate`; `for_client` are those of a client."""

    max_new_tokens: int | None
    max_length: int | None
    num_return_sequences: int
    seed: int | None
    eos: tuple[int, ...] | None
    pad_token_id: int | None
    returns_dict: bool
    for_client: GenerationOptions

    def new_tokens(self, prompt_tokens: int) -> int:
        """Return the number of new tokens after prompts of this length. Raises `UsageError` for none."""
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        if self.max_length is None:
            return DEFAULT_NEW_TOKENS
        if self.max_length <= prompt_tokens:
            raise UsageError(
                f"max_length is {self.max_length}, and the prompts are {prompt_tokens} tokens long already; "
                "set max_new_tokens instead."
            )
        return self.max_length - prompt_tokens


def parse_options(keywords: Mapping[str, Any], *configs: Any) -> BatchOptions:
    """Return options from keywords, else from the first config that has them. Raises `UsageError`."""
    for name in keywords.keys() - IGNORED - REFUSED:
        refuse_unknown(name, sorted(HONOURED))
    given: dict[str, Any] = {}
    for config in reversed(configs):
        # A configuration of transformers 4 always has this default.
        given |= {
            name: value
            for name, value in _attributes(config).items()
            if (name, value) != ("max_length", DEFAULT_NEW_TOKENS)
        }
    given |= {name: value for name, value in keywords.items() if value is not None}
    for name, value in given.items():
        if name not in HONOURED | IGNORED and not asks_for_nothing(name, value):
            raise UsageError(f"generate() cannot honour {name} with a swarm; leave it out.")
    return _options(given)


def options_of(published: GenerationDefaults) -> dict[str, Any]:
    """Return the options of the model's generation config, by transformers' names."""
    values = {name: getattr(published, name) for name in ("do_sample", *VALUES)}
    return {name: value for name, value in values.items() if value is not None and value is not False}


def _attributes(config: Any) -> dict[str, Any]:
    """Return the options that a configuration sets, also unknown ones, which may change the output."""
    if config is None:
        return {}
    if isinstance(config, Mapping | str | bytes | int | float):
        raise UsageError(
            f"generation_config must be an object with options as attributes, not {reprlib.repr(config)}; give "
            "single options by name."
        )
    names = {*HONOURED, *IGNORED, *REFUSED, *getattr(config, "__dict__", {})}
    values = {name: getattr(config, name, None) for name in sorted(names) if not name.startswith("_")}
    return {name: value for name, value in values.items() if value is not None}


def _options(given: Mapping[str, Any]) -> BatchOptions:
    read = {name: read_argument(name, value, _KINDS[name]) for name, value in given.items() if name in _KINDS}
    sequences = read.get("num_return_sequences", 1)
    if sequences > 1 and not read.get("do_sample"):
        raise UsageError("Greedy sequences are all equal; set do_sample=True for num_return_sequences above 1.")
    for_client: GenerationOptions = _sampling(given) if read.get("do_sample") else {}
    for_client["repetition_penalty"] = read_option("repetition_penalty", given.get("repetition_penalty", 1.0))
    for_client["stop"] = read.get("stop_strings", ())
    if read.get("num_assistant_tokens") == 0:
        for_client["strategy"] = "plain"
    return BatchOptions(
        max_new_tokens=read.get("max_new_tokens"),
        max_length=read.get("max_length"),
        num_return_sequences=sequences,
        seed=read.get("seed"),
        eos=read.get("eos_token_id"),
        pad_token_id=read.get("pad_token_id"),
        returns_dict=read.get("return_dict_in_generate", False),
        for_client=for_client,
    )


def _sampling(given: Mapping[str, Any]) -> GenerationOptions:
    temperature = read_option("temperature", given.get("temperature", 1.0))
    if temperature == 0:
        raise UsageError(
            "temperature must be above 0 with do_sample=True; for greedy decoding set do_sample=False."
        )
    return {
        "temperature": temperature,
        "top_k": int(read_option("top_k", given.get("top_k", DEFAULT_TOP_K))),
        "top_p": read_option("top_p", given.get("top_p", 1.0)),
        "min_p": read_option("min_p", given.get("min_p", 0.0)),
    }


def _read_token_ids(value: Any) -> tuple[int, ...]:
    ids = plain(value)
    return (TOKEN_ID.read(ids),) if isinstance(ids, Number) else TOKEN_IDS.read(ids)


_KINDS: Final[Mapping[str, ArgumentKind[Any]]] = {
    "do_sample": FLAG,
    "eos_token_id": ArgumentKind(f"a token id from 0 to {MAX_TOKEN_ID} or a list of them", _read_token_ids),
    "max_length": whole(1),
    "max_new_tokens": whole(1),
    "num_assistant_tokens": whole(0),
    "num_return_sequences": whole(1),
    "pad_token_id": whole(0, MAX_TOKEN_ID),
    "return_dict_in_generate": FLAG,
    "seed": whole(0, MAX_SEED),
    "stop_strings": STOP,
}
"""The valid values of options other than sampling parameters."""
