"""A plain loop of tool calls: an agent that plays in any environment with tools, and knows OpenAI's protocol alone.

    agent-gym eval AgentR1/SWE-v0 --agent tool_loop:agent --model MODEL     # grpo trains with it in the same way
    agent-gym gateway --model MODEL                                         # or as a program of its own:
    OPENAI_BASE_URL=http://127.0.0.1:8020/v1 OPENAI_API_KEY=one python tool_loop.py AgentR1/SWE-v0

Run it from this folder.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any


def agent(client: Any, task: dict[str, Any]) -> str:
    """Run the calls of each answer in the environment; return the first answer without one. It ends the episode."""
    talk = [*task["messages"]]
    while True:
        answer = client.chat.completions.create(model="policy", messages=talk, tools=task["tools"])
        turn = answer.choices[0].message
        if not turn.tool_calls:
            return str(turn.content)
        talk.append(turn.model_dump(exclude_none=True))
        for call in turn.tool_calls:
            said = {"name": call.function.name, "arguments": json.loads(call.function.arguments)}
            seen = task["step"](f"<tool_call>\n{json.dumps(said)}\n</tool_call>")
            talk.append({"role": "tool", "tool_call_id": call.id, "content": seen})


class Over(Exception):
    """The episode has ended."""


def main(env_id: str, **env_kwargs: Any) -> float:
    """Play one episode with the model at OPENAI_BASE_URL, and return its reward."""
    import gymnasium
    import openai

    import agent_gym  # noqa: F401 (registers the environments)

    rewards: list[float] = []
    with gymnasium.make(env_id, **env_kwargs) as env, openai.OpenAI() as client:

        def step(action: str) -> str:
            observation, reward, terminated, truncated, _ = env.step(action)
            rewards.append(float(reward))
            if terminated or truncated:
                raise Over
            return str(observation)

        _, info = env.reset(seed=0)
        with suppress(Over):
            step(agent(client, {"messages": info["messages"], "tools": info["tools"], "step": step}))
    return sum(rewards)


if __name__ == "__main__":
    print(main(sys.argv[1], **json.loads(sys.argv[2] if sys.argv[2:] else "{}")))
