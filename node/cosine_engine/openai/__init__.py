"""Drafts of any server with OpenAI's completions: text goes in, and what it writes becomes the target's tokens."""

from typing import Final

SCHEME: Final = "openai:"
"""Begins the model of such a drafter: `openai:URL#MODEL`."""
