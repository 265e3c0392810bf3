"""Reference texts by transformers alone, and their prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from tokenizers import Tokenizer

from cosine_engine import zoo

PROMPT: Final = "The old lighthouse keeper opened the door and"


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt as the client takes it, and its token ids."""

    prompt: str | Sequence[Mapping[str, str]]
    token_ids: tuple[int, ...]


@cache
def target_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(zoo.tokenizer_folder() / "tokenizer.json"))


@cache
def _model(folder: Path) -> Any:
    torch.set_num_threads(1)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@cache
def greedy(token_ids: tuple[int, ...], new_tokens: int, folder: Path | None = None) -> tuple[int, ...]:
    """The output ids of `generate(do_sample=False)` in float32, an end token included.

    They are the embedded target's, or of the model in a folder, which never ends.
    """
    endless = {} if folder is None else {"eos_token_id": -1}
    inputs = torch.tensor([token_ids])
    with torch.inference_mode():
        output = _model(folder or zoo.folder("target")).generate(
            inputs, attention_mask=torch.ones_like(inputs), do_sample=False, max_new_tokens=new_tokens, **endless
        )
    return tuple(output[0, len(token_ids) :].tolist())


def encoded(text: str) -> tuple[int, ...]:
    return tuple(target_tokenizer().encode(text).ids)


@cache
def own_text(new_tokens: int) -> str:
    """The embedded target's greedy text after `PROMPT`."""
    before = encoded(PROMPT)
    whole: str = target_tokenizer().decode([*before, *greedy(before, new_tokens)])
    return whole.removeprefix(target_tokenizer().decode(list(before)))


def own_cases(count: int) -> list[Case]:
    """The repository's own prompts, `count` of every domain, plain texts and conversations."""
    cases = []
    for domain in zoo.DOMAINS:
        for prompt in zoo.prompts(domain)[:count]:
            messages = [{"role": turn.role, "content": turn.content} for turn in prompt.messages]
            ids = prompt.token_ids(target_tokenizer()) if messages else encoded(prompt.text)
            cases.append(Case(messages or prompt.text, tuple(ids)))
    return cases
