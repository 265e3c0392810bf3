"""Strangers' files, texts and request bodies: models, tokenizers, chat templates, addresses, JSON."""

import hashlib
import json
import os
import re
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from cosine_engine import zoo
from cosine_engine.gguf.file import GgufFile
from cosine_engine.gguf.unfolding import unfold, unfold_part
from cosine_engine.gguf.writing import StoredModel
from cosine_engine.models.model_sizes import ModelSizes
from cosine_engine.models.partial_folder import PartialFolder
from cosine_engine.openai.server import read_piece
from cosine_engine.vocabulary import DraftVocabulary
from cosine_gateway.api_errors import ApiError
from cosine_gateway.body import parse_object
from cosine_gateway.chats import parse_chat
from cosine_gateway.completions import parse_completion
from cosine_gateway.http.tokenizer import detokenized, tokenized
from cosine_gateway.messages.request import parse_message
from cosine_gateway.responses.request import parse_response
from cosine_node.endpoint_audit.asking import EndpointQuestion, read_answer
from cosine_p2p.request.generation_config import FILE_NAME, read_generation_config
from cosine_p2p.request.model_defaults import apply_defaults
from cosine_p2p.request.options import TEXT_DEFAULTS
from cosine_p2p.text import template_worker
from cosine_p2p.text.detokenizer import Detokenizer
from cosine_p2p.text.held_weights import MANIFEST, METADATA, HeldWeights
from cosine_p2p.text.prompt import encode_prompt
from cosine_p2p.text.target import read_target_facts
from cosine_p2p.text.template_process import MAX_TEXT_CHARACTERS, TemplateProcesses
from cosine_p2p.text.tokenizer import TextTokenizer, load_tokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_p2p.transport.addresses import AddressBook, parse_address, range_of
from cosine_p2p.trust.denied_peers import parse_denied
from cosine_p2p.trust.membership import read_swarm_file
from cosine_protocol.errors import PromptRefused
from cosine_protocol.membership import CERTIFICATE_LINE, REVOCATIONS_LINE, as_line
from cosine_protocol.weights import Manifest, ManifestPart, ManifestTensor, pieces_root
from cosine_terminal.printing import json_safe
from tests.cosine_p2p.gguf_samples import SIZES, write_sample
from tests.fuzz.mutation import mutated_files, mutated_json, mutated_tokenizer
from tests.fuzz.target import FuzzTarget, any_taken, json_seeds, moves, script
from tests.protocol import vectors
from tests.protocol.samples import OTHER, OWNER

CPU_S: Final = 2.0
"""A template that takes longer counts as refused; a node kills its process."""
FREE_BYTES: Final = 1 << 30
"""Additional memory for a template: as much as its process has in a node."""
CHAT: Final = [{"role": "user", "content": "Hé 🙂"}]
FILES: Final = (
    "config.json",
    FILE_NAME,
    "model.safetensors",
    "draft_vocabulary.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "model.safetensors.index.json",
    MANIFEST,
)
"""The files of a model's folder; the first byte of a move is the index of the one that it writes."""
KIND: Final = json_seeds("tokenizer")[0]
"""The smallest tokenizer that reads any text."""


class _TooLong(BaseException):
    """Not an `Exception`, so that the code that catches a template's errors does not catch it."""


@contextmanager
def _scratch() -> Iterator[Path]:
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name,
        patch.dict("os.environ", {"XDG_CACHE_HOME": f"{name}/cache"}),
    ):
        yield Path(name)


def check_gguf(data: bytes) -> None:
    """A GGUF file: as a model, as an unfolded folder, and each of its weights."""
    with _scratch() as folder:
        file = folder / "model.gguf"
        file.write_bytes(data)
        folder = unfold(file, cache_folder=folder / "unfolded")
        model = GgufFile.open(file)
        assert model.parameters >= 0 and model.weights and model.name
        read_target_facts(folder)
        for name in list(model.tensors)[:4]:
            if model.tensors[name].size_bytes < len(data):
                model.weight(name)


