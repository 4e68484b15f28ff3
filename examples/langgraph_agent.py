"""A LangGraph agent, trained unchanged: the gateway is its model server, and its tools stay where they are.

    pip install langgraph langchain-openai
    agent-gym eval --model smollm2 --agent langgraph_agent:agent --reward langgraph_agent:reward --tasks tasks.jsonl
    agent-gym grpo --model_name_or_path smollm2 --agent langgraph_agent:agent --reward langgraph_agent:reward ...

Run it from this folder. A row of tasks.jsonl: {"question": "How many days has 2024?", "answer": "366"}.
"""

from __future__ import annotations

import calendar
from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def days_of(year: int) -> int:
    """Count the days of a year."""
    return 366 if calendar.isleap(year) else 365


async def agent(client: Any, task: dict[str, Any]) -> str:
    """Answer a question. `client` is the gateway's `openai.AsyncOpenAI`: LangGraph takes its address and key."""
    model = ChatOpenAI(model="policy", base_url=str(client.base_url), api_key=client.api_key).bind_tools([days_of])

    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode([days_of]))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition, {"tools": "tools", END: END})
    graph.add_edge("tools", "think")
    done = await graph.compile().ainvoke({"messages": [("user", task["question"])]})
    return str(done["messages"][-1].content)


def reward(task: dict[str, Any], result: str, transcript: list[dict[str, Any]]) -> float:
    """Return 1 if the answer is in the agent's last message."""
    return float(task["answer"] in result)
