"""The AIAgent of hermes-agent, one for each run: ninelives serve examples/hermes_agent.py:agent"""

import os
from functools import partial

from run_agent import AIAgent

agent = partial(
    AIAgent,
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:11434/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
    api_mode="chat_completions",
    model="gpt-5.2",
    enabled_toolsets=["terminal", "file"],
    quiet_mode=True,
    skip_context_files=True,
    skip_memory=True,
)
