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
from cosine_node.zoo.prompt_set import Message, Prompt, corpus_prompts, prompts, render_chat

__all__ = [
    "DOMAINS",
    "Message",
    "Prompt",
    "acceptance",
    "corpus_prompts",
    "expertise",
    "folder",
    "names",
    "prompts",
    "render_chat",
    "resolve",
    "tokenizer_folder",
]
