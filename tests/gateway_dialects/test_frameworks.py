"""LangGraph and the OpenAI Agents SDK, as published, on each dialect: three turns with tools are one sequence."""

from __future__ import annotations

from typing import Any

import agents
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from tests.gateway.conftest import RunningGateway
from tests.gateway_dialects.conversation import ANSWER, QUESTION, TURNS, check, script
from tests.kit.scripted_engine import ScriptedEngine


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def add_numbers(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def graph_of(model: Any) -> Any:
    """The plain loop: the model, then its tools, until it uses none."""
    asking = model.bind_tools([add])

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await asking.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", ask)
    graph.add_node("tools", ToolNode([add]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


def langchain_model(kind: str, ticket: dict[str, Any], stream: bool) -> Any:
    url = ticket["base_url"]
    if kind == "messages":
        return ChatAnthropic(
            model_name="m", base_url=url.removesuffix("/v1"), api_key="EMPTY", streaming=stream, max_tokens_to_sample=64
        )
    return ChatOpenAI(
        model="m", base_url=url, api_key="EMPTY", streaming=stream, use_responses_api=kind != "chat",
        **({"use_previous_response_id": True} if kind == "responses by id" else {}),
    )  # fmt: skip


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["chat", "responses", "responses by id", "messages"])
async def test_langgraph(gateway: RunningGateway, engine: ScriptedEngine, kind: str, stream: bool, exact: bool) -> None:
    script(engine, exact=exact)
    ticket = await gateway.open()
    state = await graph_of(langchain_model(kind, ticket, stream)).ainvoke({"messages": [("user", QUESTION)]})
    assert state["messages"][-1].text == ANSWER
    spoken = state["messages"][-1].response_metadata
    assert spoken.get("stop_reason" if kind == "messages" else "finish_reason" if kind == "chat" else "object")
    assert len(engine.requests) == TURNS
    assert all(bool(body.get("stream")) is stream for _, body in engine.requests)
    check(await gateway.seal(ticket["session_id"]), exact=exact)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["chat", "responses", "responses by id"])
@pytest.mark.parametrize("strict", [False, True])
async def test_openai_agents(
    gateway: RunningGateway, engine: ScriptedEngine, strict: bool, kind: str, stream: bool, exact: bool
) -> None:
    """Its tools are strict by default: the engine's grammar is then asked for and sent with the ids."""
    adding = agents.function_tool(add_numbers, name_override="add", strict_mode=strict)
    script(engine, exact=exact)
    ticket = await gateway.open()
    agents.set_tracing_disabled(True)
    async with gateway.openai(ticket) as client:
        chat = agents.OpenAIChatCompletionsModel("m", client)
        model = chat if kind == "chat" else agents.OpenAIResponsesModel("m", client)
        agent = agents.Agent("adder", instructions="Add.", tools=[adding], model=model)
        options: dict[str, Any] = {"auto_previous_response_id": True} if kind == "responses by id" else {}
        if stream:
            run = agents.Runner.run_streamed(agent, QUESTION, **options)
            async for _ in run.stream_events():
                pass
        else:
            run = await agents.Runner.run(agent, QUESTION, **options)
    assert run.final_output == ANSWER
    assert str(run.last_response_id).startswith("resp_") is (kind != "chat")
    assert len(engine.requests) == TURNS
    check(await gateway.seal(ticket["session_id"]), exact=exact)
    if exact:
        told = ["structured_outputs" in body for _, body in engine.requests]
        assert told == [False, strict, strict]