def check_gguf_part(data: bytes) -> None:
    """Read the metadata, from a peer, of a GGUF file that is here in part."""
    with _scratch() as folder:
        parts = (ManifestPart(METADATA, len(data), hashlib.sha256(data).digest()),)
        norm = ManifestTensor("output_norm.weight", "F32", (32,), 128, bytes(32))
        embedding = ManifestTensor("token_embd.weight", "Q8_0", (32, 4), 136, bytes(32))
        manifest = Manifest(parts, (norm, embedding))
        partial = PartialFolder(manifest, manifest.encode(), cache_folder=folder)
        partial.write_parts({METADATA: data})
        unfold_part(partial.path)
        read_target_facts(partial.path)


def _metadata_seeds() -> list[bytes]:
    with _scratch() as folder:
        files = []
        for number, sample in enumerate(_samples()):
            files.append(folder / f"{number}.gguf")
            files[-1].write_bytes(sample)
        return [HeldWeights.read(file, cache_folder=folder).parts[METADATA] for file in files]


@cache
def _samples() -> tuple[bytes, ...]:
    with _scratch() as folder:
        plain = {"general.architecture": "llama", "llama.feed_forward_length": 8, "general.name": "a"}
        words = ["<s>", "a", "b", "ab", "Ġa"]
        byte_level = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.merges": ["a b"],
        }
        pieces = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.0, -1.0, -2.0, -3.0, -4.0]}
        common = {"tokenizer.ggml.tokens": words, "tokenizer.ggml.token_type": [3, 1, 1, 1, 4]}
        ends = {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.bos_token_id": 0}
        template = {"tokenizer.chat_template": "{{ messages }}", "cosine.draft_vocabulary": [1, 2]}
        other = {
            "general.architecture": "gemma3",
            **{key.replace("llama", "gemma3"): size for key, size in SIZES.items()},
            "gemma3.feed_forward_length": 8,
            "gemma3.attention.sliding_window": 4,
            "gemma3.attention.sliding_window_pattern": [True, False],
        }
        many = [
            plain,
            plain | byte_level | common | ends,
            plain | pieces | common | template,
            plain | {"list": [1, 2]},
            other,
        ]
        return tuple(
            write_sample(folder / f"{number}.gguf", metadata).read_bytes() for number, metadata in enumerate(many)
        )


def check_model_folder(data: bytes) -> None:
    """A model's folder: configuration, generation config, weights and their index, draft vocabulary."""
    with _scratch() as folder:
        for which, sent in moves(data):
            (folder / FILES[which % len(FILES)]).write_bytes(sent)
        any_taken(partial(read, folder) for read in _FOLDER_READERS)


HOLES_CPU_S: Final = 15.0
"""Four million texts of a GGUF file take a third of it; greater lengths are refused."""
HOLE_BYTES: Final = 1 << 40
"""A sparse file of a terabyte takes no space on a disk, but reading it takes all memory."""


def check_holes(data: bytes) -> None:
    """The files of a model, each with a hole after its data, read with little time and memory."""

    def read_confined(read: Callable[[Path], object], folder: Path) -> None:
        with _confined(limit=resource.RLIMIT_DATA, cpu_s=HOLES_CPU_S):
            read(folder)

    with _scratch() as folder:
        for which, sent in moves(data):
            file = folder / HOLED_FILES[which % len(HOLED_FILES)]
            file.write_bytes(sent)
            os.truncate(file, HOLE_BYTES)
        any_taken(partial(read_confined, read, folder) for read in _HOLE_READERS)


HOLED_FILES: Final = (*FILES, "model.gguf", "swarm", "chat_template.jinja", "tokenizer.model", "vocab.json")


def _hole_seeds() -> list[bytes]:
    """The beginnings of each file, and lengths as long as the file."""
    much = HOLE_BYTES // 2
    magic = b"GGUF" + (3).to_bytes(4, "little")
    one_key = magic + bytes(8) + (1).to_bytes(8, "little")
    key = one_key + (1).to_bytes(8, "little") + b"a"
    headers = [
        one_key + much.to_bytes(8, "little"),
        magic + much.to_bytes(8, "little") * 2,
        key + (8).to_bytes(4, "little") + much.to_bytes(8, "little"),
        key + (9).to_bytes(4, "little") + (0).to_bytes(4, "little") + much.to_bytes(8, "little"),
        key + (9).to_bytes(4, "little") + (8).to_bytes(4, "little") + (4_000_000).to_bytes(8, "little"),
    ]
    gguf, weights = HOLED_FILES.index("model.gguf"), HOLED_FILES.index("model.safetensors")
    written = json.dumps({"a": {"dtype": "U8", "shape": [much], "data_offsets": [0, much]}}).encode()
    return [
        script(*((number, b"{}") for number in range(len(HOLED_FILES)))),
        script((0, b"{}"), (weights, much.to_bytes(8, "little"))),
        script((weights, len(written).to_bytes(8, "little") + written)),
        *(script((gguf, header)) for header in headers),
        script(),
    ]


def _read_defaults(folder: Path) -> None:
    published = read_generation_config(folder)
    apply_defaults(published, asked={}, otherwise=TEXT_DEFAULTS)


def _read_facts(folder: Path) -> None:
    facts = read_target_facts(folder)
    if facts is not None:
        facts.digest()


_FOLDER_READERS: Final[tuple[Callable[[Path], object], ...]] = (
    _read_defaults,
    _read_facts,
    DraftVocabulary.read,
    lambda folder: StoredModel.read(folder).weights(),
    lambda folder: StoredModel.read(folder).chat_template(),
    ModelSizes.read,
)


_HOLE_READERS: Final[tuple[Callable[[Path], object], ...]] = (
    *(read for read in _FOLDER_READERS if read is not _read_facts),
    TokenizerFiles.read,
    lambda folder: HeldWeights.read(folder) if not list(folder.glob("*.safetensors")) else None,
    lambda folder: GgufFile.open(folder / "model.gguf"),
    lambda folder: read_swarm_file(folder / "swarm"),
    lambda folder: parse_denied([str(folder / "swarm")]),
)
"""All but the hashes of weights, which a node computes over the whole file."""


def _folder_seeds() -> list[bytes]:
    header = {"a": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}, "__metadata__": {}}
    written = json.dumps(header).encode()
    weights = len(written).to_bytes(8, "little") + written + bytes(8)
    config = json.dumps({"eos_token_id": [2, 3], "vocab_size": 4}).encode()
    advice = json.dumps({"do_sample": True, "temperature": 0.7, "top_k": 20, "max_new_tokens": 9, "num_beams": 2})
    files = (
        config,
        advice.encode(),
        weights,
        b"[1, 2]",
        b'{"chat_template": "x"}',
        KIND,
        b'{"weight_map": {"a": "b"}}',
    )
    rows = tuple(
        ManifestPart(name, len(data), hashlib.sha256(data).digest())
        for name, data in (("config.json", config), ("tokenizer.json", KIND))
    )
    tensor = ManifestTensor("a", "BF16", (2, 2), 8, pieces_root([hashlib.sha256(bytes(8)).digest()]))
    manifest = Manifest(rows, (tensor, replace(tensor, name="b"))).encode()
    return [
        script(*enumerate(files)),
        script((0, config), (2, weights)),
        script((1, b'{"eos_token_id": 2}')),
        script((0, config), (2, weights), (5, KIND), (7, manifest)),
    ]


