"""A target as the training of a drafter needs it: its tokenizer, its answers, and a drafter to begin with."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cosine_node.engine.torch.loading import load_model, read_config, resolve_device
from cosine_node.engine.vocabulary import DraftVocabulary
from cosine_node.models.model import fetch_folder
from cosine_node.training.answers import Answer, AnswerStore
from cosine_node.training.local_target import LocalTarget, TargetPrompt
from cosine_node.training.new_drafter import drafter_of
from cosine_node.training.questions import Question, in_turns
from cosine_node.training.swarm_target import SwarmTarget
from cosine_p2p.client import Join
from cosine_p2p.request.generation_config import read_eos
from cosine_p2p.request.options import ClientOptions
from cosine_p2p.text.tokenizer import TextCodec
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling

TEMPERATURE: Final = 0.8
"""Half of the answers are sampled at it, the others are greedy."""
SAY_EVERY_S: Final = 20.0
"""The time between two lines of progress."""
Say = Callable[[str], None]
HEAD_WIDTH: Final = 64
"""The least that most attention kernels take."""
INITIAL_DEVIATION: Final = 0.02
"""Llama's own standard deviation of initial weights."""
CONTEXT_TOKENS: Final = 8192
"""The context of a drafter whose target's is unknown. It costs nothing: positions are not learned."""


class AnsweringTarget(Protocol):
    """A target that can be asked many questions: on this machine, or through a swarm."""

    def answers(self, prompts: Iterator[TargetPrompt]) -> Iterator[Answer]:
        """The answers as they end, in no order."""
        ...

    def readings(self, prompts: Iterator[TargetPrompt]) -> Iterator[Answer]:
        """The answers that were given, with what the target finds likely in them."""
        ...


def prompts_of(
    questions: Sequence[Question], codec: TextCodec, *, answers: int, longest_prompt: int, is_asked_twice: bool
) -> list[TargetPrompt]:
    """Prompts for so many answers, domains in turn, greedy and sampled in turn or each question both ways.

    Questions of more than `longest_prompt` tokens are passed over.
    """
    found: list[TargetPrompt] = []
    for question in in_turns(questions):
        if len(found) >= answers:
            break
        asked = question.asked
        tokens = codec.encode(asked) if isinstance(asked, str) else codec.encode_chat(asked)
        if not 0 < len(tokens) <= longest_prompt:
            continue
        sampled = Sampling(temperature=TEMPERATURE, seed=question.number)
        ways = [Sampling(), sampled] if is_asked_twice else [sampled if question.number % 2 else Sampling()]
        found += [TargetPrompt(question.number, question.domain, tokens, way) for way in ways]
    return found


def readings_of(
    questions: Sequence[Question], codec: TextCodec, *, readings: int, longest_prompt: int, longest_answer: int
) -> list[TargetPrompt]:
    """Prompts with what follows them where they were found, domains in turn, cut after so many tokens."""
    found: list[TargetPrompt] = []
    for question in in_turns(questions):
        if len(found) >= readings:
            break
        if not question.follows:
            continue
        asked = question.asked
        if isinstance(asked, str):
            prompt, whole = codec.encode(asked), codec.encode(asked + question.follows)
        else:
            prompt = codec.encode_chat(asked)
            whole = codec.encode_chat([*asked, {"role": "assistant", "content": question.follows}])
        # The last tokens of a prompt may be others once more text follows.
        common = next(
            (i for i, pair in enumerate(zip(prompt, whole, strict=False)) if pair[0] != pair[1]), len(prompt)
        )
        given = whole[common : common + longest_answer]
        if 0 < common <= longest_prompt and given:
            found.append(TargetPrompt(question.number, question.domain, whole[:common], Sampling(), given))
    return found


