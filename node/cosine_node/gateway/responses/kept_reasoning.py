"""Reasoning in OpenAI's field for encrypted content, the only one that some clients send back. Pure.

It is encoded, not encrypted.
"""

from base64 import b64decode, b64encode
from typing import Final

_OURS: Final = "cosine:"


def kept(text: str) -> str:
    """Encode a text."""
    return _OURS + b64encode(text.encode()).decode()


def kept_text(field: str) -> str | None:
    """Decode a field; return None if another server wrote it."""
    if not field.startswith(_OURS):
        return None
    try:
        return b64decode(field.removeprefix(_OURS), validate=True).decode()
    except ValueError:
        return None
