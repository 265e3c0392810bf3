"""Tests of real models in a swarm in virtual time."""

import asyncio
import json
import random
import sys
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import gguf
import numpy as np
import pytest
import torch
import transformers

from cosine_engine import zoo
from cosine_engine.base import Choice, Engine, Row, RowResult
from cosine_engine.curve import CostCurve
from cosine_engine.gguf.unfolding import unfold
from cosine_engine.gguf.writing import write_gguf
from cosine_engine.kv_pool import PagePool
from cosine_engine.lanes.engine import LaneEngine
from cosine_engine.llama.library import is_installed
from cosine_engine.paged import PagedEngine
from cosine_engine.torch.engine import TorchEngine
from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.records import facts_of
from cosine_lab.simulation.swarm import SimulatedSwarm, numbered_identity
from cosine_node.chains.engine import StagedEngine
from cosine_node.stages.host import StageEngine
from cosine_node.verifier.service import VerifierService
from cosine_p2p.request.generation_config import read_eos
from cosine_p2p.request.model_defaults import KNOWN_TARGETS
from cosine_p2p.request.results import Generation
from cosine_p2p.text.target import read_target_facts
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_p2p.trust.audit_rule import AuditState
from cosine_protocol.request import Sampling
from tests.engine.embedded import engine_of
from tests.engine.loaded import llama_file_engine, torch_engine
from tests.engine.local_chain import LocalLinks
from tests.engine.random_serving import Asked, serve_alone
from tests.engine.staged import load_stages, ranges, whole_engine
from tests.llama_server import LlamaServer
from tests.scenes import in_virtual_time
from tests.swarm.reference import audited, preferred
from tests.thoroughness import soak_rest

ROOT: Final = Path(__file__).parents[2]
FLAT: Final = CostCurve(((1, 0.06), (512, 0.07)))
"""The curve of the virtual device, on which nodes are cheap, so that many are fed."""
LLAMA: Final = pytest.mark.skipif(not is_installed(), reason="xllamacpp is absent")


def codec_of(folder: Path) -> TextTokenizer:
    files = TokenizerFiles.read(folder)
    assert files is not None
    return TextTokenizer(files.files)


class TextDrafter(PagedEngine):
    """A drafter that knows given texts, and prefers a wrong token at every third position."""

    def __init__(self, texts: Sequence[Sequence[int]], *, vocab_tokens: int, wrong_at: int) -> None:
        super().__init__(
            PagePool(tokens=65_536), vocab_tokens=vocab_tokens, context_tokens=2048, numerics="knows the texts"
        )
        self._following = {tuple(text[:end]): text[end] for text in texts for end in range(1, len(text))}
        self._wrong_at = wrong_at

    def forward(self, rows: Sequence[Row]) -> list[RowResult]:
        return [
            RowResult(tuple(self._choice(tuple(tree.tokens_to(name))) for name in row.nodes[row.scored_from :]))
            for tree, row in zip(self.feed(rows), rows, strict=True)
        ]

    def _choice(self, path: tuple[int, ...]) -> Choice:
        right = self._following.get(path)
        if right is None:
            return Choice(0, 1.0)
        wrong = (right + 1) % self.vocab_tokens
        ranked = (wrong, right) if len(path) % 3 == self._wrong_at else (right, wrong)
        return Choice(ranked[0], 1.0, ((ranked[0], 0.6), (ranked[1], 0.3)))


@in_virtual_time
async def swarm_texts(
    engine: Engine,
    codec: TextTokenizer,
    prompts: Sequence[Sequence[int]],
    known: Sequence[Sequence[int]],
    samplings: Sequence[Sampling],
    *,
    tokens: int,
    eos: Sequence[int] = (),
) -> tuple[list[list[int]], int, int]:
    """Return the texts of concurrent requests, and the numbers of accepted drafts and preempted requests."""
    async with SimulatedSwarm(codec=codec, facts=facts_of(tuple(eos))) as swarm:
        verifier = await swarm.verifier(engine, curve=FLAT, max_requests=len(prompts))
        for wrong_at, domain in enumerate(("code", "math")):
            drafter = TextDrafter(known, vocab_tokens=engine.vocab_tokens, wrong_at=wrong_at)
            await swarm.drafter(drafter, domain=domain, max_requests=len(prompts))
        client = await swarm.client(max_new_tokens=tokens)
        asked = [
            client.generate(tuple(prompt), temperature=sampling.temperature, seed=sampling.seed)
            for prompt, sampling in zip(prompts, samplings, strict=True)
        ]
        answers = await asyncio.gather(*asked)
        assert isinstance(verifier.service, VerifierService)
        texts = [list(answer.token_ids) for answer in answers]
        accepted = sum(answer.swarm.accepted for answer in answers)
        return texts, accepted, verifier.service.counts.preempted


