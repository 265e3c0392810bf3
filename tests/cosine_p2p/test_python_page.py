"""docs/python.md shows what a program is told: each row of its table of errors is tried."""

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_protocol.errors import UsageError

PAGE: Final = (Path(__file__).parents[2] / "docs" / "python.md").read_text("utf-8")
ROWS: Final = re.findall(r"^\| `(generate\(.*?\))`( after `close\(\)`)? \| (.+) \|$", PAGE, re.MULTILINE)


def test_the_table_is_found() -> None:
    assert len(ROWS) == PAGE.count("| `generate(") > 10


@pytest.mark.parametrize(("call", "after", "sentence"), ROWS)
def test_an_error_is_as_the_page_says(call: str, after: str, sentence: str) -> None:
    expression = ast.parse(call, mode="eval").body
    assert isinstance(expression, ast.Call)
    (prompt,) = map(ast.literal_eval, expression.args)
    options = {str(word.arg): ast.literal_eval(word.value) for word in expression.keywords}

    async def run() -> None:
        async with SimulatedSwarm() as swarm:
            client = await swarm.client()
            if after:
                await client.__aexit__(None, None, None)
            await client.generate(prompt, **options)

    with pytest.raises(UsageError) as refused:
        run_virtual(run())
    assert str(refused.value) == sentence
