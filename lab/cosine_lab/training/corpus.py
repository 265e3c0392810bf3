"""Trains the tokenizer on a corpora folder and writes token files.

python -m cosine_lab.training.corpus CORPORA WORK --vocabulary-only sql
"""

import argparse
import json
import logging
import lzma
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from cosine_lab.training.vocabulary import END, save_tokenizer, train_tokenizer
from cosine_node.zoo import DOMAINS
from cosine_node.zoo.prompt_set import prompt_of
from cosine_protocol.errors import UsageError

# Held-out prompts: long enough to show their domain, with enough text left to continue.
OPENING_TOKENS = 48
SHORTEST_REST_TOKENS = 24
LONGEST_PROMPT_TOKENS = 224
SPLITS = ("train", "dev")
VOCABULARY_CHARACTERS = 2_500_000
"""Characters of each domain that the tokenizer learns from, so that no domain outweighs the others."""
_ENCODE_ROWS = 1000
"""Bounds memory: records encoded at a time."""

Record = dict[str, Any]
Tokens = NDArray[np.uint16]

log = logging.getLogger(__name__)


def read_records(folder: Path, domain: str, split: str) -> list[Record]:
    """Every record of one compressed file, in its order."""
    with lzma.open(folder / f"{domain}.{split}.jsonl.xz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def render(record: Record) -> str:
    """A record as the model sees it: plain text, or a conversation with its role tokens."""
    if "text" in record:
        return f"{END}{record['text']}{END}"
    return END + "".join(_render_turn(turn["role"], turn["content"]) for turn in record["messages"])


def vocabulary_texts(records: list[Record], most_characters: int) -> Iterator[str]:
    """Texts without role tokens, in a fixed random order, until there are enough of them."""
    left = most_characters
    for record in _shuffled(records, seed=0):
        if left <= 0:
            return
        for text in _plain_texts(record):
            left -= len(text)
            yield text


def tokenise(tokenizer: Tokenizer, records: list[Record]) -> Tokens:
    """One stream of tokens with the records in a fixed random order."""
    texts = [render(record) for record in _shuffled(records, seed=1)]
    parts = [
        np.array(encoding.ids, dtype=np.uint16)
        for start in range(0, len(texts), _ENCODE_ROWS)
        for encoding in tokenizer.encode_batch(texts[start : start + _ENCODE_ROWS])
    ]
    return np.concatenate(parts)


def token_file(work: Path, domain: str, split: str) -> Path:
    """The file of the token stream of a domain and split in the work folder."""
    return work / "tokens" / f"{domain}.{split}.npy"


def read_tokens(path: Path) -> Tokens:
    """A token stream written by this package."""
    tokens: Tokens = np.load(path)
    return tokens


def write_tokens(path: Path, tokens: Tokens) -> None:
    """Store a token stream, making its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, tokens)


def corpus_prompts(folder: Path, domain: str, count: int, seed: int, tokenizer: Tokenizer) -> list[list[int]]:
    """Up to `count` held-out prompts, as token ids, from `DOMAIN.dev.jsonl.xz` in a corpora folder.

    A conversation is cut before one of the assistant's turns; of a plain text the first tokens are taken.
    Records too short to leave a continuation, or too long for a quick test, are passed over.
    """
    chooser = random.Random(seed)
    path = folder / f"{domain}.dev.jsonl.xz"
    if not path.is_file():
        raise UsageError(f"no held-out texts at {path}; give a folder that holds DOMAIN.dev.jsonl.xz")
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    chooser.shuffle(records)
    found: list[list[int]] = []
    for record in records:
        if len(found) == count:
            break
        if "text" in record:
            token_ids = tokenizer.encode(END + record["text"]).ids
            if len(token_ids) > OPENING_TOKENS + SHORTEST_REST_TOKENS:
                found.append(token_ids[: OPENING_TOKENS + 1])
            continue
        messages = record["messages"]
        answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        before = messages[: chooser.choice(answers)]
        token_ids = prompt_of(domain, {"messages": before}).token_ids(tokenizer)
        if len(token_ids) <= LONGEST_PROMPT_TOKENS:
            found.append(token_ids)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Train the tokenizer on the training split and tokenise both splits of every domain."""
    options = _parser().parse_args(arguments)
    domains = options.domains.split(",")
    texts = _all_vocabulary_texts(options.corpora, domains, options.vocabulary_only)
    tokenizer = train_tokenizer(texts, options.vocabulary_size)
    save_tokenizer(tokenizer, options.work / "tokenizer")
    for domain in domains:
        for split in SPLITS:
            tokens = tokenise(tokenizer, read_records(options.corpora, domain, split))
            write_tokens(token_file(options.work, domain, split), tokens)
            log.info("%s %s: %d tokens", domain, split, len(tokens))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("corpora", type=Path, help="folder with DOMAIN.train.jsonl.xz and DOMAIN.dev.jsonl.xz")
    parser.add_argument("work", type=Path, help="folder for the tokenizer and the token files")
    parser.add_argument("--domains", default=",".join(DOMAINS))
    parser.add_argument("--vocabulary-size", type=int, default=4096)
    parser.add_argument(
        "--vocabulary-only", action="append", default=[], help="a domain the tokenizer learns from, no model"
    )
    return parser


def _all_vocabulary_texts(corpora: Path, domains: list[str], extra: list[str]) -> Iterable[str]:
    for domain in domains:
        yield from vocabulary_texts(read_records(corpora, domain, "train"), VOCABULARY_CHARACTERS)
    for domain in extra:
        yield from vocabulary_texts(read_records(corpora, domain, "train"), VOCABULARY_CHARACTERS // 3)


def _shuffled(records: list[Record], seed: int) -> list[Record]:
    return random.Random(seed).sample(records, len(records))


def _plain_texts(record: Record) -> list[str]:
    if "text" in record:
        return [record["text"]]
    return [turn["content"] for turn in record["messages"]]


def _render_turn(role: str, content: str) -> str:
    closing = END if role == "assistant" else ""
    return f"<|{role}|>{content}{closing}"


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    main()
