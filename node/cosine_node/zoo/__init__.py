"""The models at hand: where each is, prompts and measured acceptance. Needs no network."""

from cosine_node.zoo.family import (
    DOMAINS,
    SCHEME,
    SMOL_DOMAINS,
    Family,
    acceptance,
    default_target,
    draft_head,
    expertise,
    family_of,
    folder,
    listed,
    location,
    names,
    resolve,
    target_of,
    tokenizer_folder,
)
from cosine_node.zoo.prompt_set import Prompt, asked_by_people, prompts

__all__ = [
    "DOMAINS",
    "SCHEME",
    "SMOL_DOMAINS",
    "Family",
    "Prompt",
    "acceptance",
    "asked_by_people",
    "default_target",
    "draft_head",
    "expertise",
    "family_of",
    "folder",
    "listed",
    "location",
    "names",
    "prompts",
    "resolve",
    "target_of",
    "tokenizer_folder",
]
