"""`ChatOpenAI` of LangChain: messages, streams, structured output and tools."""

from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.clients.programs.asked import QUESTION, River
from tests.clients.programs.job import Gateway, do


@tool
def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


def model(gateway: Gateway, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        model=gateway.model, base_url=gateway.base, api_key=SecretStr(gateway.key), max_retries=0, timeout=300,
        temperature=0, max_completion_tokens=64, **options,
    )  # fmt: skip


def chat(gateway: Gateway) -> str:
    answer = model(gateway).invoke(QUESTION)
    assert answer.content and answer.usage_metadata
    return f"{answer.usage_metadata['output_tokens']} tokens"


def stream(gateway: Gateway) -> str:
    pieces = list(model(gateway).stream(QUESTION))
    assert "".join(str(piece.content) for piece in pieces) == model(gateway).invoke(QUESTION).content
    return f"the same text in {len(pieces)} pieces"


def structured_output(gateway: Gateway) -> str:
    for method in ("json_schema", "function_calling"):
        assert isinstance(model(gateway).with_structured_output(River, method=method).invoke(QUESTION), River)
    return "by `json_schema` and by `function_calling`"


def tools(gateway: Gateway) -> str:
    for choice in ("any", "add"):
        asked = HumanMessage("What is 3 plus 4?")
        called = model(gateway).bind_tools([add], tool_choice=choice).invoke([asked])
        (call, *_) = called.tool_calls
        assert call["name"] == "add" and isinstance(call["args"]["first"], int)
    answer = model(gateway).invoke(
        [asked, called, ToolMessage(str(add.invoke(call["args"])), tool_call_id=call["id"])]
    )
    assert answer.content
    return "`any` and a named tool, which ran; its answer read, and a text after it"


def responses(gateway: Gateway) -> str:
    answer = model(gateway, use_responses_api=True).invoke(QUESTION)
    pieces = list(model(gateway, use_responses_api=True).stream(QUESTION))
    assert answer.text == "".join(piece.text for piece in pieces) != ""
    return "whole, and streamed the same"


if __name__ == "__main__":
    do(chat, stream, structured_output, tools, responses)
