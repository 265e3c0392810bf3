"""Loading of a served model: refusals, names and engines."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from cosine_engine import zoo
from cosine_engine.base import PREFIX, Choice, Engine, Row
from cosine_engine.gguf.writing import write_gguf
from cosine_engine.load_options import LoadOptions
from cosine_engine.models import served as served_models
from cosine_engine.models.engine_kind import NGRAM
from cosine_engine.models.model_sizes import shared_tokens
from cosine_engine.models.served import ModelSource, ServedModel, load_served
from cosine_engine.openai.engine import ServerEngine
from cosine_engine.vocabulary import DraftVocabulary
from cosine_p2p.request.generation_config import read_eos
from cosine_p2p.text.target import read_target_facts
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError
from cosine_protocol.records import GenerationDefaults, Role
from cosine_protocol.request import Sampling
from tests.engine.openai.reciting_server import RecitingServer
from tests.engine.tiny_models import COMMON, VOCAB, build, tiny_llama

WORDS = {f"w{index}": index for index in range(VOCAB)}


@pytest.fixture(autouse=True)
def _own_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def save_tokenizer(folder: Path, words: dict[str, int]) -> None:
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "tiny-secret-folder"
    tiny_llama().save_pretrained(folder)
    return folder


@pytest.fixture
def target(weights: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "tiny-target"
    shutil.copytree(weights, folder)
    save_tokenizer(folder, WORDS)
    return folder


@pytest.fixture
def drafter(weights: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "tiny-drafter"
    shutil.copytree(weights, folder)
    return folder


def source_of(model: str | Path, target: str | Path | None = None) -> ModelSource:
    engine = LoadOptions(device="cpu", dtype="float32", threads=1)
    return ModelSource(model=str(model), target=str(target or model), engine=engine)


def served(role: Role, model: str | Path, target: str | Path | None = None) -> ServedModel:
    return load_served(source_of(model, target), role, lambda event, fields: None, measure_s=0.05)


def digest_of(folder: Path) -> bytes:
    facts = read_target_facts(folder)
    assert facts is not None
    return facts.digest()


def refused(role: Role, model: str | Path, target: str | Path | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        served(role, model, target)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_is_served_under_its_digest_and_never_under_its_path(target: Path) -> None:
    made = served(Role.VERIFIER, target)
    digest = digest_of(target)
    assert (made.names.facts.digest(), made.names.target_name) == (digest, digest.hex())
    assert made.names.model_name == "tiny-target"
    files = TokenizerFiles.read(target)
    assert files is not None and made.names.facts.tokenizer_digest == files.digest
    assert (made.engine.numerics, made.engine.vocab_tokens) == ("float32 deterministic", VOCAB)
    assert made.curve.seconds(1) > 0
    assert str(target.parent) not in f"{made.names.model_name} {made.names.target_name}"


def test_a_drafter_with_another_tokenizer_drafts_text(
    drafter: Path, target: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its vocabulary is the target's in reverse order."""
    save_tokenizer(drafter, {word: VOCAB - 1 - index for word, index in WORDS.items()})
    made = served(Role.DRAFTER, drafter, target)
    assert "its drafts are matched as text" in caplog.text
    assert (made.engine.numerics, made.engine.vocab_tokens) == ("float32 deterministic retokenized", VOCAB)
    assert made.engine.context_tokens < 256
    files = TokenizerFiles.read(target)
    assert files is not None and made.names.facts.tokenizer_digest == files.digest
    prompt = (3, 70, 140, 9)
    own = choices(
        served(Role.DRAFTER, drafter, drafter).engine, [VOCAB - 1 - token for token in prompt], Sampling()
    )
    assert choices(made.engine, prompt, Sampling()).candidates[0][0] == VOCAB - 1 - own.candidates[0][0]


def test_a_drafter_with_a_server_has_the_targets_sizes_and_loads_nothing(target: Path) -> None:
    with RecitingServer() as server:
        made = served(Role.DRAFTER, f"openai:{server.place}#m", target)
        assert isinstance(made.engine, ServerEngine)
        assert (made.engine.numerics, made.engine.vocab_tokens, made.engine.context_tokens) == ("none", VOCAB, 256)
        # Its address stays private.
        assert made.names.model_name == "m"
        assert made.curve.seconds(1) > 0
        assert "has no model 'n'" in refused(Role.DRAFTER, f"openai:{server.place}#n", target)


