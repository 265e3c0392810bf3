"""Tests of target digests, and of the digests of names."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from cosine_p2p.request.generation_config import read_eos
from cosine_p2p.request.model_defaults import KNOWN_TARGETS, apply_defaults, default_sampling
from cosine_p2p.request.options import TEXT_DEFAULTS
from cosine_p2p.text.held_weights import HeldWeights
from cosine_p2p.text.target import choose_digest, parse_target, read_ends, read_target_facts
from cosine_protocol.errors import UsageError
from cosine_protocol.records import GenerationDefaults
from tests.cosine_p2p.gguf_samples import write_sample
from tests.cosine_p2p.samples import identity_of, record_of

SMOL = KNOWN_TARGETS["zoo:smol-target"]
SAMPLED = {**TEXT_DEFAULTS, "temperature": 1.0}
Tensors = dict[str, tuple[str, list[int], bytes]]
WEIGHTS: Tensors = {"a": ("F32", [2], b"\x00" * 8), "b": ("BF16", [3], b"\x01\x02\x03\x04\x05\x06")}


def write_safetensors(file: Path, tensors: Tensors, metadata: dict[str, str] | None = None) -> None:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text('{"hidden_size": 4}')
    (made / "tokenizer.json").write_text("{}")
    (made / "chat_template.jinja").write_text("{{ messages }}")
    write_safetensors(made / "model.safetensors", WEIGHTS)
    return made


def digest_of(folder: Path) -> bytes:
    return HeldWeights.read(folder, cache_folder=folder.parent / "cache").content_digest


def test_sharding_order_and_metadata_do_not_matter(folder: Path) -> None:
    whole = digest_of(folder)
    (folder / "model.safetensors").unlink()
    write_safetensors(folder / "model-00001-of-00002.safetensors", {"b": WEIGHTS["b"]}, {"format": "pt"})
    write_safetensors(folder / "model-00002-of-00002.safetensors", {"a": WEIGHTS["a"]})
    assert digest_of(folder) == whole


@pytest.mark.parametrize(
    ("stated", "eos_token", "ends"),
    [([7, 3], "<end>", (7, 3)), (7, {"content": "word"}, (7, 5)), (7, "unknown", (7,)), (None, "<end>", (3,))],
)
def test_the_tokenizer_names_an_end(stated: object, eos_token: object, ends: tuple[int, ...], folder: Path) -> None:
    tokenizer = {"added_tokens": [{"id": 3, "content": "<end>"}], "model": {"vocab": {"word": 5}}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos_token}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stated}))
    assert read_ends(folder) == ends
    facts = read_target_facts(folder)
    assert facts is not None and facts.eos == ends
    (folder / "tokenizer.json").write_text("[]")
    assert read_ends(folder) == (() if stated is None else tuple(read_eos(folder)))


def test_a_gguf_file_is_identified_by_its_tensors_and_what_changes_texts(tmp_path: Path) -> None:
    def digest(name: str, metadata: dict[str, Any], weights: str = "Q8_0") -> bytes:
        file = write_sample(tmp_path / f"{name}.gguf", metadata, weights=weights)
        return HeldWeights.read(file, cache_folder=tmp_path / "cache").content_digest

    first = digest("a", {"general.name": "one"})
    assert first == digest("b", {"general.name": "two"})
    assert len({first, digest("c", {"llama.context_length": 9}), digest("d", {}, weights="F16")}) == 3


def test_parse_target() -> None:
    digest = bytes(range(32))
    assert parse_target("org/model") == ("org/model", None)
    assert parse_target(f"org/model@{digest.hex()}") == ("org/model", digest)
    with pytest.raises(UsageError, match="64 hex digits"):
        parse_target("org/model@main")


def test_the_first_digest_is_pinned_and_of_several_new_ones_that_of_a_clear_majority(tmp_path: Path) -> None:
    pins, one, two = tmp_path / "pins.json", b"\x01" * 32, b"\x02" * 32
    with pytest.raises(UsageError, match=f"{one.hex()}, {two.hex()}"):
        choose_digest("m", {two: 1, one: 1}, pins)
    assert not pins.exists()
    assert choose_digest("m", {one: 2, two: 1}, pins) == one
    choose_digest("other", {two: 1}, pins)
    with pytest.raises(UsageError, match=one.hex()):
        choose_digest("m", {two: 1}, pins)
    # Later majorities change nothing.
    assert choose_digest("m", {two: 9, one: 1}, pins) == one


def test_damaged_pins_are_not_overwritten(tmp_path: Path) -> None:
    pins = tmp_path / "pins.json"
    for content in ("{", "[1]", '{"m": 3}', '{"m": "zz"}', "null"):
        pins.write_text(content)
        with pytest.raises(UsageError, match="damaged"):
            choose_digest("m", {b"\x01" * 32: 1}, pins)
        assert pins.read_text() == content


def test_nobody_stands_for_an_embedded_target_under_its_name(tmp_path: Path) -> None:
    pins, liar = tmp_path / "pins.json", b"\x02" * 32
    embedded = KNOWN_TARGETS["zoo:target"]
    assert choose_digest("zoo:target", {embedded: 1, liar: 99}, pins) == embedded
    with pytest.raises(UsageError, match=f"zoo:target is {embedded.hex()} in this version"):
        choose_digest("zoo:target", {liar: 99}, pins)
    assert not pins.exists()


@pytest.mark.parametrize(
    ("digest", "asked", "otherwise", "published", "options"),
    [
        (SMOL, {}, SAMPLED, None, {"temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.1}),
        (SMOL, {"top_p": 0.5}, SAMPLED, None, {"temperature": 0.2, "repetition_penalty": 1.1}),
        (SMOL, {"temperature": 0.0}, SAMPLED, None, {}),
        (SMOL, {}, SAMPLED, GenerationDefaults(temperature=0.7), {"temperature": 0.7}),
        (bytes(32), {}, SAMPLED, None, {}),
    ],
)
def test_a_shipped_target_has_recommended_sampling(
    digest: bytes, asked: Any, otherwise: Any, published: GenerationDefaults | None, options: dict[str, float]
) -> None:
    verifier = record_of(identity_of(1), now_s=0.0, target_digest=digest, generation_defaults=published)
    found = default_sampling(verifier, asked=asked, otherwise=otherwise)
    assert apply_defaults(found, asked=asked, otherwise=otherwise).options == options
