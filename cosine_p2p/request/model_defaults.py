"""The sampling parameters that a model's publisher recommends, applied to a request. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from cosine_p2p.request.options import NONE
from cosine_p2p.request.results import AppliedConfig
from cosine_protocol.records import GenerationDefaults, NodeRecord

FILTERS: Final = ("top_k", "top_p", "min_p")  # Parameters without effect at temperature 0.
VALUES: Final = ("temperature", *FILTERS, "repetition_penalty", "max_new_tokens")
"""The options of a request that a config may set; vLLM takes the same six."""
SAMPLED_TEMPERATURE: Final = 1.0  # Default of transformers if a config has `do_sample` and no temperature.
KNOWN_TARGETS: Final[Mapping[str, bytes]] = {
    "zoo:target": bytes.fromhex("9915d6507b42a4ce4d1eae68df22bbc75a0a57156a26bc1b74a35763deb8ba0e"),
    "zoo:smol-target": bytes.fromhex("000d2ff9d1d73bb98b5b73f4eea7536098635f40dfbeca52f5b141a05c852010"),
}
"""The targets of the embedded families; other models cannot take their names."""
RECOMMENDED: Final[Mapping[bytes, GenerationDefaults]] = {
    KNOWN_TARGETS["zoo:target"]: GenerationDefaults(temperature=0.6, top_p=0.9, repetition_penalty=1.1),
    KNOWN_TARGETS["zoo:smol-target"]: GenerationDefaults(temperature=0.2, top_p=0.9, repetition_penalty=1.1),
}
"""Sampling parameters for those, whose configs have none: small models are incoherent at temperature 1, and
repetitive below it without a penalty."""


def default_sampling(
    verifier: NodeRecord, *, asked: Mapping[str, Any], otherwise: Mapping[str, Any]
) -> GenerationDefaults | None:
    """Return the verifier's published parameters, else recommended ones for sampling without a temperature."""
    if asked.get("generation_config") == NONE:
        return None
    is_open = bool(otherwise["temperature"]) and "temperature" not in asked
    return verifier.generation_defaults or (RECOMMENDED.get(verifier.target_digest) if is_open else None)


def apply_defaults(
    published: GenerationDefaults | None, *, asked: Mapping[str, Any], otherwise: Mapping[str, Any]
) -> AppliedConfig:
    """Return the options that a request takes from a config: those not in `asked`, before `otherwise`.

    A temperature is taken only if sampling is the default, by the config's `do_sample` or by `otherwise`.
    """
    if published is None:
        return AppliedConfig()
    values = {name: getattr(published, name) for name in VALUES}
    if published.do_sample and values["temperature"] is None:
        values["temperature"] = SAMPLED_TEMPERATURE
    elif not published.do_sample and not otherwise["temperature"]:
        values["temperature"] = None
    taken = {name: value for name, value in values.items() if value is not None and name not in asked}
    if not {**otherwise, **taken, **asked}["temperature"]:
        taken = {name: value for name, value in taken.items() if name not in FILTERS}
    return AppliedConfig(options=taken, not_honoured=published.not_honoured)
