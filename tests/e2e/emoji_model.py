"""A tiny model that writes emoji byte by byte: its next token depends on the last one alone, by a table."""

from math import log, sqrt
from pathlib import Path
from typing import Final

import torch
import transformers as tf

from tests.cosine_p2p.tokenizer_kinds import codec_of, ids

KIND: Final = "byte fallback, as Llama 2"
HIDDEN: Final = 424
"""Room for the vocabulary, a dimension for each token."""
NEVER: Final = -50.0
"""The score of a token that does not come."""
END: Final = "</s>"
# Words, runs of two kinds of emoji, and now and then bytes that are no character. After any other token: a space.
NEXT: Final = {
    "▁": {"o": 1.0},
    "o": {"k": 1.0},
    "k": {"▁": 0.3, "<0xF0>": 0.7},
    "<0xF0>": {"<0x9F>": 0.97, "▁": 0.03},
    "<0x9F>": {"<0x99>": 0.5, "<0x91>": 0.5},
    "<0x99>": {"<0x82>": 1.0},
    "<0x91>": {"<0x8D>": 1.0},
    "<0x82>": {"<0xF0>": 0.8, "▁": 0.2},
    "<0x8D>": {"<0xF0>": 0.8, "▁": 0.2},
}


def write_model(folder: Path) -> Path:
    """Write a Llama with its tokenizer, which has byte fallback, to a new folder."""
    config = tf.LlamaConfig(
        vocab_size=HIDDEN,
        hidden_size=HIDDEN,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=ids(codec_of(KIND), END)[0],
    )
    model = tf.LlamaForCausalLM(config).eval()
    table = torch.full((HIDDEN, HIDDEN), NEVER)
    table[ids(codec_of(KIND), "▁")] = 0.0
    for before, after in NEXT.items():
        (column,) = ids(codec_of(KIND), before)
        table[:, column] = NEVER
        table[ids(codec_of(KIND), *after), column] = torch.tensor([log(share) for share in after.values()])
    with torch.no_grad():
        for weight in model.model.layers.parameters():
            weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(HIDDEN))
        # The norm makes a one of an embedding the root of its length.
        model.lm_head.weight.copy_(table / sqrt(HIDDEN))
    model.save_pretrained(folder)
    codec_of(KIND)._tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    return folder
