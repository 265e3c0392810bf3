"""Writes a Llama-like model as a GGUF file.

Names, metadata and the order of rotary weights are those of llama.cpp's converter:
https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py.
"""

import json
import os
import secrets
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from gguf import (
    GGML_QUANT_SIZES,
    MODEL_ARCH,
    GGMLQuantizationType,
    GGUFWriter,
    LlamaFileType,
    TokenType,
    get_tensor_name_map,
    quantize,
)

from cosine_engine.gguf.file import DRAFT_VOCABULARY
from cosine_engine.vocabulary import DraftVocabulary
from cosine_p2p.gguf.pre_tokenizers import CONTRACTIONS, PRE_TOKENIZERS, WORDS
from cosine_p2p.storage.bounded_file import read_json
from cosine_p2p.text.chat_template import ChatTemplates
from cosine_p2p.text.tensor_hashes import MAX_HEADER_BYTES
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import PromptRefused, UsageError
from cosine_protocol.fields import MAX_FILE_BYTES

FILE_TYPES: Final[Mapping[str, LlamaFileType]] = {
    "F32": LlamaFileType.ALL_F32,
    "F16": LlamaFileType.MOSTLY_F16,
    "BF16": LlamaFileType.MOSTLY_BF16,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": LlamaFileType.MOSTLY_Q4_0,
    "Q4_1": LlamaFileType.MOSTLY_Q4_1,
    "Q5_0": LlamaFileType.MOSTLY_Q5_0,
    "Q5_1": LlamaFileType.MOSTLY_Q5_1,
}
"""Types of weights and their value of `general.file_type`; the package `gguf` writes no others."""
ARCHITECTURE: Final = "llama"
"""The architecture of the models that ship with the node."""

ANY_CASE: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
"""`CONTRACTIONS` in the tokenizers of transformers."""


def write_gguf(source: Path, out: Path, *, weights: str = "Q8_0", name: str | None = None) -> None:
    """Write the model in the folder `source` as the file `out`, with matrices in `weights` and vectors in float32.

    A matrix whose rows are not whole blocks is written in float16. The file of a drafter with a reduced vocabulary
    has no tokenizer. Raises `UsageError` for another kind of model.
    """
    if weights not in FILE_TYPES:
        raise UsageError(f"Weights cannot be written in {weights!r}; choose one of {', '.join(FILE_TYPES)}.")
    model = StoredModel.read(source)
    _refuse_others(model)
    vocabulary = DraftVocabulary.read(source)
    draft = out.with_name(f".{out.name}.{secrets.token_hex(8)}")
    writer = GGUFWriter(str(draft), ARCHITECTURE)
    writer.add_name(name or source.resolve().name)
    writer.add_file_type(FILE_TYPES[weights])
    _add_sizes(writer, model)
    if vocabulary is not None:
        writer.add_array(DRAFT_VOCABULARY, list(vocabulary.target_ids))
    if model.tokenizer is None or vocabulary is not None:
        # llama.cpp then has no text processing.
        writer.add_tokenizer_model("none")
    else:
        _add_tokenizer(writer, model.tokenizer, model.config["vocab_size"])
    _add_ends(writer, model)
    for tensor_name, values in _named_tensors(model):
        kind = GGMLQuantizationType[weights]
        if values.shape[-1] % GGML_QUANT_SIZES[kind][0]:
            kind = GGMLQuantizationType.F16
        if values.ndim < 2:
            kind = GGMLQuantizationType.F32
        writer.add_tensor(tensor_name, quantize(values, kind), raw_dtype=kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.replace(draft, out)
    finally:
        draft.unlink(missing_ok=True)


def _refuse_others(model: "StoredModel") -> None:
    """Raise `UsageError` for features that llama.cpp's architecture llama, or this module, lacks."""
    config = model.config
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    reasons = {
        f"its model_type is {config.get('model_type')!r}, not 'llama'": config.get("model_type") != "llama",
        "its attention or its feed-forward layers have biases": config.get("attention_bias")
        or config.get("mlp_bias"),
        "its activation is not SiLU": config.get("hidden_act", "silu") != "silu",
        "its rotary embedding is scaled": rope.get("rope_type", "default") != "default",
    }
    for reason, holds in reasons.items():
        if holds:
            raise UsageError(f"{model.folder} cannot be written as GGUF here: {reason}; use llama.cpp's converter.")


def _add_sizes(writer: GGUFWriter, model: "StoredModel") -> None:
    config = model.config
    heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])


