"""Tables of request fields: honoured, harmless and refused.

They cover OpenAI's API, vLLM, llama.cpp's server, SGLang, TGI and their clients. A field in none of the tables is
refused if it could change the text, and else named in a header (docs/decisions/0045-fields-of-requests.md).
"""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final
from urllib.parse import quote

from cosine_gateway.api_errors import ApiError, unsupported
from cosine_gateway.body import Body, ascii_name

HARMLESS: Final = frozenset({
    # For the server's accounting, logs and caches, or for latency.
    "cache_prompt", "id_slot", "keep_alive", "metadata", "n_keep", "priority", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "request_id", "return_progress", "safety_identifier",
    "service_tier", "session_id", "slot_id", "speculative.n_max", "speculative.n_min", "speculative.p_min", "store",
    "timings_per_token", "usage", "user",
    # Features and versions of an API, for gateways that cannot read them from headers.
    "anthropic-beta", "anthropic-version", "anthropic_beta", "anthropic_version", "betas",
    # Metadata of proxies, routers and multi-server clients.
    "bootstrap_host", "bootstrap_port", "bootstrap_room", "cache_control", "client_metadata", "data_parallel_rank",
    "kv_transfer_params", "litellm_call_id", "litellm_metadata", "litellm_session_id", "litellm_trace_id",
    "main_gpu", "num_batch", "num_gpu", "num_keep", "num_thread", "rid", "tags", "trace", "use_mlock", "use_mmap",
    # Parameters of refused samplers, without which they change nothing.
    "adaptive_decay", "dry_allowed_length", "dry_base", "dry_penalty_last_n", "dry_range", "dry_sequence_breakers",
    "dynamic_temperature", "dynatemp_exponent", "mirostat_eta", "mirostat_tau", "smoothing_curve", "xtc_threshold",
    # Texts have no special tokens, and so no spaces between them.
    "spaces_between_special_tokens",
})  # fmt: skip
"""The fields that cannot change the text, so that any value is accepted and ignored."""

