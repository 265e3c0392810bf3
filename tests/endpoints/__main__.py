"""Serves SmolLM2 in several numerics, and other models under its name, asks each, and prints the verdicts.

It needs SmolLM2, Gemma 3 270M and llama.cpp (`make smol gemma`), and an hour of two processor cores. Every endpoint
is asked once; its answers stay in the folder. Runs are sets of questions drawn from these.
"""

import argparse
import asyncio
import os
import pickle
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from cosine_engine import zoo
from cosine_engine.gguf.writing import write_gguf
from cosine_engine.load_options import LoadOptions
from cosine_engine.models.loading import open_model
from cosine_node.endpoint_audit.asking import AskedEndpoint, EndpointAnswer
from cosine_node.endpoint_audit.examination import ReadAnswers, questions_of, read_answers
from cosine_protocol.numerics import DETERMINISTIC
from tests.e2e.nodes import Node, free_port, own_home
from tests.llama_server import LlamaServer

SMOL: Final = "zoo:smol-target"
GEMMA: Final = Path(sys.prefix) / "share" / "gemma-3-270m-q4_k_m.gguf"
NAME: Final = "asked"
"""The name that every endpoint gives its model."""
ASKED: Final = 60
SHOWN: Final = 40
CLAIMS: Final = {"float32": "gguf:Q4_1+float32", "as shipped": "gguf:Q4_1+float32/int4"}
"""The numerics that an endpoint is taken to have."""
STEPS: Final = 12
BATCH: Final = 2
TEXT_TOKENS: Final = 64
LEARNING_RATE: Final = 5e-5


@contextmanager
def gateway(model: str | Path, folder: Path, *options: str) -> Iterator[str]:
    """A gateway over a verifier that serves a model under the name."""
    network = ("--network", folder.name)
    join = ("join", "--role", "verifier", "--model", str(model), "--target", NAME, *network, *options)
    with closing(Node.start("verifier", join, folder)) as verifier:
        peers = ("--initial-peers", verifier.wait_ready().maddr)
        serve = ("serve", "--port", "0", "--target", NAME, *network, *peers)
        with closing(Node.start("gateway", serve, folder)) as node:
            yield f"{node.wait_ready().ready['url']}/v1"


@contextmanager
def llama(file: Path) -> Iterator[str]:
    with closing(LlamaServer(file, port=free_port())) as server:
        yield f"{server.url}/v1"


def trained(folder: Path, steps: int) -> Path:
    """SmolLM2 in float32, after some steps on the documentation."""
    import torch

    from cosine_engine.torch.loading import load_model
    from cosine_p2p.text.tokenizer import load_tokenizer

    files = open_model(SMOL)
    source, model = files.folder, load_model(files, dtype=torch.float32)
    text = "\n".join(page.read_text("utf-8") for page in sorted(Path("docs").glob("*.md")))
    tokens = torch.tensor(load_tokenizer(source).library.encode(text).ids)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    drawn = random.Random(0)
    for _ in range(steps):
        starts = [drawn.randrange(len(tokens) - TEXT_TOKENS) for _ in range(BATCH)]
        batch = torch.stack([tokens[start : start + TEXT_TOKENS] for start in starts])
        optimizer.zero_grad()
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        sys.stderr.write(f"loss {loss.item():.2f}\n")
    model.save_pretrained(folder)
    for file in source.iterdir():
        if "token" in file.name or "template" in file.name:
            shutil.copy(file, folder)
    return folder


def requantised(folder: Path, weights: str) -> Path:
    file = folder / f"{weights}.gguf"
    write_gguf(trained(folder / "plain", 0), file, weights=weights)
    return file


ONE: Final = ("--threads", "1")
ENDPOINTS: Final = {
    "float32": lambda folder: gateway(SMOL, folder, "--dtype", "float32", *ONE),
    "bfloat16": lambda folder: gateway(SMOL, folder, "--dtype", "bfloat16", *ONE),
    "float16": lambda folder: gateway(SMOL, folder, "--quantize", "float16", *ONE),
    "q8_0": lambda folder: gateway(requantised(folder, "Q8_0"), folder, *ONE),
    "q4_0": lambda folder: gateway(requantised(folder, "Q4_0"), folder, *ONE),
    "shipped": lambda folder: gateway(SMOL, folder, *ONE),
    "llama": lambda folder: llama(zoo.location("smol-target")),
    "fine-tuned": lambda folder: gateway(trained(folder / "tuned", STEPS), folder, "--dtype", "float32", *ONE),
    # Its file has no chat template; llama.cpp takes another one.
    "gemma": lambda folder: llama(GEMMA),
    "embedded": lambda folder: gateway("zoo:target", folder, *ONE),
}


def record(name: str, folder: Path, seed: int) -> None:
    place = folder / name
    place.mkdir(exist_ok=True)
    with own_home(place), ENDPOINTS[name](place) as url:
        endpoint = AskedEndpoint.parse(url, model=NAME, key=None)
        answers = asyncio.run(endpoint.ask_all(questions_of(ASKED, seed)))
        sys.stderr.write(f"{name}: {len(answers)} answers, {endpoint.dropped} refused, {endpoint.faults}\n")
        (folder / f"{name}.answers").write_bytes(pickle.dumps(answers))


def read_recorded(name: str, folder: Path) -> ReadAnswers:
    """The readings of recorded answers, which stay in the folder too."""
    file = folder / f"{name}.pickle"
    if not file.exists():
        answers: list[EndpointAnswer] = pickle.loads((folder / f"{name}.answers").read_bytes())
        claimed = LoadOptions(dtype="float32")
        found = read_answers(answers, SMOL, claimed, only_claimed=False, note=lambda said: None)
        file.write_bytes(pickle.dumps(found))
    read: ReadAnswers = pickle.loads(file.read_bytes())
    return read


def sets(read: ReadAnswers, count: int) -> Iterator[Sequence[int]]:
    """Draw sets of questions, all answers to each."""
    texts = sorted({answer.question.text for answer in read.answers})
    for seed in range(count):
        chosen = set(random.Random(seed).sample(texts, min(SHOWN, len(texts) * 2 // 3)))
        yield [place for place, answer in enumerate(read.answers) if answer.question.text in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.endpoints", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=[*ENDPOINTS], metavar="ENDPOINT")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True)
    os.environ["HF_HUB_OFFLINE"] = "1"
    for name in options.names:
        if not (options.folder / f"{name}.answers").exists():
            record(name, options.folder, options.seed)
        whole = read_recorded(name, options.folder)
        for claim, numerics in CLAIMS.items():
            order = sorted(whole.readings, key=lambda each: each.removesuffix(DETERMINISTIC) != numerics)
            read = replace(whole, readings={each: whole.readings[each] for each in order})
            if not options.runs:
                continue
            runs = [read.judged(chosen, draws=0) for chosen in sets(read, options.runs)]
            for kind, verdicts in {
                "text": [run["text"]["verdict"] for run in runs],
                "log-probabilities": [(run["log_probabilities"] or {}).get("verdict") for run in runs],
                "all": [run["verdict"] for run in runs],
            }.items():
                counted = ", ".join(f"{count} {verdict}" for verdict, count in Counter(verdicts).items())
                sys.stdout.write(f"{name} | claimed {claim} | {kind} | {counted}\n")
            sys.stdout.write(f"  departures {runs[0]['departures']}, surprise {runs[0]['surprise']:.1f}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