@pytest.mark.parametrize("role", Role)
def test_options_that_suit_no_model_are_refused_before_one_is_fetched(
    monkeypatch: pytest.MonkeyPatch, role: Role
) -> None:
    monkeypatch.setattr(served_models, "open_model", lambda name, emit: pytest.fail(f"{name} was fetched"))
    source = ModelSource(model="some/model", target="some/model", engine=LoadOptions(device="cpu", dtype="int3"))
    with pytest.raises(UsageError, match="'int3' is not a supported dtype"):
        load_served(source, role, lambda event, fields: None)


def test_what_is_not_a_model_or_has_no_tokenizer_is_refused(drafter: Path, tmp_path: Path) -> None:
    assert "no tokenizer" in refused(Role.VERIFIER, drafter)
    (tmp_path / "empty").mkdir()
    refused(Role.VERIFIER, tmp_path / "empty")
    refused(Role.DRAFTER, NGRAM, tmp_path / "empty")
    for name in ("zoo:nobody", "/no/such/folder"):
        assert name.removeprefix("zoo:") in refused(Role.VERIFIER, name)
        assert name.removeprefix("zoo:") in refused(Role.DRAFTER, "zoo:draft-code", name)


@pytest.mark.parametrize("content", ["{", '{"eos_token_id": "x"}'])
def test_end_tokens_that_cannot_be_read_are_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(UsageError, match=r"generation_config\.json cannot be read"):
        read_eos(tmp_path)


@pytest.mark.parametrize(
    ("generation", "config", "ends"),
    [
        ({}, {"eos_token_id": None}, ()),
        ({"eos_token_id": None}, {"eos_token_id": 5}, (5,)),
        ({"eos_token_id": -1}, {"eos_token_id": 5}, ()),
        ({}, {"eos_token_id": [-1, 5]}, (5,)),
        ({}, {"text_config": {"eos_token_id": [1, 106]}}, (1, 106)),
        ({}, {"eos_token_id": 2, "text_config": {"eos_token_id": 1}}, (2,)),
        ({"eos_token_id": [7]}, {"eos_token_id": 2, "text_config": {"eos_token_id": 1}}, (7,)),
    ],
)
def test_null_says_nothing_and_a_negative_id_that_nothing_ends_a_text(
    tmp_path: Path, generation: object, config: object, ends: tuple[int, ...]
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_eos(tmp_path) == ends


CHAT_CONFIG = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "repetition_penalty": 1.1, "num_beams": 2}


def test_a_verifier_publishes_the_generation_config_and_tells_it_in_a_sentence(target: Path) -> None:
    (target / "generation_config.json").write_text(json.dumps(CHAT_CONFIG))
    events: list[tuple[str, dict[str, object]]] = []
    made = load_served(source_of(target), Role.VERIFIER, lambda *event: events.append(event))
    assert made.names.facts.generation_defaults == GenerationDefaults(
        do_sample=True, temperature=0.7, top_p=0.8, repetition_penalty=1.1, not_honoured=("num_beams",)
    )
    told_in_order = ["generation_config", "loading", "testing", "computes", "loaded", "measuring"]
    assert [event for event, _ in events] == told_in_order
    assert dict(events)["computes"]["said"] == (
        "PyTorch, weights in float32, arithmetic in float32: texts are the same in every run"
    )
    assert dict(events)["testing"] == {"model": str(target)}
    (told,) = [fields for event, fields in events if event == "generation_config"]
    assert told["said"] == (
        "The model's generation config sets the default temperature 0.7, top_p 0.8, repetition_penalty 1.1. "
        "A swarm does not support its num_beams: texts differ from those of generate() in transformers."
    )


