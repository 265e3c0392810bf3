"""The whole recipe on a toy corpus: texts in, a family of loadable models, measured and with cards, out."""

import json
import lzma
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from cosine_lab.training import cards, corpus, evaluate, generate_text, pack, train
from cosine_lab.training.evaluate import Scored, expected_tokens, fusion_hits, hit_rate, tokens_per_verification
from cosine_lab.training.stream import Source, TokenMix
from cosine_node import zoo
from cosine_protocol.errors import UsageError
from cosine_train.training.loop import Training

VOCABULARY = 400
Result = TypeVar("Result")
SMALL = f"--sequence-tokens 32 --batch-rows 8 --vocabulary-size {VOCABULARY} --tokens {100 * 8 * 32} --device cpu"


@dataclass(frozen=True, slots=True)
class Made:
    """The folders of one finished run, and what its two trainings reported."""

    corpora: Path
    work: Path
    family: Path
    target: Training
    drafter: Training


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("training")
    corpora, work, family = root / "corpora", root / "work", root / "family"
    _write_corpora(corpora)
    _call(corpus.main, f"{corpora} {work} --domains code,math --vocabulary-size {VOCABULARY}")
    target = _train_target(work, "target")
    sizes = "--rows 8 --batch-rows 4 --prompt-tokens 8 --new-tokens 24"
    _call(generate_text.main, f"{work} {work}/models/target --domains code {sizes} --device cpu")
    drafter = _train_drafter(work)
    _call(pack.main, f"{work} {family}")
    sizes = "--domains code --prompts 2 --new-tokens 8"
    _call(evaluate.main, f"{corpora} {family} --out {family}/eval.json {sizes} --device cpu")
    _call(cards.main, f"{family} --manifest {corpora}/MANIFEST.json")
    return Made(corpora, work, family, target, drafter)


@pytest.mark.thorough
def test_losses_fall(made: Made) -> None:
    for outcome in (made.target, made.drafter):
        assert outcome.losses[-1] < 0.8 * outcome.losses[0]


@pytest.mark.thorough
def test_training_repeats_exactly(made: Made) -> None:
    again = _train_target(made.work, "again")
    assert again.losses == made.target.losses
    first = load_file(made.work / "models/target/model.safetensors")
    second = load_file(made.work / "models/again/model.safetensors")
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.thorough
def test_generated_text_has_the_length_asked_for(made: Made) -> None:
    tokens = corpus.read_tokens(corpus.token_file(made.work, "code", "generated"))
    assert len(tokens) == 8 * (8 + 24)
    assert tokens.max() < VOCABULARY


@pytest.mark.thorough
def test_packed_models_load_with_transformers(made: Made) -> None:
    for name in ("target", "draft-code"):
        model = AutoModelForCausalLM.from_pretrained(made.family / name)
        assert model.dtype == torch.bfloat16
        assert model.config.use_cache
    tokenizer = AutoTokenizer.from_pretrained(made.family / "target")
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|user|>", "<|assistant|>"]) == [0, 1, 2]
    text = "total = 12345 + é"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.thorough
def test_cards_carry_the_measured_figures(made: Made) -> None:
    measured = json.loads((made.family / "eval.json").read_text("utf-8"))
    card = (made.family / "draft-code" / "README.md").read_text("utf-8")
    assert f"| code | {measured['code']['greedy']['code']:g} |" in card
    assert "example/arithmetic" in card
    assert str(made.work) not in card


@pytest.mark.thorough
def test_a_domain_without_a_drafter_is_not_measured(made: Made) -> None:
    with pytest.raises(SystemExit, match="draft-math"):
        _call(evaluate.main, f"{made.corpora} {made.family} --out {made.work}/eval.json --domains math")


def test_chat_is_rendered_with_an_end_after_each_answer() -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert corpus.render({"messages": turns}) == "<|endoftext|><|user|>a<|assistant|>b<|endoftext|>"
    assert corpus.render({"text": "c"}) == "<|endoftext|>c<|endoftext|>"


def test_shares_are_read_from_the_command_line() -> None:
    assert train.parse_shares("code:0.5,math") == {"code": 0.5, "math": 1.0}
    assert sum(train.parse_shares("all").values()) == pytest.approx(1)


