"""Tests of the bytes of tokens."""

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from cosine_p2p.text.token_effects import TokenEffects

FALLBACK, FUSE, LEVEL = decoders.ByteFallback(), decoders.Fuse(), decoders.ByteLevel()
SPACES, STRIP = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)


@pytest.mark.parametrize(
    ("decoder", "names", "expected"),
    [
        (LEVEL, ["Ġa", "â", "Ĥ¬", "<s>"], [b" a", b"\xe2", b"\x82\xac", b""]),
        (
            decoders.Sequence([SPACES, FALLBACK, FUSE, STRIP]),
            ["▁b", "<0xF0>", "<0xzz>", "€"],
            [b" b", b"\xf0", b"<0xzz>", "€".encode()],
        ),
        (decoders.BPEDecoder("</w>"), ["end</w>"], [b"end "]),
    ],
)
def test_a_token_adds_bytes_of_half_a_character(decoder: Any, names: list[str], expected: list[bytes]) -> None:
    tokenizer = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token=names[0]))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.decoder = decoder
    found = TokenEffects(tokenizer)
    assert [found.bytes_of(token) for token in range(len(names))] == expected
    assert found.bytes_of(99) == b""
