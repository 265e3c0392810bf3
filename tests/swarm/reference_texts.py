"""Texts of whole swarms against those of transformers and of llama.cpp, for three models as files and as folders.

The references read the same file or folder by their own code: transformers loads, dequantises and generates,
llama.cpp's own server tokenises, fills its template and decodes. The swarm is in memory, with drafters that are
often right and a pool so small that requests lose their pages; one prompt is longer than Gemma's window.
`python -m tests.swarm.reference_texts` writes docs/exact-texts.md; it takes some minutes.
"""

import asyncio
import json
import logging
import shutil
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.request import Request, urlopen

import gguf
import numpy as np
import torch
import transformers

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node import zoo
from cosine_node.engine.base import Engine, Row
from cosine_node.engine.curve import CostCurve
from cosine_node.engine.llama.loading import load_llama
from cosine_node.engine.torch.loading import load_engine
from cosine_node.gguf.unfolding import unfold
from cosine_node.gguf.writing import write_gguf
from cosine_node.verifier.service import VerifierService
from cosine_p2p.request.generation_config import read_eos
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.request import Sampling
from tests.swarm.text_drafter import TextDrafter

LOG = logging.getLogger(__name__)
ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "exact-texts.md"
GEMMA: Final = Path(sys.prefix) / "share" / "gemma-3-270m-q4_k_m.gguf"
"""Where `make gemma` puts it."""
TOKENS: Final = 32
LONG_TOKENS: Final = 800
"""Of the longest prompt: more than the 512 of Gemma's window, less than the 1,024 of the toy's context."""
POOL_TOKENS: Final = 896
"""Room for the longest request and little more, so that some lose their pages."""
FLAT: Final = CostCurve(((1, 0.06), (512, 0.07)))
"""Of the virtual device: nodes cost it little, so that it feeds many."""
NEAR_TIE: Final[Mapping[bool, float]] = {True: 1e-3, False: 0.5}
"""Margins of logits that rounding moves, in float32 and with weights in few bits (docs/decisions/0024-llama.md)."""
PLAIN: Final = (
    "The capital of France is",
    "def reverse(words: list[str]) -> list[str]:\n    return",
    "Once upon a time there was a",
    "Wasser kocht bei hundert Grad, und",
)
ASKED: Final = ("Who wrote Hamlet?", "What is 17 * 3?", "Name three rivers.", "Say it politely: go away!")


@dataclass(frozen=True, slots=True)
class Form:
    """A model as somebody has it on a disk, and what runs it."""

    model: str
    form: str
    path: Path
    engine: str
    is_float32: bool

    @property
    def is_file(self) -> bool:
        return self.path.suffix == ".gguf"

    @property
    def reference(self) -> str:
        return "llama.cpp" if self.engine == "llama" else "transformers"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the texts of a swarm compare with the reference's; `other_prompts` were tokenised otherwise."""

    texts: int
    tokens: int
    other_prompts: int
    near_ties: int
    different: int
    drafted: int
    preempted: int


class Reference(Protocol):
    """A program that writes texts, and reads prompts, by itself."""

    def prompt(self, asked: str, *, is_chat: bool) -> tuple[int, ...]:
        """The tokens of a text, or of a question in the model's chat."""
        ...

    def text(self, prompt: Sequence[int]) -> list[int]:
        """At most `TOKENS` tokens that follow, greedily, without the one that ends the text."""
        ...


