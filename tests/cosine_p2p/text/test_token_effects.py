"""Tests of the effects of tokens on earlier text."""

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from cosine_p2p.text.token_effects import TokenEffect, TokenEffects

NAMES = ["a", "▁b", "<0xF0>", "<0xzz>", "end</w>", "in</w>side", "<s>"]
FALLBACK, FUSE, LEVEL = decoders.ByteFallback(), decoders.Fuse(), decoders.ByteLevel()
SPACES, STRIP = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)


def effects(decoder: Any) -> dict[str, TokenEffect]:
    tokenizer = Tokenizer(models.WordLevel({name: index for index, name in enumerate(NAMES)}, unk_token="a"))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.add_tokens([AddedToken("<tool>")])
    if decoder is not None:
        tokenizer.decoder = decoder
    of, vocabulary = TokenEffects(tokenizer).of, tokenizer.get_vocab()
    assert of(len(vocabulary)) is TokenEffect.SILENT
    return {name: of(token) for name, token in sorted(vocabulary.items(), key=lambda pair: pair[1])}


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Metaspace(),
        decoders.Sequence([SPACES, FUSE, STRIP]),
        decoders.Sequence([decoders.Sequence([SPACES]), FUSE, decoders.Metaspace()]),
    ],
)
def test_steps_that_leave_earlier_text_alone_make_it_certain_at_once(decoder: Any) -> None:
    assert effects(decoder) == dict.fromkeys([*NAMES, "<tool>"], TokenEffect.WHOLE) | {"<s>": TokenEffect.SILENT}


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
def test_a_token_adds_its_bytes_though_they_are_half_a_character(
    decoder: Any, names: list[str], expected: list[bytes]
) -> None:
    tokenizer = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, unk_token=names[0]))
    tokenizer.add_special_tokens(["<s>"])
    if decoder is not None:
        tokenizer.decoder = decoder
    found = TokenEffects(tokenizer)
    assert [found.bytes_of(token) for token in range(len(names))] == expected
    assert found.bytes_of(99) == b""