def check_tokenizer(data: bytes) -> None:
    """Read a tokenizer.json, and a tokenizer_config.json after a zero byte."""
    tokenizer, _, config = data.partition(b"\0")
    codec = TextTokenizer({"tokenizer.json": tokenizer, **({"tokenizer_config.json": config} if config else {})})
    tokens = encode_prompt(codec, "Hé 🙂 a b")
    assert tokens and codec.vocab_tokens >= 0
    text = Detokenizer(codec, tokens[:4])
    for token in (*tokens[:16], 0, 1, codec.vocab_tokens):
        codec.effect(token)
        text.add(token)
    text.finish()


def _tokenizer_seeds() -> list[bytes]:
    config = b'{"bos_token": "a", "eos_token": {"content": "b"}, "chat_template": "{{ messages }}"}'
    numbered = {"3": {"content": "<n>", "special": True}, "2": {"content": "b", "lstrip": True}}
    named = json.dumps({"added_tokens_decoder": numbered, "extra_special_tokens": ["<x>"]}).encode()
    return [b"\0".join((KIND, config)), b"\0".join((KIND, named)), *json_seeds("tokenizer")[1:]]


class _RenderingHere(TemplateProcesses):
    """Renders templates in this process, with the limits of template processes."""

    def render(self, template: str, values: dict[str, Any], *, now: str) -> str:
        asked = {"template": template, "values": values, "now": now, "max_characters": MAX_TEXT_CHARACTERS}
        try:
            with _confined():
                line = json.dumps(template_worker.answer(json.loads(json.dumps(asked))))
        except _TooLong:
            raise PromptRefused("it took too long") from None
        return self.read(line)

    def read(self, line: str) -> str:
        answer = json.loads(line)
        if "error" in answer:
            raise PromptRefused(answer["error"])
        return str(answer["text"])


