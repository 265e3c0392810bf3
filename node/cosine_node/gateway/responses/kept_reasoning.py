"""Reasoning in the field in which OpenAI encrypts it, for clients that keep a conversation. Pure.

Some of them send back reasoning in no other field. Ours can be read by everybody, as that which stands beside it.
"""

from base64 import b64decode, b64encode
from typing import Final

_OURS: Final = "cosine:"


def kept(text: str) -> str:
    """The field for a text."""
    return _OURS + b64encode(text.encode()).decode()


def kept_text(field: str) -> str | None:
    """The text in a field, None where another server wrote it."""
    if not field.startswith(_OURS):
        return None
    try:
        return b64decode(field.removeprefix(_OURS), validate=True).decode()
    except ValueError:
        return None
