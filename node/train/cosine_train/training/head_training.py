"""The making of a draft head: asks the target, chooses a vocabulary, trains, measures and writes the folder."""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from cosine_engine.eagle.draft_head import EagleHead, HeadShape
from cosine_engine.vocabulary import FILE_NAME as VOCABULARY_FILE
from cosine_engine.vocabulary import DraftVocabulary
from cosine_protocol.errors import UsageError
from cosine_train.training.answers import Answer, Say, most_frequent
from cosine_train.training.card import head_card
from cosine_train.training.drafter_training import CHECKPOINT, DrafterSettings, finish, prepare, training_record
from cosine_train.training.head_examples import HeadExamples
from cosine_train.training.head_steps import TargetView, head_loss, right_steps
from cosine_train.training.loop import train
from cosine_train.training.target_source import LocalSource, TargetSource

MEASURED_STEPS: Final = 5
"""Tokens of a draft with measured acceptance rates."""
USUAL_TEXT_TOKENS: Final = 128
"""Tokens of a batch per row, for answers of any length."""
NEW_WEIGHT_DEVIATION: Final = 0.01
"""Standard deviation of new weights, small compared with those of the target's last layer."""


def train_head(settings: DrafterSettings, source: TargetSource, say: Say) -> dict[str, Any]:
    """Make the folder of a draft head, resuming an interrupted training; return its record. Raises `UsageError`."""
    if not isinstance(source, LocalSource):
        raise UsageError("A draft head learns from a target's layers: it cannot be trained through a swarm.")
    device, learned, held_out = prepare(settings, source, say, name="head")
    vocabulary = _vocabulary(settings, learned)
    model = source.loaded()
    head = _beginning(settings, model, vocabulary).to(device)
    examples = HeadExamples(
        learned,
        vocabulary,
        tokens=settings.batch_rows * USUAL_TEXT_TOKENS,
        seed=settings.seed,
        device=str(device),
    )
    say(f"{len(learned)} answers; the head knows {len(vocabulary.target_ids)} tokens")
    view = TargetView(model, head.shape.feature_layers)
    run = train(
        head.train(),
        examples.batch,
        lambda own, batch: head_loss(own, view, batch),
        settings.plan,
        device=device.type,
        checkpoint=settings.out / CHECKPOINT,
        say=say,
    )
    head.save(settings.out)
    say("measuring along held-out answers")
    head = head.to(model.dtype).eval()
    record = training_record(settings, head, vocabulary, learned, run, device=device.type)
    record["method"] = "cross-entropy with the target's distribution, its own guesses fed back"
    record["feature_layers"] = list(head.shape.feature_layers)
    record["agreement"] = measured_steps(head, view, held_out)
    finish(settings.out, record, head_card(settings.out.name, record))
    # The weights contain it.
    (settings.out / VOCABULARY_FILE).unlink(missing_ok=True)
    return record


def measured_steps(
    head: EagleHead, view: TargetView, answers: Sequence[Answer]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Best guesses that were right where all before were, for each step of a draft, by domain and temperature."""
    measured: dict[str, dict[str, dict[str, Any]]] = {}
    for temperature, domain in sorted({(answer.sampling.temperature, answer.domain) for answer in answers}):
        along = [one for one in answers if (one.sampling.temperature, one.domain) == (temperature, domain)]
        counts = [right_steps(head, view, one.prompt, one.tokens, MEASURED_STEPS) for one in along]
        steps = [tuple(map(sum, zip(*step, strict=True))) for step in zip(*counts, strict=True)]
        shares = [round(right / asked, 3) if asked else 0.0 for right, asked in steps]
        measured.setdefault(domain, {})[f"{temperature:g}"] = {
            "steps": shares,
            "tokens": sum(len(one.tokens) for one in along),
        }
    return measured


def _vocabulary(settings: DrafterSettings, learned: Sequence[Answer]) -> DraftVocabulary:
    """Return the vocabulary of the initial head or of an interrupted training, or a new one."""
    if settings.init is not None:
        return EagleHead.load(settings.init, target_layers=0).vocabulary
    # The checkpoint of an interrupted training requires its vocabulary.
    known = DraftVocabulary.read(settings.out)
    if known is not None:
        return known
    vocabulary = most_frequent(learned, tokens=settings.known_tokens, shares=settings.shares)
    vocabulary.write(settings.out)
    return vocabulary


def _beginning(settings: DrafterSettings, model: Any, vocabulary: DraftVocabulary) -> EagleHead:
    """Return the initial head, in float32."""
    layers = model.config.get_text_config().num_hidden_layers
    if settings.init is not None:
        return EagleHead.load(settings.init, target_layers=layers).float()
    torch.manual_seed(settings.seed)
    return new_head(model, vocabulary)


def new_head(model: Any, vocabulary: DraftVocabulary, feature_layers: Sequence[int] | None = None) -> EagleHead:
    """Return a head in float32 that begins as the target's last layer and output, where shapes agree.

    Unless layers are given, its features are those at a third, at two thirds and at the end of the target. Raises
    `UsageError`.
    """
    config = model.config.get_text_config()
    layers: int = config.num_hidden_layers
    rope = getattr(config, "rope_parameters", None) or {}
    width: int = config.hidden_size
    try:
        shape = HeadShape(
            width=width,
            target_width=width,
            heads=config.num_attention_heads,
            key_heads=config.num_key_value_heads,
            head_width=getattr(config, "head_dim", None) or width // config.num_attention_heads,
            feed_forward_width=config.intermediate_size,
            feature_layers=tuple(feature_layers or (layers // 3, 2 * layers // 3, layers)),
            draft_tokens=len(vocabulary.target_ids),
            vocab_tokens=config.vocab_size,
            rope_theta=float(rope.get("rope_theta", 10_000.0)),
            norm_eps=float(config.rms_norm_eps),
        )
    except AttributeError as error:
        raise UsageError(f"A draft head cannot be made for a '{config.model_type}' model: {error}.") from None
    head = EagleHead(shape, vocabulary)
    body = model.get_decoder()
    state = {name: weight.float().cpu() for name, weight in body.layers[-1].state_dict().items()}
    output = model.get_output_embeddings().weight.detach().float().cpu()
    with torch.no_grad():
        for name, weight in head.midlayer.named_parameters():
            _begin_weight(weight, state.get(name), width)
        _begin_weight(head.midlayer.hidden_norm.weight, state.get("input_layernorm.weight"), width)
        head.fc.weight.normal_(0, NEW_WEIGHT_DEVIATION)
        head.fc.weight[:, -width:] += torch.eye(width)
        _begin_weight(head.norm.weight, body.norm.weight.detach().float().cpu(), width)
        head.lm_head.weight.copy_(output[torch.tensor(vocabulary.target_ids)])
    return head


def _begin_weight(weight: Tensor, known: Tensor | None, width: int) -> None:
    """Initialise a weight by the target's; of a wider weight only the part that reads features."""
    if known is None:
        return
    if weight.shape == known.shape:
        weight.copy_(known)
    elif weight.dim() == 2 and weight.shape == (len(known), width + known.shape[1]):
        weight.normal_(0, NEW_WEIGHT_DEVIATION)
        weight[:, width:] = known