NOTHING: Final[tuple[Any, ...]] = (False, "", [], {})
OFF: Final[tuple[Any, ...]] = (0, False)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason to refuse a field, except for its `neutral` values, which ask for the default behaviour."""

    reason: str
    neutral: tuple[Any, ...] = ()

    def allows(self, value: Any) -> bool:
        """Return True for a neutral value. In JSON, 1 equals 1.0, but false does not equal 0."""
        return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in self.neutral)


def refused(reason: str, **fields: tuple[Any, ...]) -> dict[str, Refusal]:
    return {name: Refusal(reason, neutral) for name, neutral in fields.items()}


_NO_SAMPLER: Final = "all peers of a request apply the same few samplers, and this is not one of them"
_NO_GRAMMAR: Final = "use response_format or structured_outputs, with grammars in Lark's syntax"
_LOGPROBS: Final = (
    "use logprobs and top_logprobs for log-probabilities, and echo in a completion for those of the prompt"
)
_TEXT_ALONE: Final = "the target reads and writes only text"
_OWN_TEMPLATE: Final = "chats use the target's own template; its options go into chat_template_kwargs"
_ONE_MODEL: Final = "the target is served unchanged"
_SHAPE: Final = "replies have OpenAI's format, with the text unchanged"

REFUSED: Final[Mapping[str, Refusal]] = {
    **refused(
        _NO_SAMPLER, adaptive_target=(-1,), allowed_token_ids=NOTHING, banned_strings=NOTHING,
        banned_tokens=NOTHING, custom_logit_processor=NOTHING, custom_params=NOTHING, custom_token_bans=NOTHING,
        diversity_penalty=OFF, do_sample=(), dry_multiplier=OFF, dynatemp_range=OFF, dynatemp_high=OFF,
        dynatemp_low=OFF, early_stopping=(False,), encoder_repetition_penalty=(1,), epsilon_cutoff=OFF,
        eta_cutoff=OFF, guidance_scale=(1,), length_penalty=(1,), logits_processors=NOTHING, min_keep=(0, 1),
        mirostat=OFF, mirostat_mode=OFF, negative_prompt=NOTHING, no_repeat_ngram_size=OFF, num_beams=(1,),
        penalty_alpha=OFF, penalty_last_n=(-1,), repeat_last_n=(-1,), repetition_penalty_range=OFF,
        sampler_order=NOTHING, sampler_priority=NOTHING, samplers=NOTHING, smoothing_factor=OFF,
        temperature_last=(False,), tfs=(1,), tfs_z=(1,), thinking_budget=(-1,), thinking_token_budget=(-1,),
        top_a=OFF, top_n_sigma=(-1, 0), typical=(1,), typical_p=(1,), use_beam_search=(False,),
        watermark=(False,), xtc_probability=OFF,
    ),
    **refused(
        _NO_GRAMMAR, ebnf=NOTHING, format=NOTHING, grammar=NOTHING, grammar_lazy=(False,),
        grammar_triggers=NOTHING, guided_decoding_backend=NOTHING, guided_whitespace_pattern=NOTHING,
        structural_tag=NOTHING,
    ),
    **refused(
        "functions are given as tools, and chosen by tool_choice",
        function_call=("none", "auto"), functions=NOTHING, tool_prompt=NOTHING,
    ),
    **refused("the target calls only functions of the client, and the gateway has none", web_search_options=()),
    **refused(
        _LOGPROBS, decoder_input_details=(False,), details=(False,), logprob_start_len=(-1,), n_probs=OFF,
        post_sampling_probs=(False,), prompt_logprobs=(False,), return_logprob=(False,), top_logprobs_num=OFF,
        top_n_tokens=OFF,
    ),
    **refused("texts are not ranked; ask for n choices instead", best_of=(1,), n_cmpl=(1,)),
    **refused(
        _TEXT_ALONE, audio=NOTHING, image_data=NOTHING, media_io_kwargs=NOTHING, mm_processor_kwargs=NOTHING,
        modalities=(*NOTHING, ["text"]), multimodal_data=NOTHING, prompt_embeds=NOTHING,
    ),
    **refused(
        _OWN_TEMPLATE, chat_template=NOTHING, custom_chat_template=NOTHING, enable_thinking=(), reasoning=NOTHING,
        response_prefix=NOTHING, think=(), thinking=NOTHING, thinking_forced_open=(False,), verbosity=("medium",),
    ),
    **refused(
        _ONE_MODEL, adapter_id=NOTHING, lora=NOTHING, lora_path=NOTHING, models=NOTHING, moderation=(),
        plugins=NOTHING, provider=NOTHING, transforms=NOTHING,
    ),
    **refused(
        "a prompt is used unchanged, or refused if it is too long",
        input_ids=NOTHING, raw=(False,), truncate=OFF, truncate_prompt_tokens=(-1,), truncation_length=OFF,
    ),
    **refused(
        _SHAPE, include_stop_str_in_output=(False,), n_indent=OFF, no_stop_trim=(False,), response_fields=NOTHING,
        return_full_text=(False,), return_hidden_states=(False,), return_token_ids=(False,),
        return_token_strs=(False,), return_tokens=(False,), return_tokens_as_token_ids=(False,),
        skip_special_tokens=(True,), stop_regex=NOTHING, t_max_predict_ms=OFF, with_pieces=(False,),
    ),
    **refused("calls are always parsed when there are tools", parse_tool_calls=(True,)),
    **refused(
        "reasoning is always separated from the content, and streamed",
        include_reasoning=(True,), reasoning_format=("auto", "deepseek"), separate_reasoning=(True,),
        stream_reasoning=(True,),
    ),
    **refused("infilling is not available", suffix=NOTHING),
    **refused("its name here is max_tokens", max_new_tokens=(), n_predict=()),
    **refused("its name here is min_tokens", min_new_tokens=OFF),
    **refused("send repetition_penalty, which covers the whole text", repeat_penalty=(1,), rep_pen=(1,)),
    **refused("send temperature 0 instead", greedy=(False,)),
    # Fields of another kind of body, which honours them.
    **refused(_OWN_TEMPLATE, add_special_tokens=(False,)),
    **refused("a chat is not echoed; use a completion", echo=(False,)),
    **refused("it is for completions; send messages", prompt=()),
    **refused("it is for chats; send a prompt", messages=()),
    **refused("log-probabilities are for chats and completions", logprobs=(False,)),
    **refused("it is for chats; completions have only logprobs", top_logprobs=(0,)),
    **refused(
        "it is for chats, which have a template",
        add_generation_prompt=(), chat_template_kwargs=NOTHING, continue_final_message=(False,),
        documents=NOTHING, parallel_tool_calls=(True, False), reasoning_effort=(), tool_choice=("none", "auto"),
        tools=NOTHING,
    ),
}  # fmt: skip
"""The fields that would change the text or its format in a way that is not supported."""

ABOUT_TEXT: Final = re.compile(
    "adapt|audio|beam|best_of|bias|choice|constrain|decod|dry_|echo|effort|entropy|format|function|generat|grammar"
    "|greedy|guid|image|input|instruct|language|length|logit|logprob|lora|mask|message|mirostat|modal|model|noise"
    "|output|penal|prefix|prompt|quant|random|reason|regex|repe[at]|sampl|schema|search|seed|stop|style|suffix"
    "|system|temper|templat|think|token|tool|top_|top[knp]$|trunc|typical|verbos|video|word|xtc"
)
"""What the name of a field contains that could change a text or its form, unless it is about a cache."""
NEARLY: Final = 0.85
"""The likeness of a honoured name from which an unknown one counts as misspelt: `temprature` has 0.95."""
MAX_IGNORED: Final = 32
"""Bounds the header, and the work of a request with many names."""
MAX_SHOWN: Final = 64
"""Characters of a name in the header."""


def could_change_text(name: str, value: Any, honoured: Set[str]) -> bool:
    """Return True for an unknown field that could change the text: by its name, or by one inside its value."""
    if value is False or value in ("", [], {}):
        return False
    if get_close_matches(_snake(name), honoured, n=1, cutoff=NEARLY) or _is_about_text(name):
        return True
    waiting = [value]
    while waiting:
        match waiting.pop():
            case dict(inner):
                if any(each in honoured or _is_about_text(each) for each in inner):
                    return True
                waiting += inner.values()
            case list(inner):
                waiting += inner
    return False


def _snake(name: str) -> str:
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("-", "_")


def _is_about_text(name: str) -> bool:
    return bool(ABOUT_TEXT.search(_snake(name)) and "cache" not in name.lower())


def ignored_fields_header(names: Sequence[str]) -> bytes:
    """The value of the header for ignored fields, in printable ASCII."""
    return ", ".join(quote(name, safe="", errors="backslashreplace")[:MAX_SHOWN] for name in names).encode("ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFields:
    """The fields of one kind of body.

    honoured: Read and followed. They take precedence over `refused`.
    harmless: Accepted with any value and ignored.
    refused: Refused except for neutral values.
    """

    honoured: Set[str]
    harmless: Set[str] = HARMLESS
    refused: Mapping[str, Refusal] = field(default_factory=lambda: REFUSED)

    def check(self, body: Body) -> tuple[str, ...]:
        """Return the names of unknown fields, which are ignored.

        Raises `ApiError` for the first field that is not honoured, harmless or neutral, and could change the text.
        """
        ignored: list[str] = []
        for name, value in body.items():
            if value is None or name in self.honoured or name in self.harmless:
                continue
            refusal = self.refused.get(name)
            if refusal is None:
                if len(ignored) >= MAX_IGNORED or could_change_text(name, value, self.honoured):
                    raise _unknown(name, self.honoured)
                ignored.append(name)
            # The best n of n are all of them.
            elif not (refusal.allows(value) or (name == "best_of" and value == body.get("n"))):
                raise unsupported(name, f"{name} is not supported here: {refusal.reason}.")
        return tuple(ignored)


def _unknown(name: str, honoured: Set[str]) -> ApiError:
    shown = ascii_name(name)
    nearest = get_close_matches(name, sorted(honoured), n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else "."
    return unsupported(shown, f"{shown} is not a known parameter{hint}")
