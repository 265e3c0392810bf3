"""Blocks, commands and anchors are read from a page as a person reads them."""

import pytest

from tests.docs.pages import ROOT, blocks_of, commands_of

PAGE = ROOT / "page.md"
TEXT = """# A page

```sh
cosine-node status      # who is there
# nothing but a comment
curl http://127.0.0.1 -d '{
  "prompt": "# no comment"}'
cosine-node generate "a" \\
  --json
```

```
cosine-node demo
```

```
"metrics": {}
```

```python
print("```")
```
"""


def commands(text: str) -> list[str]:
    return [c.text for block in blocks_of(PAGE, text) if block.is_commands for c in commands_of(block)]


def test_commands_are_whole_and_without_comments() -> None:
    assert commands(TEXT) == [
        "cosine-node status",
        'curl http://127.0.0.1 -d \'{\n  "prompt": "# no comment"}\'',
        'cosine-node generate "a" \\\n  --json',
        "cosine-node demo",
    ]


def test_blocks_know_their_place_and_language() -> None:
    assert [(block.line, block.language) for block in blocks_of(PAGE, TEXT)] == [
        (3, "sh"),
        (12, ""),
        (16, ""),
        (20, "python"),
    ]


def test_a_command_that_never_ends_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"page\.md:1"):
        commands("```sh\necho 'open\n```\n")
