"""What transformers alone generates, and the prompts it is asked with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from tokenizers import Tokenizer

from cosine_lab.training.corpus import corpus_prompts
from cosine_node import zoo

CORPORA: Final = Path(__file__).parents[3] / "shared" / "corpora"
CORPUS_PROMPTS: Final = 12
MANY_PER_DOMAIN: Final = 13
FEW_PER_DOMAIN: Final = 1


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


def all_cases() -> list[Case]:
    """More than sixty prompts: held-out texts where a corpora folder is, else the repository's own alone."""
    held_out = corpus_cases()
    return [*own_cases(FEW_PER_DOMAIN if held_out else MANY_PER_DOMAIN), *held_out]


def own_cases(count: int) -> list[Case]:
    """The repository's own prompts, `count` of every domain, plain texts and conversations."""
    cases = []
    for domain in zoo.DOMAINS:
        for prompt in zoo.prompts(domain)[:count]:
            messages = [{"role": turn.role, "content": turn.content} for turn in prompt.messages]
            ids = prompt.token_ids(target_tokenizer()) if messages else encoded(prompt.text)
            cases.append(Case(messages or prompt.text, tuple(ids)))
    return cases


def corpus_cases() -> list[Case]:
    """Held-out texts of a corpora folder beside the repository, where there is one."""
    if not CORPORA.is_dir():
        return []
    found = [
        ids
        for domain in zoo.DOMAINS
        if (CORPORA / f"{domain}.dev.jsonl.xz").is_file()
        for ids in corpus_prompts(CORPORA, domain, CORPUS_PROMPTS, 3, target_tokenizer())
    ]
    return [_as_text(ids) for ids in found]


def _as_text(ids: Sequence[int]) -> Case:
    """The text of token ids without its special tokens: what a user would paste."""
    text = target_tokenizer().decode(list(ids), skip_special_tokens=True)
    return Case(text, encoded(text))