def ask_all(
    prompts: Sequence[TargetPrompt],
    folder: Path,
    ask: Callable[[Iterator[TargetPrompt]], Iterator[Answer]],
    say: Say,
) -> list[Answer]:
    """All answers in `folder`, once `ask` has brought those to `prompts` that are missing."""
    store = AnswerStore(folder)
    missing = {(prompt.question, prompt.sampling): prompt for prompt in prompts}
    for answer in store.read():
        missing.pop((answer.question, answer.sampling), None)
    if missing:
        began_s = said_s = time.monotonic()
        done = tokens = 0
        try:
            for answer in ask(iter(missing.values())):
                store.add(answer)
                done, tokens = done + 1, tokens + len(answer.tokens)
                if (now_s := time.monotonic()) - said_s > SAY_EVERY_S:
                    rate = tokens / (now_s - began_s)
                    say(f"{done} of {len(missing)} answers, {rate:.0f} tokens/s")
                    said_s = now_s
        finally:
            store.flush()
    return store.read()


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a model; heads and feed-forward width follow from the width."""

    layers: int
    width: int
    vocabulary_size: int
    context_tokens: int

    @property
    def heads(self) -> int:
        """Attention heads of 64 channels each, at least one."""
        return max(1, self.width // HEAD_WIDTH)

    @property
    def feed_forward_width(self) -> int:
        """Eight thirds of the width, in whole multiples of 32."""
        return max(32, round(self.width * 8 / 3 / 32) * 32)


def new_model(shape: Shape, seed: int, *, end_id: int | None = None) -> LlamaForCausalLM:
    """An untrained model in float32; `end_id` begins, ends and pads its texts."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocabulary_size,
            hidden_size=shape.width,
            intermediate_size=shape.feed_forward_width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads,
            max_position_embeddings=shape.context_tokens,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=end_id,
            eos_token_id=end_id,
            pad_token_id=end_id,
        )
    )
    # Every layer adds two branches to the residual stream: smaller outputs keep its variance level.
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            torch.nn.init.normal_(parameter, 0.0, INITIAL_DEVIATION / math.sqrt(2 * shape.layers))
    return model


class TargetSource(Protocol):
    """A target, and the drafters that can be made for it."""

    @property
    def codec(self) -> TextCodec: ...

    def target(self) -> AnsweringTarget:
        """The target, loaded or joined anew. Raises `UsageError`."""
        ...

    def new_drafter(self, vocabulary: DraftVocabulary) -> Any:
        """An untrained drafter with these tokens. Raises `UsageError`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Answering:
    """The answers of a target: at most so many at once, and tokens of each."""

    slots: int
    new_tokens: int


@dataclass(frozen=True, kw_only=True)
class LocalSource:
    """A model on this machine, by any name that `join` takes. Its drafters begin with some of its layers.

    With a `width` they begin untrained, with as many layers. Raises `UsageError`.
    """

    model: str
    answering: Answering
    layers: tuple[int, ...]
    width: int | None
    device: str
    seed: int

    @cached_property
    def folder(self) -> Path:
        """The model's folder, downloaded if need be."""
        return fetch_folder(self.model)

    @cached_property
    def codec(self) -> TextCodec:
        files = TokenizerFiles.read(self.folder)
        if files is None:
            raise UsageError(f"The target {self.model!r} has no tokenizer files; train for a model that has them.")
        return TextCodec(files.files)

    def target(self) -> AnsweringTarget:
        where = resolve_device(self.device)
        return LocalTarget(
            load_model(str(self.folder), dtype=_answering_dtype(where)).to(where),
            eos=read_eos(self.folder),
            slots=self.answering.slots,
            new_tokens=self.answering.new_tokens,
        )

    def new_drafter(self, vocabulary: DraftVocabulary) -> Any:
        if self.width is None:
            model = load_model(str(self.folder), dtype=torch.float32)
            return drafter_of(model, layers=self.layers, vocabulary=vocabulary)
        context = read_config(str(self.folder)).get_text_config().max_position_embeddings
        return new_model(Shape(len(self.layers), self.width, vocabulary.reserved_id + 1, context), self.seed)


@dataclass(frozen=True, kw_only=True)
class SwarmSource:
    """A target that a swarm serves. Its weights are unknown here, so drafters begin as untrained models."""

    join: Join
    options: ClientOptions
    answering: Answering
    layers: int
    width: int
    seed: int

    @cached_property
    def codec(self) -> TextCodec:
        return self._target.codec

    def target(self) -> AnsweringTarget:
        return self._target

    def new_drafter(self, vocabulary: DraftVocabulary) -> Any:
        shape = Shape(self.layers, self.width, vocabulary.reserved_id + 1, CONTEXT_TOKENS)
        return new_model(shape, self.seed)

    @cached_property
    def _target(self) -> SwarmTarget:
        return SwarmTarget(
            self.join, self.options, slots=self.answering.slots, new_tokens=self.answering.new_tokens
        )


def _answering_dtype(device: torch.device) -> torch.dtype:
    """16 bits where the device multiplies them fast."""
    is_fast = device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if is_fast else torch.float32