def test_a_gguf_drafter_may_have_a_reduced_vocabulary(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(zoo.folder("draft-code"), tmp_path / "reduced"))
    DraftVocabulary(tuple(range(1, 4096))).write(folder)
    write_gguf(folder, tmp_path / "drafter.gguf")
    made = served(Role.DRAFTER, tmp_path / "drafter.gguf", "zoo:target")
    assert (made.engine.vocab_tokens, made.engine.grammars) == (4096, None)


TOKENS = 180
"""Tokens of the target, whose embedding has `VOCAB` rows."""


def model(folder: Path, *, rows: int, tokens: int) -> Path:
    llama(rows).save_pretrained(folder)
    save_tokenizer(folder, {f"w{token}": token for token in range(tokens)})
    return folder


def llama(rows: int) -> Any:
    return build(tf.LlamaConfig(**COMMON | {"vocab_size": rows}))


@pytest.fixture
def padded(tmp_path: Path) -> Path:
    return model(tmp_path / "target", rows=VOCAB, tokens=TOKENS)


def choices(engine: Engine, prompt: Sequence[int], sampling: Sampling) -> Choice:
    sequence = engine.open(sampling=sampling, prompt_tokens=len(prompt))
    nodes = tuple(range(len(prompt)))
    row = Row(sequence, tuple(prompt), nodes, (PREFIX, *nodes[:-1]), scored_from=len(prompt) - 1, candidates=VOCAB)
    (choice,) = engine.forward([row])[0].choices
    engine.release(sequence)
    return choice


def test_rows_beyond_the_tokens_change_no_draft(padded: Path, tmp_path: Path) -> None:
    """Greedily, sampled, and with a penalty."""
    plain, wide = llama(TOKENS), llama(VOCAB + 56)
    state = {
        name: torch.cat([weight, 9 * weight[:76]]) if name.startswith(("model.embed", "lm_head")) else weight
        for name, weight in plain.state_dict().items()
    }
    wide.load_state_dict(state)
    engines = []
    for name, one in {"plain": plain, "wide": wide}.items():
        one.save_pretrained(tmp_path / name)
        save_tokenizer(tmp_path / name, {f"w{token}": token for token in range(TOKENS)})
        engines.append(served(Role.DRAFTER, tmp_path / name, padded).engine)
    for sampling in (
        Sampling(),
        Sampling(temperature=0.9, seed=7),
        Sampling(temperature=1.3, top_p=0.8, seed=1),
        Sampling(repetition_penalty=1.3),
    ):
        first, second = (choices(engine, (5, 9, 70), sampling) for engine in engines)
        assert first.token == second.token
        assert [token for token, _ in first.candidates] == [token for token, _ in second.candidates]
        for (_, one), (_, other) in zip(first.candidates, second.candidates, strict=True):
            assert one == pytest.approx(other, abs=1e-5)


def test_a_drafter_with_fewer_rows_than_tokens_is_matched_as_text(padded: Path, tmp_path: Path) -> None:
    made = served(Role.DRAFTER, model(tmp_path / "drafter", rows=TOKENS - 20, tokens=TOKENS - 20), padded)
    assert made.engine.numerics == "float32 deterministic retokenized"


@pytest.mark.parametrize(
    ("own", "target", "shared"),
    [
        ({"a": 0, "b": 1}, {"a": 0, "b": 1}, 2),
        ({"a": 0, "b": 1}, {"a": 0, "b": 1, "c": 2}, 2),
        ({"a": 0, "b": 1, "c": 2}, {"a": 0, "b": 1}, 2),
        ({"a": 0, "b": 1, "[PAD2]": 2}, {"a": 0, "b": 1, "c": 2, "d": 3}, 2),
        ({"a": 0, "b": 1, "d": 3}, {"a": 0, "b": 1, "[PAD2]": 2, "d": 3}, 4),
        ({"a": 1, "b": 0}, {"a": 0, "b": 1}, None),
        ({"a": 0, "x": 1}, {"a": 0, "b": 1}, None),
        ({"x": 5}, {"a": 0}, None),
        ({}, {"a": 0}, None),
    ],
)
def test_ids_are_shared_where_all_that_both_know_mean_the_same(
    own: dict[str, int], target: dict[str, int], shared: int | None
) -> None:
    assert shared_tokens(own, target) == shared
