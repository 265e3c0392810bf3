"""Texts for the comparison of tokenizers: scripts, code, emoji, digits, spaces, and control tokens."""

from collections.abc import Sequence
from typing import Final

WORDS: Final = (
    "Hello", "world", "THE", "camelCase", "XMLHttpRequest", "snake_case", "naïve", "Ünïcödé", "ÉCOLE",
    "Straße", "ǅungla", "fiancée", "e\u0301te\u0301", "Ελληνικά", "Привет", "мир", "עברית", "العربيّة",
    "हिन्दी", "नमस्ते", "தமிழ்", "ไทย", "ภาษา", "ქართული", "Հայերեն", "日本語", "こんにちは",
    "カタカナ", "ﾊﾝｶｸ", "中文", "漢字仮名", "한국어", "ㄱㄴ", "ㄅㄆ", "አማርኛ", "Ｆｕｌｌ", "𠀀𠀁", "𐐀𐐨",
    "ª", "ʰ",
)  # fmt: skip
"""Words with capitals and marks, in scripts without capitals or spaces, and beyond the first plane."""
NUMBERS: Final = (
    "0", "7", "12", "123", "1234", "12345", "123456", "1234567890", "3.14", "1,000", "٣٤", "１２３",
    "Ⅷ", "½²",
)  # fmt: skip
SPACES: Final = (
    " ", "  ", "   ", "    ", "     ", "         ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r",
    " \n", "\n  ", "\n\t", "\u00a0", "\u3000", "\u2003", "\v", "\f",
)  # fmt: skip
SIGNS: Final = (
    "'s", "'S", "'re", "'LL", "n't", "'", "don't", "I'VE", ".", "...", ",", "!", "?!", ";", ":", "-",
    "--", "—", "…", "_", "/", "//", "/*", "\\", "(", ")", "()", "[", "]", "{", "}", "<", ">", "==",
    "!=", "->", "+=", "*", "**", "&", "&&", "#", "@", "$", "€", "%", "^", "~", "`", "```", "|", '"',
    "“", "”", "‘", "’", "«", "»", "。", "、", "，", "！", "·", "।", "،", "🙂", "👩‍👧", "🇩🇪", "❤️",
    "\u200b", "\u200d", "\u00ad", "<0x41>", "\ufffd",
)  # fmt: skip
LINES: Final = (
    "", "def add(a, b):\n    return a + b  # sum\n",
    "for (int i = 0; i < 10; ++i) {\n\tx[i] *= 2;\n}\n\n", "SELECT * FROM users WHERE id=42;",
    "https://example.org/a/b?c=d&e=%20#f", "user.name@example.org", "<div class=\"x\">&nbsp;</div>",
    "{\"key\": [1, 2.5e-3, null, true]}", "| a | b |\n|---|---|\n| 1 | 2 |",
    "- one\n- two\n\n  * three\n", "E = mc² and ∑ xᵢ ≤ ∞", "2024-02-29T23:59:59+01:00",
    "+49 (30) 1234-5678", "It's John's; they'll say \"we've won\", I'D think.",
    "Wait...   what?!  No way!!!\n\n\nOK.", " leading and trailing ",
    "Ünïcödé ist schön, n'est-ce pas ? Ça va très bien.", "Это предложение. А это — другое!",
    "今日は2024年3月1日です。", "你好，世界！我有12345个苹果。", "한국어 문장입니다. 123개!",
    "यह एक वाक्य है। १२३", "هذه جملة، وهذه أخرى؟", "ชื่อของฉันคือ 42", "a" * 40, "ab" * 20, "=" * 37,
    "\n" * 19, " " * 35, "0" * 25, "🙂" * 5, "ha" * 9 + "!" * 7, "日" * 11,
    "it'sabc 'Tis O'Neill's x'Re we'LLgo", "é́a ीx कि",
)  # fmt: skip
SHOWN_CONTROL_TOKENS: Final = 24
"""Maximum number of control tokens; a model may have thousands."""


def trial_texts(control_tokens: Sequence[str]) -> list[str]:
    """A few hundred texts, determined by the control tokens."""
    kinds = (WORDS, NUMBERS, SIGNS, SPACES)
    alone = [text for kind in kinds for text in kind]
    # Each with others of every kind, at coprime distances.
    beside = [
        one + SPACES[(3 * place) % 5] * (step % 2) + other[(7 * place + step) % len(other)] + one
        for step, other in enumerate(kinds)
        for place, one in enumerate(alone)
    ]
    shown = control_tokens[:SHOWN_CONTROL_TOKENS]
    around = [text for token in shown for text in (token, f"a{token}b", f" {token} c 1{token}{token}\n{token}")]
    return [*LINES, *alone, *beside, *around]