def test_a_run_needs_a_budget(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--tokens"):
        train.main(["target", str(tmp_path), "--out", str(tmp_path / "model")])


@pytest.mark.thorough
def test_batches_repeat_with_their_seed(made: Made) -> None:
    source = Source(corpus.read_tokens(corpus.token_file(made.work, "code", "train")), 1.0)
    first, second = (TokenMix([source], 16, 5, "cpu").batch(4) for _ in range(2))
    assert first.shape == (4, 17)
    assert torch.equal(first, second)


def _call(main: Callable[[list[str]], Result], arguments: str) -> Result:
    return main(arguments.split())


def _train_target(work: Path, name: str) -> Training:
    shape = "--layers 2 --width 64 --mix code,math --warmup-steps 10"
    return _call(train.main, f"target {work} --out {work}/models/{name} {shape} {SMALL}")


def _train_drafter(work: Path) -> Training:
    taught = f"--teacher {work}/models/target --generated {work}/tokens/code.generated.npy:0.3"
    shape = "--layers 1 --width 32 --mix code --learning-rate 5e-3"
    return _call(train.main, f"draft {work} --out {work}/models/draft-code {taught} {shape} {SMALL}")


def _write_corpora(folder: Path) -> None:
    folder.mkdir()
    chooser = random.Random(0)
    for split, count in (("train", 300), ("dev", 60)):
        _write(folder / f"code.{split}.jsonl.xz", [_code(chooser) for _ in range(count)])
        _write(folder / f"math.{split}.jsonl.xz", [_sum(chooser) for _ in range(count)])
    entry = {
        "domain": "code",
        "source": "arithmetic",
        "repo": "example/arithmetic",
        "commit": "0" * 40,
        "licence": "MIT",
        "paths": ["*.py"],
        "note": "",
        "records": {"train": 300, "heldout": 60},
    }
    (folder / "MANIFEST.json").write_text(json.dumps([entry]), "utf-8")


def _write(path: Path, records: list[dict[str, object]]) -> None:
    with lzma.open(path, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(record) + "\n" for record in records)


def _code(chooser: random.Random) -> dict[str, object]:
    name = chooser.choice(["add", "scale", "shift"])
    body = "".join(f"    value = value + {chooser.randint(0, 99)}\n" for _ in range(12))
    return {"text": f"def {name}(value: int) -> int:\n{body}    return value\n"}


def _sum(chooser: random.Random) -> dict[str, object]:
    left, right = chooser.randint(0, 99), chooser.randint(0, 99)
    answer = f"{left} + {right} = {left + right}. The answer is {left + right}."
    return {
        "messages": [
            {"role": "user", "content": f"What is {left} plus {right}?"},
            {"role": "assistant", "content": answer},
        ]
    }


def test_hit_rate_weighs_by_tokens() -> None:
    assert hit_rate([[True], [False, False, True]]) == 0.5


@pytest.mark.parametrize(
    ("hits", "chain", "tokens"),
    [
        ([True] * 10, 4, 5.0),
        ([False] * 6, 4, 1.0),
        ([True, False, True, True, False], 4, 2.5),
        ([True, True, True, True], 1, 2.0),
    ],
)
def test_tokens_per_verification(hits: list[bool], chain: int, tokens: float) -> None:
    assert tokens_per_verification([hits], chain) == tokens


def test_expected_tokens_multiplies_acceptances() -> None:
    assert expected_tokens([[1.0, 1.0]], 2) == pytest.approx((3 + 2) / 2)
    assert expected_tokens([[0.5, 0.0]], 4) == pytest.approx((1.5 + 1.0) / 2)


def test_fusion_bounds_contain_the_expert() -> None:
    scored = Scored(
        written=torch.tensor([0, 1, 2]),
        guesses={
            "code": torch.tensor([[0.6, 0.4, 0.0], [0.6, 0.4, 0.0], [0.5, 0.3, 0.2]]),
            "math": torch.tensor([[0.1, 0.9, 0.0], [0.1, 0.9, 0.0], [0.3, 0.4, 0.3]]),
        },
    )
    hits = fusion_hits_of_two(scored)
    assert hits["any_spec"] == [True, True, False]
    assert hits["maxconf_spec"] == [False, True, False]
    assert hits["vote_spec"] == [False, True, False]
    assert hits["tree2_expert"] == [True, True, False]


def fusion_hits_of_two(scored: Scored) -> dict[str, list[bool]]:
    padded = {name: torch.nn.functional.pad(guess, (0, 3)) for name, guess in scored.guesses.items()}
    return fusion_hits(Scored(scored.written, padded), "code", ["code", "math"])


def test_corpus_prompts_are_cut_before_an_answer(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(zoo.tokenizer_folder() / "tokenizer.json"))
    talk = {"messages": [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Five."}]}
    records = [talk, {"text": "too short"}, {"text": "one two three " * 60}]
    with pytest.raises(UsageError, match=r"math\.dev\.jsonl\.xz"):
        corpus.corpus_prompts(tmp_path, "math", 1, 0, tokenizer)
    with lzma.open(tmp_path / "math.dev.jsonl.xz", "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(record) + "\n" for record in records)
    found = corpus.corpus_prompts(tmp_path, "math", 9, 0, tokenizer)
    texts = sorted(tokenizer.decode(token_ids, skip_special_tokens=False) for token_ids in found)
    assert texts[0] == "<|endoftext|><|user|>How many?<|assistant|>"
    assert texts[1].startswith("<|endoftext|>one two three one")
    assert found == corpus.corpus_prompts(tmp_path, "math", 9, 0, tokenizer)
    assert len(corpus.corpus_prompts(tmp_path, "math", 1, 0, tokenizer)) == 1
