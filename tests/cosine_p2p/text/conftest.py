"""All tokenizers of these tests render their chat templates in the same processes, which take time to start."""

from collections.abc import Iterator

import pytest

from cosine_p2p.text import chat_template
from cosine_p2p.text.template_process import TemplateProcesses


@pytest.fixture(scope="package", autouse=True)
def _shared_processes() -> Iterator[None]:
    shared = TemplateProcesses()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chat_template, "TemplateProcesses", lambda: shared)
        yield