def _add_tokenizer(writer: GGUFWriter, tokenizer: Mapping[str, Any], vocab_tokens: int) -> None:
    """Raises `UsageError` unless it is byte-level BPE."""
    bpe = tokenizer["model"]
    pre_tokenizer = pre_tokenizer_name(tokenizer)
    if bpe.get("type") != "BPE" or pre_tokenizer is None or tokenizer.get("normalizer") is not None:
        raise UsageError(
            "Only byte-level BPE with a pre-tokenizer that llama.cpp knows can be written as GGUF here."
        )
    tokens = {token: text for text, token in bpe["vocab"].items()}
    kinds = dict.fromkeys(tokens, TokenType.NORMAL)
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    if max(tokens) >= vocab_tokens:
        raise UsageError(f"The tokenizer knows token {max(tokens)}, the model only {vocab_tokens} tokens.")
    ids = range(vocab_tokens)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]]
    processor = tokenizer.get("post_processor") or {}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list([tokens.get(token, f"[PAD{token}]") for token in ids])
    writer.add_token_types([kinds.get(token, TokenType.UNUSED) for token in ids])
    writer.add_token_merges(merges)
    writer.add_add_bos_token("SpecialToken" in next(iter(processor.get("single") or [{}])))
    writer.add_add_space_prefix(False)


def pre_tokenizer_name(tokenizer: Mapping[str, Any]) -> str | None:
    """llama.cpp's name of the pre-tokenizer in a tokenizer.json of byte-level BPE. None if it has none."""
    given = tokenizer.get("pre_tokenizer") or {}
    expressions = []
    for step in given.get("pretokenizers", [given]):
        if step.get("type") == "Split" and step.get("behavior") == "Isolated":
            pattern = str((step.get("pattern") or {}).get("Regex"))
            expressions.append(pattern.replace(ANY_CASE, f"(?:{CONTRACTIONS})"))
        elif step.get("type") == "Digits" and step.get("individual_digits"):
            expressions.append(r"\p{N}")
        elif step.get("type") == "ByteLevel" and step.get("use_regex", True):
            expressions.append(WORDS)
        elif step.get("type") != "ByteLevel":
            return None
    takes_whole_words = bool(tokenizer["model"].get("ignore_merges"))
    known = (
        name
        for name, one in PRE_TOKENIZERS.items()
        if one.expressions == tuple(expressions) and one.takes_whole_words == takes_whole_words
    )
    return next((name for name in known if not PRE_TOKENIZERS[name].has_pieces), None)


def _add_ends(writer: GGUFWriter, model: "StoredModel") -> None:
    generation_config = read_object(model.folder / "generation_config.json") or {}
    eos = generation_config.get("eos_token_id", model.config.get("eos_token_id"))
    ends = eos if isinstance(eos, list) else [] if eos is None else [eos]
    add_end = (writer.add_eos_token_id, writer.add_eot_token_id, writer.add_eom_token_id)
    if len(ends) > len(add_end):
        raise UsageError(
            f"{model.folder} has {len(ends)} tokens that end a text; GGUF has names for {len(add_end)}."
        )
    for add, token in zip(add_end, ends, strict=False):
        add(token)
    for key, add in {"bos_token_id": writer.add_bos_token_id, "pad_token_id": writer.add_pad_token_id}.items():
        if model.config.get(key) is not None:
            add(model.config[key])
    template = model.chat_template()
    if template is not None:
        writer.add_chat_template(template)