class Transformers:
    """The models and tokenizers of transformers; the tokens of a file's prompts are `tokens_of`'s."""

    def __init__(self, path: Path, *, eos: Sequence[int], tokens_of: Reference | None = None) -> None:
        place = {"gguf_file": path.name} if path.is_file() else {}
        folder = path.parent if path.is_file() else path
        self._eos = list(eos)
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **place).eval()
        self._tokens_of = tokens_of
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder) if tokens_of is None else None

    def prompt(self, asked: str, *, is_chat: bool) -> tuple[int, ...]:
        if self._tokens_of is not None:
            return self._tokens_of.prompt(asked, is_chat=is_chat)
        assert self._tokenizer is not None
        if not is_chat:
            return tuple(self._tokenizer(asked)["input_ids"])
        messages = [{"role": "user", "content": asked}]
        return tuple(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

    def text(self, prompt: Sequence[int]) -> list[int]:
        with torch.no_grad():
            ids = self._model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
                do_sample=False,
                max_new_tokens=TOKENS,
                eos_token_id=self._eos or None,
                pad_token_id=0,
            )
        return without_end(ids[0, len(prompt) :].tolist(), self._eos)


class LlamaServer:
    """llama.cpp's own server, over HTTP."""

    SERVER: Final = """
import sys, xllamacpp
options = xllamacpp.CommonParams()
options.model.path, options.n_ctx, options.n_parallel, options.use_jinja = sys.argv[1], 2048, 1, True
options.warmup, options.cpuparams.n_threads = False, 1
if sys.argv[2] == "float32":
    options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
server = xllamacpp.Server(options)
print("AT", server.listening_address, flush=True)
sys.stdin.read()
"""

    def __init__(self, url: str, eos: Sequence[int]) -> None:
        self._url = url
        self._eos = eos

    @classmethod
    @contextmanager
    def of(cls, file: Path, *, eos: Sequence[int], is_float32: bool) -> Iterator["LlamaServer"]:
        """The server of a file while it runs."""
        words = [sys.executable, "-c", cls.SERVER, str(file), "float32" if is_float32 else "as it is"]
        with (
            tempfile.TemporaryFile() as log,
            subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            ) as process,
        ):
            try:
                assert process.stdout is not None
                yield cls(next(line.split()[1] for line in process.stdout if line.startswith("AT ")), eos)
            finally:
                process.kill()

    def prompt(self, asked: str, *, is_chat: bool) -> tuple[int, ...]:
        if is_chat:
            asked = self._post("/apply-template", {"messages": [{"role": "user", "content": asked}]})["prompt"]
        found = self._post("/tokenize", {"content": asked, "add_special": True, "parse_special": True})
        return tuple(found["tokens"])

    def text(self, prompt: Sequence[int]) -> list[int]:
        asked = {"prompt": list(prompt), "n_predict": TOKENS, "temperature": 0, "return_tokens": True}
        tokens: list[int] = self._post("/completion", {**asked, "cache_prompt": False})["tokens"]
        return without_end(tokens, self._eos)

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        request = Request(self._url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urlopen(request, timeout=120) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


def without_end(tokens: Sequence[int], eos: Sequence[int]) -> list[int]:
    """The tokens before the first that ends a text."""
    return list(tokens[: next((place for place, token in enumerate(tokens) if token in eos), len(tokens))])


def in_float32(file: Path, out: Path) -> Path:
    """A GGUF file with all its weights in float32, and nothing else changed."""
    read = gguf.GGUFReader(str(file))
    writer = gguf.GGUFWriter(str(out), read.fields["general.architecture"].contents())
    for name, field in read.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", "general.file_type"):
            kinds = field.types
            writer.add_key_value(name, field.contents(), kinds[0], sub_type=kinds[-1] if len(kinds) > 1 else None)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for tensor in read.tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
        writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def as_folder(file: Path, out: Path) -> Path:
    """The folder that transformers makes of a GGUF file: weights by its own mapping, our tokenizer files."""
    model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # The model remembers that its weights came from GGUF, and would not be saved; one that never knew is.
    del model.config.quantization_config
    plain = transformers.AutoModelForCausalLM.from_config(model.config, dtype=torch.float32)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(out)
    unfolded = unfold(file, cache_folder=out.with_suffix(".unfolded"))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        if (unfolded / name).is_file():
            shutil.copy(unfolded / name, out / name)
    return out


def forms(folder: Path, models: Sequence[str] = ("toy", "SmolLM2 135M", "Gemma 3 270M")) -> Iterator[Form]:
    """What is to be compared of the models that are on this machine; files are made in `folder`."""
    toy = zoo.folder("target")
    if "toy" in models:
        yield Form("toy", "folder", toy, "torch", is_float32=True)
        for weights in ("F32", "Q8_0"):
            file = folder / f"toy.{weights}.gguf"
            write_gguf(toy, file, weights=weights)
            yield from _forms_of_file("toy", file, weights)
    brought = {"SmolLM2 135M": ("Q4_1", _smol()), "Gemma 3 270M": ("Q4_K_M", GEMMA)}
    for model, (weights, found) in brought.items():
        if model in models and found is not None and found.is_file():
            name = model.replace(" ", "-")
            yield from _forms_of_file(model, found, weights)
            yield from _forms_of_file(model, in_float32(found, folder / f"{name}.gguf"), "F32")
            yield Form(model, "folder", as_folder(found, folder / name), "torch", is_float32=True)


def _forms_of_file(model: str, file: Path, weights: str) -> Iterator[Form]:
    yield Form(model, f"GGUF, {weights}", file, "torch", is_float32=True)
    yield Form(model, f"GGUF, {weights}", file, "llama", is_float32=weights == "F32")


def _smol() -> Path | None:
    return zoo.location("smol-target") if "smol-target" in zoo.names(zoo.Family.SMOL) else None


@contextmanager
def reference_of(form: Form, eos: Sequence[int]) -> Iterator[Reference]:
    """The program whose texts are right for a form."""
    if not form.is_file:
        yield Transformers(form.path, eos=eos)
        return
    with LlamaServer.of(form.path, eos=eos, is_float32=form.is_float32) as server:
        yield server if form.engine == "llama" else Transformers(form.path, eos=eos, tokens_of=server)


def load(form: Form, folder: Path) -> Engine:
    """The engine that serves a form; `folder` is the model's, or what its file was unfolded to."""
    if form.engine == "llama":
        return load_llama(form.path, device="cpu", threads=1, pool_tokens=POOL_TOKENS)
    return load_engine(str(folder), dtype="float32", device="cpu", pool_tokens=POOL_TOKENS)


def compare(form: Form) -> Outcome:
    """The texts of a swarm over a form against its reference's."""
    folder = unfold(form.path, is_served=True) if form.is_file else form.path
    files = TokenizerFiles.read(folder)
    assert files is not None
    codec, eos = TextTokenizer(files.files), read_eos(folder)
    asked = [(text, False) for text in (*PLAIN, long_text(codec))]
    if "chat_template.jinja" in files.files:
        asked += [(question, True) for question in ASKED]
    prompts = [
        codec.encode_chat([{"role": "user", "content": text}]) if is_chat else codec.encode(text)
        for text, is_chat in asked
    ]
    with reference_of(form, eos) as reference:
        theirs = [reference.prompt(text, is_chat=is_chat) for text, is_chat in asked]
        right = [reference.text(prompt) for prompt in prompts]
    engine = load(form, folder)
    known = [[*prompt, *text] for prompt, text in zip(prompts, right, strict=True)]
    said, drafted, preempted = run_virtual(swarm_texts(engine, codec, eos, prompts, known))
    ended = [without_end(text, eos) for text in said]
    differing = [number for number, text in enumerate(ended) if text != right[number]]
    bound = NEAR_TIE[form.is_float32]
    ties = [n for n in differing if is_near_tie(engine, prompts[n], ended[n], right[n], bound=bound)]
    return Outcome(
        texts=len(prompts),
        tokens=sum(len(text) for text in right),
        other_prompts=sum(ours != one for ours, one in zip(prompts, theirs, strict=True)),
        near_ties=len(ties),
        different=len(differing) - len(ties),
        drafted=drafted,
        preempted=preempted,
    )


def long_text(codec: TextTokenizer) -> str:
    """The beginning of a real text, so many words of it that they are `LONG_TOKENS` at most."""
    words = (ROOT / "docs" / "design.md").read_text("utf-8").split(" ")[:LONG_TOKENS]
    count = bisect_right(range(len(words)), LONG_TOKENS, key=lambda many: len(codec.encode(" ".join(words[:many]))))
    return " ".join(words[: count - 1])


def is_near_tie(
    engine: Engine, prompt: Sequence[int], said: Sequence[int], right: Sequence[int], *, bound: float
) -> bool:
    """Whether two texts part where the engine sees two tokens that rounding may exchange."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(said, right, strict=False))
    read = (*prompt, *(token for token, _ in same))
    sequence = engine.open(sampling=Sampling(), prompt_tokens=len(prompt))
    (result,) = engine.forward([Row.chain(sequence, read, scored_from=len(read) - 1)])
    engine.release(sequence)
    return result.choices[-1].margin <= bound


async def swarm_texts(
    engine: Engine,
    codec: TextTokenizer,
    eos: Sequence[int],
    prompts: Sequence[Sequence[int]],
    known: Sequence[Sequence[int]],
) -> tuple[list[tuple[int, ...]], int, int]:
    """The texts of a swarm whose two drafters know some of it, the drafts accepted, and requests preempted."""
    async with SimulatedSwarm(codec=codec, eos=tuple(eos)) as swarm:
        verifier = await swarm.verifier(engine, curve=FLAT, max_requests=len(prompts))
        for wrong_at, domain in enumerate(("code", "math")):
            drafter = TextDrafter(known, vocab_tokens=engine.vocab_tokens, wrong_at=wrong_at)
            await swarm.drafter(drafter, domain=domain, max_requests=len(prompts))
        client = await swarm.client()
        answers = await asyncio.gather(
            *(client.generate(prompt, max_new_tokens=TOKENS, temperature=0.0) for prompt in prompts)
        )
        assert isinstance(verifier.service, VerifierService)
        preempted = verifier.service.counts.preempted
    return [answer.token_ids for answer in answers], sum(answer.accepted for answer in answers), preempted


TEXT: Final = """# Exact texts

Texts of a swarm compared with those of programs that read the same model by their own code: `generate` of
transformers {transformers} in float32, and llama.cpp's server (xllamacpp {llama}). {plain} beginnings of texts and,
for chat models, {asked} questions; greedy, at most {tokens} tokens; two drafters, and so few pages that requests
are preempted. Made by `python -m tests.swarm.reference_texts`.

{table}

A **near tie** is a text that differs from a place on where the two best tokens are closer than rounding moves them
([decision 24](decisions/0024-llama.md)).
"""
COLUMNS: Final = ("model", "form", "engine", "reference", "texts", "tokens", "near ties", "different")


def page_of(rows: Sequence[tuple[Form, Outcome]]) -> str:
    """The page with a row for each form."""
    lines = [COLUMNS, tuple("---" if i < 4 else "--:" for i in range(len(COLUMNS)))]
    for form, outcome in rows:
        engine = "llama.cpp" if form.engine == "llama" else "PyTorch"
        counts = (outcome.texts, outcome.tokens, outcome.near_ties, outcome.different)
        lines.append((form.model, form.form, engine, form.reference, *map(str, counts)))
    return TEXT.format(
        transformers=transformers.__version__,
        llama=version("xllamacpp"),
        plain=len(PLAIN) + 1,
        asked=len(ASKED),
        tokens=TOKENS,
        table="\n".join(f"| {' | '.join(line)} |" for line in lines),
    )


def main() -> None:
    """Compare every form of every model that is here, and write the page."""
    logging.basicConfig(format="%(message)s")
    LOG.setLevel(logging.INFO)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for form in forms(Path(folder)):
            outcome = compare(form)
            LOG.info("%s, %s, %s: %s", form.model, form.form, form.engine, outcome)
            rows.append((form, outcome))
    PAGE.write_text(page_of(rows), "utf-8")


if __name__ == "__main__":
    main()
