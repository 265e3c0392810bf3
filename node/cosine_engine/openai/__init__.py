"""Drafts by any server with OpenAI's completions, whose text is converted to the target's tokens."""

from typing import Final

SCHEME: Final = "openai:"
"""Begins the model of such a drafter: `openai:URL#MODEL`."""
