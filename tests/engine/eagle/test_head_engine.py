"""A draft head: its folder, and its engine, which equals the head itself for chains and trees."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cosine_engine.base import Row, RowResult
from cosine_engine.blocks.held_linear import hold
from cosine_engine.compiled import layers
from cosine_engine.eagle.draft_head import EagleHead, HeadShape
from cosine_engine.eagle.head_engine import HeadEngine
from cosine_engine.forward.pass_features import KeptFeatures
from cosine_engine.models.home_model import is_eagle_head
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from cosine_train.training.head_steps import unrolled
from tests.engine.eagle.small_head import (
    FEATURE_LAYERS,
    NORMED_SHAPE,
    SHAPE,
    VOCABULARY,
    embedding_of,
    made_of,
    random_head,
)
from tests.engine.tiny_models import VOCAB, tiny_llama

TEXT = [random.Random(7).randrange(VOCAB) for _ in range(24)]
TARGET = tiny_llama()
HEAD = random_head()


def head_engine(head: EagleHead = HEAD) -> HeadEngine:
    return HeadEngine(head, embedding_of(TARGET), pool_tokens=256)


def kept(features: torch.Tensor) -> KeptFeatures:
    return KeptFeatures(features, range(len(features)))


def read_text(engine: HeadEngine, *, first: int = 1, sampling: Sampling | None = None) -> tuple[int, RowResult]:
    """Feed the text from the token `first` on with the target's activations of the tokens before."""
    tokens = TEXT[first:]
    sequence = engine.open(sampling=sampling or Sampling(), prompt_tokens=len(tokens))
    seen = kept(made_of(TEXT)[first - 1 : -1])
    (result,) = engine.forward([replace(Row.chain(sequence, tokens), candidates=5, activations=seen)])
    return sequence, result


SHAPES = pytest.mark.parametrize("shape", [SHAPE, NORMED_SHAPE], ids=["EAGLE-3", "EAGLE 3.1"])


def test_what_a_target_tells_is_what_enters_its_layers() -> None:
    hidden = TARGET(input_ids=torch.tensor([TEXT]), output_hidden_states=True).hidden_states
    body, last = TARGET.model, []
    hook = body.norm.register_forward_pre_hook(lambda _, args: last.append(args[0]))
    TARGET(input_ids=torch.tensor([TEXT]))
    hook.remove()
    expected = torch.cat([hidden[0], hidden[1], last[0]], -1)[0]
    assert torch.allclose(made_of(TEXT), expected, atol=1e-5)


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + SHAPE.norm_eps).sqrt() * weight


@torch.inference_mode()
def test_the_norms_are_those_of_each_captured_layer_and_of_what_is_fed_back() -> None:
    head, plain = random_head(NORMED_SHAPE), random_head()
    plain.load_state_dict({name: each for name, each in head.state_dict().items() if "fc_norm" not in name})
    seen, output = made_of(TEXT), torch.randn(3, SHAPE.width)
    layers = [
        normed(each, weight) for each, weight in zip(seen.chunk(3, -1), head.fc_norm.parameters(), strict=True)
    ]
    torch.testing.assert_close(head.fuse(seen), plain.fuse(torch.cat(layers, -1)))
    feature = head.fed_back(output)
    torch.testing.assert_close(feature, normed(output, head.norm.weight))
    torch.testing.assert_close(head.logits(feature), plain.logits(output))
    assert plain.fed_back(output) is output


@SHAPES
@torch.inference_mode()
def test_drafts_give_the_further_steps_of_training(shape: HeadShape) -> None:
    head = random_head(shape)
    engine = head_engine(head)
    embedded = torch.nn.functional.embedding(torch.tensor([TEXT]), embedding_of(TARGET))
    seen = made_of(TEXT)[None]
    steps = list(unrolled(head, embedded, seen, 4))
    anchor = 15
    tokens = TEXT[1 : anchor + 2]
    sequence = engine.open(sampling=Sampling(), prompt_tokens=len(tokens))
    row = replace(Row.chain(sequence, tokens), activations=kept(made_of(TEXT)[: len(tokens)]))
    drafted = [engine.forward([row])[0].choices[-1].token]
    for step in (1, 2, 3):
        name = len(tokens) + step
        parent = len(tokens) - 1 if step == 1 else name - 1
        row = Row(sequence, (TEXT[anchor + 1 + step],), (name,), (parent,))
        drafted.append(engine.forward([row])[0].choices[-1].token)
    best = [int(head.logits(output[0, anchor]).argmax()) for output in steps]
    assert drafted == [VOCABULARY.target_ids[own] for own in best]


@SHAPES
@pytest.mark.parametrize("threads", [1, 2])
def test_a_compiled_head_drafts_what_its_modules_do(
    threads: int, shape: HeadShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "threads_for", lambda weights, most: threads)
    head = random_head(shape)
    hold(head, "float16")
    compiled, plain = (HeadEngine(head, embedding_of(TARGET), pool_tokens=256) for _ in range(2))
    assert compiled._compiled is not None
    plain._compiled = None
    for engine in (compiled, plain):
        # A text, then a tree below its last token.
        sequence, _ = read_text(engine)
        last = len(TEXT) - 2
        tree = Row(sequence, (7, 9, 11, 13), (50, 51, 52, 53), (last, last, 50, 51))
        engine.forward([replace(tree, candidates=5)])
    torch.testing.assert_close(compiled._outputs, plain._outputs, rtol=1e-4, atol=1e-5)
    results = [read_text(engine)[1].choices[-1] for engine in (compiled, plain)]
    assert results[0].token == results[1].token


