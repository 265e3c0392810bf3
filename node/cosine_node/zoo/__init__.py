"""The embedded model family: folders, prompts and measured acceptance. Needs no network."""

from cosine_node.zoo.family import (
    DOMAINS,
    acceptance,
    expertise,
    folder,
    names,
    resolve,
    tokenizer_folder,
)
from cosine_node.zoo.prompt_set import Prompt, corpus_prompts, prompts

__all__ = [
    "DOMAINS",
    "Prompt",
    "acceptance",
    "corpus_prompts",
    "expertise",
    "folder",
    "names",
    "prompts",
    "resolve",
    "tokenizer_folder",
]