@contextmanager
def _confined(*, limit: int = resource.RLIMIT_AS, cpu_s: float = CPU_S) -> Iterator[None]:
    """Limit time and memory. Raises `_TooLong` and `MemoryError`.

    `RLIMIT_DATA` does not count mapped files that are not changed.
    """

    def stop(*_: object) -> None:
        raise _TooLong

    before, (soft, hard) = signal.signal(signal.SIGVTALRM, stop), resource.getrlimit(limit)
    pages = Path("/proc/self/statm").read_text().split()
    used = int(pages[0 if limit == resource.RLIMIT_AS else 5]) * resource.getpagesize()
    resource.setrlimit(limit, (used + FREE_BYTES, hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(limit, (soft, hard))
        signal.signal(signal.SIGVTALRM, before)


def check_template(data: bytes) -> None:
    text = data.decode()
    # Single steps of long arithmetic cannot be interrupted in this process.
    if "**" in text or re.search(r"\d{6}", text):
        return
    with patch("cosine_p2p.text.chat_template.TemplateProcesses", _RenderingHere):
        codec = TextTokenizer({"tokenizer.json": KIND, "chat_template.jinja": data})
    codec.encode_chat(CHAT)


def _template_seeds() -> list[bytes]:
    shipped = (zoo.tokenizer_folder() / "chat_template.jinja").read_bytes()
    return [
        shipped,
        b"{% for m in messages %}<{{ m.role }}>{{ m['content'] | upper }}{% endfor %}{{ bos_token }}",
        b"{% set n = namespace(t='x') %}{% for a in range(9) %}{% set n.t = n.t ~ a %}{% endfor %}{{ n | tojson }}",
        b"{% for m in messages %}{% generation %}{{ m | tojson(indent=1) }}{% endgeneration %}{% break %}"
        b"{% endfor %}"
        b"{{ strftime_now('%Y') }}{{ raise_exception(dict(a=1)) }}",
        b"{% macro f(x) %}{{ x.y.z[1:] }}{% endmacro %}{% if messages %}{{ f(1) }}{% else %}{{ no() }}{% endif %}",
    ]


def _answered(work: Callable[[dict[str, Any]], object], data: bytes) -> None:
    """Parse the body of a request; results and refusals must be valid JSON."""
    try:
        said = work(parse_object(data))
        # A chat's choice of tools is not JSON, but its texts are.
        json.dumps(said, ensure_ascii=False, allow_nan=False, default=repr).encode()
    except ApiError as error:
        json.dumps(error.body, ensure_ascii=False, allow_nan=False).encode()
        raise


def _choices(body: dict[str, Any]) -> object:
    """The choices of a request in the API that its body belongs to."""
    parse: Callable[[dict[str, Any]], Any] = parse_chat if "messages" in body else parse_completion
    if "input" in body:
        parse = parse_response
    elif "max_tokens" in body and "messages" in body:
        parse = parse_message
    return [json_safe([choice.prompt, choice.seed]) for choice in parse(body).choices(seed=1)]


def _tokens(body: dict[str, Any]) -> object:
    return (detokenized if "tokens" in body else tokenized)(body, _codec())


@cache
def _codec() -> TextTokenizer:
    return load_tokenizer(zoo.tokenizer_folder())


def check_address(data: bytes) -> None:
    text = data.decode("utf-8", errors="replace")
    book = AddressBook()
    book.note(OWNER.peer_id, [text, text.partition("/p2p/")[0]])
    assert len(book.of(OWNER.peer_id)) <= 2
    range_of(text)
    address = parse_address(text)
    assert str(address) and 0 <= address.port < 1 << 16


def _address_seeds() -> list[bytes]:
    hosts = ("/ip4/192.0.2.1/tcp/4001", "/ip6/2001:db8::1/udp/1/quic-v1", "/dns4/example.org/tcp/443/tls/ws")
    ends = ("", f"/p2p/{OWNER.peer_id}", f"/p2p/{OTHER.peer_id}/p2p-circuit/p2p/{OWNER.peer_id}")
    rest = (
        "/dnsaddr/example.org",
        "/ip6zone/eth0/ip6/fe80::1/tcp/1",
        "/unix/a",
        "/onion3/a:1",
        "/ip4/8.8.8.8/tcp/1",
    )
    return [f"{host}{end}".encode() for host in (*hosts, *rest) for end in ends]


def check_swarm_file(data: bytes) -> None:
    with _scratch() as folder:
        (folder / "swarm").write_bytes(data)
        papers = read_swarm_file(folder / "swarm")
        assert papers.certificates and papers.certificate_of(OTHER.peer_id) in (None, *papers.certificates)


def _swarm_seeds() -> list[bytes]:
    certificate = as_line(bytes.fromhex(vectors.read("certificate")["certificate"]), prefix=CERTIFICATE_LINE)
    revocations = as_line(bytes.fromhex(vectors.read("revocations")["revocations"]), prefix=REVOCATIONS_LINE)
    return [f"# ours\n{certificate}\n\n{revocations}\n".encode(), certificate.encode()]


def check_completion(data: bytes) -> None:
    """A line of a server is text that can be encoded, with probabilities."""
    piece = read_piece(data)
    if piece is not None:
        piece.text.encode()
        assert all(0.0 <= probability <= 1.0 for _, probability in piece.tokens)


def check_chat(data: bytes) -> None:
    """An endpoint's answer is text that can be encoded, with log-probabilities."""
    answer = read_answer(EndpointQuestion("", 0.0, 0), data)
    answer.text.encode()
    assert all(-1e3 < nats <= 0.0 for _, nats in answer.told)


TARGETS: Final = {
    "gguf-part": FuzzTarget(check=check_gguf_part, seeds=_metadata_seeds, mutate=mutated_json, runs=1_000),
    "gguf": FuzzTarget(check=check_gguf, seeds=lambda: list(_samples()), runs=5_000),
    "model-folder": FuzzTarget(
        check=check_model_folder, seeds=_folder_seeds, runs=2_000, mutate=mutated_files, max_bytes=16_000
    ),
    "holes": FuzzTarget(check=check_holes, seeds=_hole_seeds, runs=1_000, mutate=mutated_files, max_bytes=16_000),
    "tokenizer": FuzzTarget(
        check=check_tokenizer, seeds=_tokenizer_seeds, runs=10_000, mutate=mutated_tokenizer, max_bytes=12_000
    ),
    "template": FuzzTarget(check=check_template, seeds=_template_seeds, runs=2_000, refusals=(UnicodeDecodeError,)),
    "body-json": FuzzTarget(
        check=partial(_answered, _choices),
        seeds=partial(json_seeds, "body-json"),
        runs=40_000,
        mutate=mutated_json,
        refusals=(ApiError,),
    ),
    "tokens-json": FuzzTarget(
        check=partial(_answered, _tokens),
        seeds=partial(json_seeds, "tokens-json"),
        runs=20_000,
        mutate=mutated_json,
        refusals=(ApiError, PromptRefused),
    ),
    "completion": FuzzTarget(
        check=check_completion, seeds=partial(json_seeds, "completion"), runs=20_000, mutate=mutated_json
    ),
    "chat": FuzzTarget(check=check_chat, seeds=partial(json_seeds, "chat"), runs=20_000, mutate=mutated_json),
    "address": FuzzTarget(
        check=check_address, seeds=_address_seeds, runs=10_000, refusals=(ValueError,), max_bytes=300
    ),
    "swarm-file": FuzzTarget(check=check_swarm_file, seeds=_swarm_seeds, runs=5_000),
}
