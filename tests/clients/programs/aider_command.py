"""Aider: one edit of one file, in Aider's whole-file format."""

import json
import tempfile
from pathlib import Path

from tests.clients.programs.job import Gateway, do, said_by

BEFORE = 'def greet() -> str:\n    return "hi"\n'
GREETINGS = ("hello", "good morning", "welcome")
FORMAT = 'greet\\.py\\n```\\ndef greet\\(\\) -> str:\\n    return "({})"\\n```\\n'
"""Forces a small model to follow Aider's format, with a greeting of its choice."""


def edit(gateway: Gateway) -> str:
    settings = [
        {
            "name": f"openai/{gateway.model}",
            "edit_format": "whole",
            "extra_params": {
                "max_tokens": 64,
                "extra_body": {"guided_regex": FORMAT.format("|".join(GREETINGS))},
            },
        }
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "greet.py").write_text(BEFORE)
        # JSON is YAML.
        (folder / "settings.yml").write_text(json.dumps(settings))
        said_by(
            "aider", "--model", f"openai/{gateway.model}", "--model-settings-file", "settings.yml", "--no-git",
            "--yes-always", "--no-show-model-warnings", "--no-check-update", "--analytics-disable", "--map-tokens",
            "0", "--message", "Greet with another word.", "greet.py",
            folder=folder, OPENAI_API_BASE=gateway.base, OPENAI_API_KEY=gateway.key,
        )  # fmt: skip
        after = (folder / "greet.py").read_text()
    assert after in [BEFORE.replace("hi", greeting) for greeting in GREETINGS], after
    return "streamed and applied to a file; `guided_regex` holds the small model to Aider's whole-file format"


if __name__ == "__main__":
    do(edit)