# Texts of programs that read the same file or folder by their own code: docs/exact-texts.md.

GEMMA: Final = Path(sys.prefix) / "share" / "gemma-3-270m-q4_k_m.gguf"
"""The file of `make gemma`."""
HAS_SMOL: Final = "smol-target" in zoo.names(zoo.Family.SMOL)
TOKENS: Final = 32
LONG_TOKENS: Final = 800
"""The length of the longest prompt: more than Gemma's window of 512, less than the toy's context of 1,024."""
POOL_TOKENS: Final = 896
"""Room for the longest request and little more, so that some lose their pages."""
NEAR_TIE: Final[Mapping[bool, float]] = {True: 1e-3, False: 0.5}
"""Margins of logits that rounding moves, in float32 and with weights in few bits (docs/decisions/0024-llama.md)."""
PLAIN: Final = (
    "The capital of France is",
    "def reverse(words: list[str]) -> list[str]:\n    return",
    "Once upon a time there was a",
    "Wasser kocht bei hundert Grad, und",
)
ASKED: Final = ("Who wrote Hamlet?", "What is 17 * 3?", "Name three rivers.", "Say it politely: go away!")


class Transformers:
    """Reference texts of transformers. `tokens_of` encodes the prompts of a GGUF file."""

    def __init__(self, path: Path, *, eos: Sequence[int], tokens_of: "LlamaReference | None" = None) -> None:
        place = {"gguf_file": path.name} if path.is_file() else {}
        folder = path.parent if path.is_file() else path
        self._eos = list(eos) or None
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **place).eval()
        self._tokens_of = tokens_of
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder) if tokens_of is None else None

    def prompt(self, asked: str, *, is_chat: bool) -> tuple[int, ...]:
        if self._tokenizer is None:
            assert self._tokens_of is not None
            return self._tokens_of.prompt(asked, is_chat=is_chat)
        if not is_chat:
            return tuple(self._tokenizer(asked)["input_ids"])
        messages = [{"role": "user", "content": asked}]
        return tuple(self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

    def text(self, prompt: Sequence[int]) -> list[int]:
        inputs = torch.tensor([prompt])
        options: dict[str, Any] = {"do_sample": False, "max_new_tokens": TOKENS, "eos_token_id": self._eos}
        with torch.no_grad():
            ids = self._model.generate(inputs, attention_mask=torch.ones_like(inputs), pad_token_id=0, **options)
        found: list[int] = ids[0, len(prompt) :].tolist()
        return found


@dataclass(frozen=True, slots=True)
class LlamaReference:
    """Reference texts of llama.cpp's server, over HTTP."""

    url: str

    def prompt(self, asked: str, *, is_chat: bool) -> tuple[int, ...]:
        if is_chat:
            asked = self._post("/apply-template", {"messages": [{"role": "user", "content": asked}]})["prompt"]
        found = self._post("/tokenize", {"content": asked, "add_special": True, "parse_special": True})
        return tuple(found["tokens"])

    def text(self, prompt: Sequence[int]) -> list[int]:
        asked = {"prompt": list(prompt), "n_predict": TOKENS, "temperature": 0, "return_tokens": True}
        tokens: list[int] = self._post("/completion", {**asked, "cache_prompt": False})["tokens"]
        return tokens

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        request = Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urlopen(request, timeout=120) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


@contextmanager
def reference_of(
    path: Path, engine: str, *, eos: Sequence[int], is_float32: bool
) -> Iterator[Transformers | LlamaReference]:
    if not path.is_file():
        yield Transformers(path, eos=eos)
        return
    with closing(LlamaServer(path, requests=1, is_float32=is_float32)) as server:
        asked = LlamaReference(server.url)
        yield asked if engine == "llama" else Transformers(path, eos=eos, tokens_of=asked)


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


def model_in(model: str, form: str, folder: Path) -> Path:
    """Return a model in a form: "folder", or the weights of a GGUF file."""
    if form == "folder":
        return zoo.folder("target")
    if model == "toy":
        write_gguf(zoo.folder("target"), folder / "toy.gguf", weights=form)
        return folder / "toy.gguf"
    file = zoo.location("smol-target") if model == "SmolLM2" else GEMMA
    return in_float32(file, folder / "model.gguf") if form == "F32" else file


def long_text(codec: TextTokenizer) -> str:
    """Return the beginning of a text with at most `LONG_TOKENS` tokens."""
    words = (ROOT / "docs" / "design.md").read_text("utf-8").split(" ")[:LONG_TOKENS]
    count = bisect_right(range(len(words)), LONG_TOKENS, key=lambda many: len(codec.encode(" ".join(words[:many]))))
    return " ".join(words[: count - 1])


def is_near_tie(
    engine: Engine, prompt: Sequence[int], said: Sequence[int], right: Sequence[int], *, bound: float
) -> bool:
    """Return whether two texts differ first at a near tie of the engine."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(said, right, strict=False))
    read = (*prompt, *(token for token, _ in same))
    sequence = engine.open(sampling=Sampling(), prompt_tokens=len(prompt))
    (result,) = engine.forward([Row.chain(sequence, read, scored_from=len(read) - 1)])
    engine.release(sequence)
    return result.choices[-1].margin <= bound


def cases() -> Iterator[Any]:
    """Yield each model in each form with each engine; further ones of a kind run in `make soak`."""
    absent = {"toy": False, "SmolLM2": not HAS_SMOL, "Gemma 3": not GEMMA.is_file()}
    weights = {"toy": ("F32", "Q8_0"), "SmolLM2": ("Q4_1", "F32"), "Gemma 3": ("Q4_K_M", "F32")}
    for model in absent:
        skips = pytest.mark.skipif(absent[model], reason=f"{model} is absent: make smol gemma")
        for form in (*weights[model], *(["folder"] if model == "toy" else [])):
            for engine in ("torch", "llama")[: 1 if form == "folder" else 2]:
                is_first = form == weights[model][0] and (model == "toy" or engine == "llama")
                yield pytest.param(model, form, engine, marks=[skips] if is_first else [skips, pytest.mark.soak])


@LLAMA
@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("model", "form", "engine"), list(cases()))
def test_texts_of_references(model: str, form: str, engine: str, tmp_path: Path, record_property: Any) -> None:
    path = model_in(model, form, tmp_path)
    folder = unfold(path, is_served=True) if path.is_file() else path
    codec, eos, is_float32 = codec_of(folder), read_eos(folder), engine == "torch" or form == "F32"
    asked = [(text, False) for text in (*PLAIN, long_text(codec))]
    asked += [(question, True) for question in ASKED if (folder / "chat_template.jinja").is_file()]
    prompts = [
        codec.encode_chat([{"role": "user", "content": text}]) if is_chat else codec.encode(text)
        for text, is_chat in asked
    ]
    with reference_of(path, engine, eos=eos, is_float32=is_float32) as reference:
        assert prompts == [reference.prompt(text, is_chat=is_chat) for text, is_chat in asked]
        right = [without_end(reference.text(prompt), eos) for prompt in prompts]
    loaded: Engine
    if engine == "llama":
        loaded = llama_file_engine(path, threads=1, pool_tokens=POOL_TOKENS)
    else:
        loaded = torch_engine(folder, dtype="float32", pool_tokens=POOL_TOKENS)
    known = [[*prompt, *text] for prompt, text in zip(prompts, right, strict=True)]
    found, accepted, preempted = swarm_texts(
        loaded, codec, prompts, known, [Sampling()] * len(prompts), tokens=TOKENS, eos=eos
    )
    said = [without_end(text, eos) for text in found]
    ties = [number for number, text in enumerate(said) if text != right[number]]
    for n in ties:
        assert is_near_tie(loaded, prompts[n], said[n], right[n], bound=NEAR_TIE[is_float32])
    # The figures of docs/exact-texts.md.
    record_property("texts", len(prompts))
    record_property("tokens", sum(map(len, right)))
    record_property("near ties", len(ties))
    assert not (is_float32 and ties)
    # The drafters know the right texts only, not their continuations after a near tie.
    assert accepted > sum(map(len, right)) / 4 * (1 - len(ties) / len(prompts))
    assert preempted


@pytest.mark.thorough
@pytest.mark.skipif(not HAS_SMOL, reason="SmolLM2 is absent: make smol")
def test_the_digest_of_smollm2_is_that_of_its_name(tmp_path: Path) -> None:
    facts = read_target_facts(unfold(zoo.location("smol-target"), cache_folder=tmp_path))
    assert facts is not None
    assert facts.digest() == KNOWN_TARGETS["zoo:smol-target"]


def without_end(tokens: Sequence[int], eos: Sequence[int]) -> list[int]:
    return list(takewhile(lambda token: token not in eos, tokens))


# A model in parts.

PARTS_TOKENS: Final = 12
PARTS_POOL_TOKENS: Final = 192
"""Less than all requests together need: some are preempted."""
PARTS_PROMPTS: Final = tuple(
    f"{opening} {topic}"
    for opening in ("Question: What do we know of rivers, mountains and the open sea? Tell me about", "Once")
    for topic in ("the sun.", "a fox.", "numbers.", "a heart.")
)
"""Some share a prefix of more than a page of tokens."""


@pytest.mark.thorough
@pytest.mark.parametrize("cut", soak_rest([(3, 8), (2, 5, 8)]), ids=str)
def test_texts_of_a_model_in_parts_are_those_of_the_whole_model(cut: tuple[int, ...]) -> None:
    target = zoo.location("target")
    codec, whole = codec_of(target), whole_engine(target, pool_tokens=PARTS_POOL_TOKENS)
    prompts = [codec.encode(prompt) for prompt in PARTS_PROMPTS]
    # Every other request is greedy.
    samplings = [Sampling(temperature=0.8 * (number % 2), seed=number) for number in range(len(prompts))]
    alone = [
        [token for token, _ in serve_alone(whole, Asked([*prompt], sampling), PARTS_TOKENS)]
        for prompt, sampling in zip(prompts, samplings, strict=True)
    ]
    known = [[*prompt, *text] for prompt, text in zip(prompts, alone, strict=True)]
    stages = [
        StageEngine(model, PagePool(tokens=PARTS_POOL_TOKENS))
        for model in load_stages(target, ranges(*cut), slots=PARTS_POOL_TOKENS)
    ]
    head = StagedEngine(LocalLinks(stages), context_tokens=whole.context_tokens)
    found, accepted, preempted = swarm_texts(head, codec, prompts, known, samplings, tokens=PARTS_TOKENS)
    assert found == alone
    # Trees were checked, and not only texts decoded.
    assert accepted > len(prompts) * PARTS_TOKENS / 4
    assert preempted
    assert (head.live_tokens, head.open_sequences) == (0, 0)


# Quantised weights under the name of whole ones.


def engine_called(claimed: str, numerics: str) -> TorchEngine | LaneEngine:
    """Return an engine of the embedded target that claims other numerics."""
    engine = engine_of(numerics)
    assert isinstance(engine, TorchEngine | LaneEngine)
    engine.numerics = claimed
    return engine


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("claimed", "numerics"),
    [
        ("float32", "gguf:Q4_1+float32"),
        ("float32", "float32"),
        pytest.param("gguf:F32+llama.cpp", "gguf:Q4_1+llama.cpp", marks=LLAMA),
        pytest.param("gguf:Q4_1+llama.cpp", "gguf:Q4_1+llama.cpp", marks=LLAMA),
    ],
)
def test_weights_of_four_bits_under_the_name_of_32_are_found(claimed: str, numerics: str) -> None:
    codec, suspect = codec_of(zoo.location("target")), numbered_identity(9200)
    [prompt] = random.Random(1).sample(list(zoo.prompts("literature")), 1)

    async def run() -> Generation:
        async with SimulatedSwarm(codec=codec) as swarm:
            engines = [engine_called(claimed, each) for each in (numerics, claimed, claimed)]
            options: dict[str, Any] = {"temperature": 1.0, "seed": 1}
            client = await preferred(swarm, *engines, prompt=prompt.render(), identity=suspect, client=options)
            return await audited(client, prompt.render(), max_new_tokens=200)

    done = run_virtual(run())
    assert [one.peer_id for one in done.swarm.verifiers] == [suspect.peer_id]
    assert done.audit is not None
    assert done.audit.state is (AuditState.PASSED if claimed == numerics else AuditState.CONVICTED)
