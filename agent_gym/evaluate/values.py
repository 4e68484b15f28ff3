"""What is counted in one episode, and the means that training logs."""

from __future__ import annotations

from collections.abc import Sequence

from agent_gym.rollout import Episode


def episode_values(episode: Episode) -> dict[str, float]:
    """Return the numbers of one episode, by the names of the logs.

    `episode/success`, `episode/turns`, `episode/tokens` (sampled), `episode/truncated`, `episode/tool_calls`,
    `episode/parse_errors` (calls that could not be read, or of a tool that is not there), `reward/<term>`,
    `tool/<name>/calls` and `tool/<name>/errors`, and `env/<name>` for the environment's own numbers at the last step.
    Bad calls are counted under `tool/invalid`, so that a policy cannot invent names. A name that is missing is 0.
    """
    known = {schema["function"]["name"] for schema in episode.tools}
    values = {
        "episode/success": float(episode.success),
        "episode/turns": float(episode.turns),
        "episode/tokens": float(episode.sampled_tokens),
        "episode/truncated": float(episode.truncated),
        "episode/tool_calls": 0.0,
        "episode/parse_errors": 0.0,
    }
    values |= {f"reward/{term}": value for term, value in episode.reward_terms.items()}
    values |= {f"env/{name}": value for name, value in (episode.steps[-1].metrics if episode.steps else {}).items()}
    for step in episode.steps:
        for call in step.tool_calls:
            name = call["name"] if call["name"] in known else "invalid"
            values["episode/tool_calls"] += 1
            values["episode/parse_errors"] += name == "invalid"
            for what, value in (("calls", 1.0), ("errors", float(call["error"]))):
                values[f"tool/{name}/{what}"] = values.get(f"tool/{name}/{what}", 0.0) + value
    return values


def call_seconds(episode: Episode) -> dict[str, float]:
    """Return the seconds that the calls of each tool took in one episode, by the name of the tool."""
    known = {schema["function"]["name"] for schema in episode.tools}
    seconds: dict[str, float] = {}
    for step in episode.steps:
        for call in step.tool_calls:
            name = call["name"] if call["name"] in known else "invalid"
            seconds[name] = seconds.get(name, 0.0) + call["seconds"]
    return seconds


def episode_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the means that training logs: of `episode_values`, and per call `tool/<name>/latency` in seconds."""
    totals: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for episode in episodes:
        for into, values in ((totals, episode_values(episode)), (seconds, call_seconds(episode))):
            for name, value in values.items():
                into[name] = into.get(name, 0.0) + value
    means = {name: value / len(episodes) for name, value in totals.items()}
    return means | {f"tool/{name}/latency": value / totals[f"tool/{name}/calls"] for name, value in seconds.items()}
