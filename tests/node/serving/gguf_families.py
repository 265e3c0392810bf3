"""Small GGUF files of real families: metadata as their files have it, their special tokens and ends, few others.

Each is a whole model that writes one text after a chat's prompt: its feed-forward layer turns a token into the
next, from the last one of the prompt to the token that ends a turn there. Templates are of the families' form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tokenizers.pre_tokenizers import ByteLevel

from tests.node.engine.gguf_architectures import (
    FUSED,
    GATED,
    HEAD,
    LLAMA,
    POST_NORMS,
    QUARTER,
    TIED,
    UNTIED,
    WIDTH,
    Shapes,
    attention,
    fused_attention,
    normed_heads,
    sizes,
    write_file,
)

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
"""ggml's types of tokens."""
LETTERS: Final = sorted(ByteLevel.alphabet())
"""The tokens of single bytes of byte-level BPE."""
BYTES: Final = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES: Final = ["\n", "▁", *(chr(code) for code in range(33, 127))]


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """A family: `steps` are the tokens of an answer by their texts, after the last one of the prompt."""

    name: str
    architecture: str
    metadata: Mapping[str, Any]
    layer: Shapes
    once: Shapes
    tokenizer: Mapping[str, Any]
    template: str
    prompt: str
    """A chat in which the user says `ab`, as the model is to see it."""
    steps: tuple[str, ...]
    text: str
    gain: float = 6.0
    """How much more than the token itself the next one weighs."""
    values: Mapping[str, float] = field(default_factory=dict)
    """What stands in norms of these names, in place of one."""

    def write(self, file: Path) -> Path:
        """Write its file, in float32."""
        tokens: list[str] = self.tokenizer["tokens"]
        chain = [tokens.index(step) for step in self.steps]
        shapes = {**self.once, **{f"blk.0.{name}": shape for name, shape in self.layer.items()}}
        metadata = {
            "general.name": self.name,
            "general.type": "model",
            **{f"{self.architecture}.{key}": value for key, value in self.metadata.items()},
            **{f"tokenizer.ggml.{key}": value for key, value in self.tokenizer.items()},
            "tokenizer.chat_template": self.template,
        }
        embedding = np.random.default_rng(0).standard_normal((len(tokens), WIDTH))
        tensors = {name: self._values(name, shape, embedding, chain) for name, shape in shapes.items()}
        return write_file(file, self.architecture, metadata, tensors)

    def _values(
        self, name: str, shape: tuple[int, ...], embedding: npt.NDArray[np.float64], chain: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        kind = name.removeprefix("blk.0.")
        if kind in ("token_embd.weight", "output.weight"):
            return embedding.astype(np.float32)
        values = np.zeros(shape)
        stem = kind.removesuffix(".weight")
        if stem.endswith("norm"):
            values += self.values.get(stem, 1.0)
        elif stem == "rope_freqs":
            values += 1
        elif stem in ("attn_q", "attn_k", "attn_v", "attn_qkv"):
            values += np.random.default_rng(1).standard_normal(shape) / 8
        elif stem.removesuffix("_exps") in ("ffn_gate", "ffn_up"):
            # A neuron for each step: it answers to the token before, eight times as much as to others.
            known = embedding[chain[:-1]] * 8 / WIDTH
            rows = values.shape[-2] // 2 if shape == FUSED["ffn_up.weight"] else values.shape[-2]
            for first in range(0, values.shape[-2], rows):
                values[..., first : first + len(known), :] = known
        elif stem.removesuffix("_exps") == "ffn_down":
            values[..., : len(chain) - 1] = embedding[chain[1:]].T * self.gain / WIDTH
        return values.astype(np.float32)


def byte_pairs(pre: str, special: Sequence[str], **keys: Any) -> dict[str, Any]:
    """A vocabulary of byte-level BPE; `keys` name tokens by their texts, or are what they are."""
    tokens = [*LETTERS, "ĊĊ", *special]
    kinds = [NORMAL] * 257 + [CONTROL] * len(special)
    named = {name: tokens.index(value) if name.endswith("_token_id") else value for name, value in keys.items()}
    lists = {"tokens": tokens, "token_type": kinds, "merges": ["Ċ Ċ"]}
    return {"model": "gpt2", "pre": pre, **lists, **named}


def pieces(first: Sequence[str], special: Sequence[str], **keys: Any) -> dict[str, Any]:
    """A vocabulary of SentencePiece's; `first` are the special tokens that stand before all others."""
    tokens = [*first, *BYTES, *PIECES, *special]
    kinds = [UNKNOWN if text == "<unk>" else CONTROL for text in first]
    kinds += [BYTE] * len(BYTES) + [NORMAL] * len(PIECES) + [CONTROL] * len(special)
    named = {name: tokens.index(value) if name.endswith("_token_id") else value for name, value in keys.items()}
    scores = [0.0] * len(tokens)
    return {"model": "llama", "pre": "default", "tokens": tokens, "token_type": kinds, "scores": scores, **named}


FAMILIES: Final[tuple[GgufFamily, ...]] = (
    GgufFamily(
        name="Llama 3.1 8B Instruct",
        architecture="llama",
        metadata=sizes(layers=1, rope__freq_base=500000.0),
        layer=LLAMA,
        once={**UNTIED, "rope_freqs.weight": (QUARTER // 2,)},
        tokenizer=byte_pairs(
            "llama-bpe",
            [
                "<|begin_of_text|>",
                "<|end_of_text|>",
                "<|start_header_id|>",
                "<|end_header_id|>",
                "<|eom_id|>",
                "<|eot_id|>",
            ],
            bos_token_id="<|begin_of_text|>",
            eos_token_id="<|eot_id|>",
        ),
        template=(
            "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
            "{{ m.content }}<|eot_id|>{% endfor %}"
            "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
        ),
        prompt=(
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nab<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n"
        ),
        steps=("ĊĊ", "H", "i", "<|eot_id|>"),
        text="Hi",
    ),
    GgufFamily(
        name="Gemma 3 4B It",
        architecture="gemma3",
        metadata=sizes(
            layers=1,
            head=HEAD,
            attention__sliding_window=8,
            rope__freq_base=1000000.0,
            rope__scaling__type="linear",
            rope__scaling__factor=8.0,
        ),
        layer={**attention(HEAD), **GATED, **POST_NORMS, **normed_heads(HEAD)},
        once=TIED,
        tokenizer=pieces(
            ["<pad>", "<eos>", "<bos>", "<unk>"],
            ["<start_of_turn>", "<end_of_turn>"],
            bos_token_id="<bos>",
            eos_token_id="<eos>",
            eot_token_id="<end_of_turn>",
            padding_token_id="<pad>",
            unknown_token_id="<unk>",
            add_bos_token=True,
            add_eos_token=False,
            add_space_prefix=False,
        ),
        template=(
            "{{ bos_token }}{% for m in messages %}<start_of_turn>"
            "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
            "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
        ),
        prompt="<bos><start_of_turn>user\nab<end_of_turn>\n<start_of_turn>model\n",
        steps=("\n", "H", "i", "<end_of_turn>"),
        text="Hi",
        # What a layer adds is normed last.
        values={"post_ffw_norm": 48.0},
    ),
    GgufFamily(
        name="Phi3",
        architecture="phi3",
        metadata=sizes(layers=1, attention__sliding_window=2047),
        layer={**fused_attention(), **FUSED},
        once=UNTIED,
        tokenizer=pieces(
            ["<unk>", "<s>", "</s>"],
            ["<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"],
            bos_token_id="<s>",
            eos_token_id="<|endoftext|>",
            padding_token_id="<|endoftext|>",
            unknown_token_id="<unk>",
            add_bos_token=False,
            add_eos_token=False,
            add_space_prefix=False,
        ),
        template=(
            "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
        ),
        # llama.cpp takes away the white space after this family's control tokens.
        prompt="<|user|>ab<|end|><|assistant|>",
        steps=("<|assistant|>", "H", "i", "<|end|>"),
        text="Hi",
    ),
)
