"""A LangGraph graph of one's own, with blocking nodes: ninelives serve examples/langgraph_graph.py:graph"""

import time
from pathlib import Path

from langchain.chat_models import init_chat_model
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph

model = init_chat_model("openai:gpt-5.2")


@tool
def book(city: str) -> str:
    """Book a trip."""
    with Path("bookings.txt").open("a") as file:
        file.write(f"{city}\n")
    time.sleep(0.2)
    return f"booked {city}"


def plan(state: MessagesState) -> dict:
    return {"messages": [model.invoke(state["messages"])]}


def act(state: MessagesState) -> dict:
    done = book.invoke({"city": "Vienna"})
    return {"messages": [("user", f"Done: {done}. Tell me.")]}


graph = StateGraph(MessagesState)
for name, node in {"plan": plan, "act": act, "tell": plan}.items():
    graph.add_node(name, node)
for one, two in [(START, "plan"), ("plan", "act"), ("act", "tell"), ("tell", END)]:
    graph.add_edge(one, two)