def _named_tensors(model: "StoredModel") -> list[tuple[str, npt.NDArray[np.float32]]]:
    config = model.config
    heads = config["num_attention_heads"]
    rows_of = {"q_proj": heads, "k_proj": config.get("num_key_value_heads") or heads}
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    found = []
    for name, values in model.weights().items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        gguf_name = names.get_name(name, try_suffixes=(".weight",))
        if gguf_name is None:
            raise UsageError(f"{model.folder} has a tensor {name}, which is unknown in a Llama model.")
        turned_heads = rows_of.get(name.split(".")[-2])
        if turned_heads is not None:
            # llama.cpp rotates neighbours: interleave the halves of each head.
            halves = values.reshape(turned_heads, 2, values.shape[0] // turned_heads // 2, *values.shape[1:])
            values = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
        found.append((gguf_name, values))
    return found


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model folder of transformers, read without torch. `tokenizer` is its tokenizer.json."""

    folder: Path
    config: Mapping[str, Any]
    tokenizer: Mapping[str, Any] | None

    @classmethod
    def read(cls, folder: Path) -> "StoredModel":
        """Raises `UsageError` for a folder without a model."""
        config = read_object(folder / "config.json")
        if config is None:
            raise UsageError(f"{folder} is not a model folder: it has no config.json.")
        return cls(folder, config, read_object(folder / "tokenizer.json"))

    def chat_template(self) -> str | None:
        """The default chat template. None if there is none. Raises `UsageError`."""
        try:
            templates = ChatTemplates.read(TokenizerFiles.stored(self.folder).files)
            return templates.chosen(None, has_tools=False)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self.folder} has a template that cannot be read ({error}).") from None
        except PromptRefused:
            return None

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """All tensors by name, in float32. Raises `UsageError`."""
        files = sorted(self.folder.glob("*.safetensors"))
        if not files:
            raise UsageError(f"{self.folder} is not a model folder: it has no *.safetensors files.")
        tensors: dict[str, npt.NDArray[np.float32]] = {}
        for file in files:
            try:
                tensors |= _read_tensors(file)
            # json, struct and numpy raise these for damaged files.
            except (
                OSError,
                ValueError,
                KeyError,
                TypeError,
                AttributeError,
                OverflowError,
                RecursionError,
                struct.error,
            ) as error:
                raise UsageError(f"{file} is not a readable safetensors file ({error}); fetch it again.") from None
        return tensors


def read_object(file: Path) -> dict[str, Any] | None:
    """The JSON object in a file. None if there is no file. Raises `UsageError` for other content."""
    if not file.is_file():
        return None
    try:
        content = read_json(file, most_bytes=MAX_FILE_BYTES)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{file} cannot be read ({error}); fetch the model again.") from None
    if not isinstance(content, dict):
        raise UsageError(f"{file} holds no JSON object; fetch the model again.")
    return content


def _read_tensors(file: Path) -> dict[str, npt.NDArray[np.float32]]:
    """safetensors: 8 bytes little-endian header length, a JSON header, then the tensors' bytes."""
    data = np.memmap(file, mode="r", dtype=np.uint8)
    (header_bytes,) = struct.unpack("<Q", data[:8].tobytes())
    if header_bytes > MAX_HEADER_BYTES:
        raise ValueError("the header length is wrong")
    header = json.loads(data[8 : 8 + header_bytes].tobytes())
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        # numpy has no bfloat16.
        dtype = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}[entry["dtype"]]
        raw = data[8 + header_bytes + begin : 8 + header_bytes + end].view(dtype)
        # The bits of a bfloat16 are the upper half of a float32's.
        values = (raw.astype(np.uint32) << 16).view(np.float32) if entry["dtype"] == "BF16" else raw
        tensors[name] = np.asarray(values.reshape(entry["shape"]), dtype=np.float32)
    return tensors