def test_a_branch_is_drafted_as_if_it_were_alone() -> None:
    engine = head_engine()
    sequence, _ = read_text(engine)
    last = len(TEXT) - 2
    siblings = Row(sequence, (5, 9), (100, 101), (last, last), candidates=5)
    together = engine.forward([siblings])[0].choices
    deeper = engine.forward([Row(sequence, (11,), (102,), (101,), candidates=5)])[0].choices
    engine = head_engine()
    sequence, _ = read_text(engine)
    rows = [Row(sequence, (9,), (100,), (last,)), Row(sequence, (11,), (101,), (100,))]
    alone = [engine.forward([row])[0].choices[0].token for row in rows]
    assert alone == [together[1].token, deeper[0].token]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=3, repetition_penalty=1.3)])
def test_only_tokens_that_it_knows_are_drafted(sampling: Sampling) -> None:
    _, result = read_text(head_engine(), sampling=sampling)
    drafted = {token for choice in result.choices for token, _ in choice.candidates}
    assert drafted <= set(VOCABULARY.target_ids)
    assert all(choice.token == choice.candidates[0][0] for choice in result.choices)


@pytest.mark.parametrize("known", [1 + VOCABULARY.target_ids[3], VOCAB])
def test_a_head_drafts_no_row_without_a_token(known: int) -> None:
    engine = HeadEngine(HEAD, embedding_of(TARGET), pool_tokens=256, known_tokens=known)
    _, result = read_text(engine)
    drafted = {token for choice in result.choices for token, _ in choice.candidates}
    assert max(drafted) < known
    assert {len(choice.candidates) for choice in result.choices} == {
        min(5, sum(t < known for t in VOCABULARY.target_ids))
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random_head().save(tmp_path)
    return tmp_path


@SHAPES
def test_a_head_is_read_as_it_was_written(shape: HeadShape, tmp_path: Path) -> None:
    random_head(shape).save(tmp_path)
    head = EagleHead.load(tmp_path, target_layers=2)
    assert is_eagle_head(tmp_path)
    assert head.shape == shape
    assert head.vocabulary.target_ids == VOCABULARY.target_ids
    written = {name: weight.to(torch.bfloat16) for name, weight in random_head(shape).state_dict().items()}
    assert all(torch.equal(weight.to(torch.bfloat16), written[name]) for name, weight in head.state_dict().items())


def test_names_are_those_of_published_heads(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    layer = {f"midlayer.self_attn.{each}_proj.weight" for each in "qkvo"}
    layer |= {f"midlayer.mlp.{each}_proj.weight" for each in ("gate", "up", "down")}
    layer |= {f"midlayer.{each}.weight" for each in ("hidden_norm", "input_layernorm", "post_attention_layernorm")}
    assert stored.keys() == layer | {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"}
    norms = {f"fc_norm.{place}.weight" for place in range(len(FEATURE_LAYERS))}
    assert random_head(NORMED_SHAPE).state_dict().keys() - random_head().state_dict().keys() == norms
    # d2t is added to a drafted id; t2d marks the target's tokens that may be drafted.
    drafted = torch.arange(SHAPE.draft_tokens) + stored["d2t"]
    assert tuple(drafted.tolist()) == VOCABULARY.target_ids
    assert stored["t2d"].nonzero()[:, 0].tolist() == drafted.tolist()


def test_a_configuration_that_names_no_layers_means_those_of_the_authors() -> None:
    published = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 1,
        "vocab_size": 128256,
        "draft_vocab_size": 32000,
        "rms_norm_eps": 1e-05,
    }
    shape = HeadShape.read(published, target_layers=32)
    assert shape.feature_layers == (2, 16, 29)
    assert (shape.head_width, shape.target_width, shape.rope_theta) == (128, 4096, 10_000.0)


def test_a_head_that_repeats_the_embedding_is_read(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["embed_tokens.weight"] = torch.zeros(SHAPE.vocab_tokens, SHAPE.width)
    save_file(weights, folder / "model.safetensors")
    assert EagleHead.load(folder, target_layers=2).shape == SHAPE


@pytest.mark.parametrize(
    "changed",
    [
        {"hidden_size": "wide"},
        {"intermediate_size": None},
        {"hidden_size": 32},
        {"fc_norm": True},
        {"norm_before_residual": True},
    ],
)
def test_a_folder_without_a_head_or_with_one_that_does_not_fit_its_configuration_is_refused(
    folder: Path, changed: dict[str, object]
) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | changed), "utf-8")
    with pytest.raises(UsageError):
        EagleHead.load(folder, target_layers=2)
    assert not is_eagle_head(folder.parent)
    with pytest.raises(UsageError, match="no EAGLE-3 head"):
        EagleHead.load(folder.parent, target_layers=2)


@pytest.mark.parametrize(
    ("layers", "width", "tokens"),
    [
        (1, SHAPE.width, SHAPE.vocab_tokens),
        (2, 32, SHAPE.vocab_tokens),
        (2, SHAPE.width, SHAPE.vocab_tokens + 1),
    ],
)
def test_a_head_of_another_target_is_refused(layers: int, width: int, tokens: int) -> None:
    with pytest.raises(UsageError, match="head"):
        SHAPE.check(target_layers=layers, width=width, tokens=tokens)
