"""Instructor: objects out of texts, by a schema and by a tool."""

from typing import Any

import instructor
from openai import OpenAI

from tests.clients.programs.asked import QUESTION, River
from tests.clients.programs.job import Gateway, do

SAID: list[Any] = [{"role": "user", "content": QUESTION}]


def asked(gateway: Gateway, mode: instructor.Mode) -> Any:
    openai = OpenAI(base_url=gateway.base, api_key=gateway.key, max_retries=0, timeout=300)
    return instructor.from_openai(openai, mode=mode)


def by_schema(gateway: Gateway) -> str:
    options: dict[str, Any] = {"model": gateway.model, "messages": SAID, "max_tokens": 64, "max_retries": 0}
    made = asked(gateway, instructor.Mode.JSON_SCHEMA).chat.completions.create(response_model=River, **options)
    assert isinstance(made, River)
    *_, last = asked(gateway, instructor.Mode.JSON_SCHEMA).chat.completions.create_partial(
        response_model=River, **options
    )
    assert last.country and last.is_navigable is not None
    return "`Mode.JSON_SCHEMA`, whole and in growing parts"


def by_tool(gateway: Gateway) -> str:
    made = asked(gateway, instructor.Mode.TOOLS).chat.completions.create(
        model=gateway.model, messages=SAID, max_tokens=64, max_retries=0, response_model=River
    )
    assert isinstance(made, River)
    return "`Mode.TOOLS`, which names the tool"


if __name__ == "__main__":
    do(by_schema, by_tool)
