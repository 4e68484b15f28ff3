'''A person plays an environment in the terminal: the quickest way to learn what a policy is up against.

The person sees what the policy sees and writes what the policy writes. Only three things are added: a short form for
tool calls (`/calculator 48/2` becomes the environment's own wire format, and is shown as such), `/expert`, which plays
the expert's next move, and text of several lines between two lines of `"""`.

Input and output are two functions, so that a pipe or a test can play as well.
'''

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium

from agent_gym.errors import ConfigError
from agent_gym.images import text_of

HELP = """\
write your turn and press Enter; a turn without a tool call is usually the answer
  /TOOL ARGUMENT   call a tool, for example /calculator 48/2; several arguments as JSON: /search {"query": "a", "k": 3}
  /expert          let the expert play this turn
  /help            show this and the tools
  /quit            stop
  \"""              starts and ends a turn of several lines (or one that begins with a slash)"""

_FENCE = '"""'


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a game ended: `success` is None if the person left before the end."""

    success: bool | None
    reward: float
    turns: int


def play(
    env: gymnasium.Env[str, str],
    ask: Callable[[], str | None],
    say: Callable[[str], None],
    *,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
) -> Outcome:
    """Play one episode.

    Args:
        env: the environment, usually from `agent_gym.rollout.make_env`.
        ask: returns the next line the person typed, None when there is no more.
        say: shows a text.
        seed: see `TextEnv.reset`.
        options: see `TextEnv.reset`.

    Raises:
        ConfigError: for options the environment does not take.
    """
    _, info = env.reset(seed=seed, options=options)
    say(f"task {info['task_id']}")
    for message in info["messages"]:
        say(_block(message["role"], text_of(message["content"])))
    say(_block("help", "\n".join([HELP, *map(_tool_line, info["tools"])])))
    tools = {schema["function"]["name"]: schema["function"] for schema in info["tools"]}
    total, turns = 0.0, 0
    while True:
        action = _next_action(env, tools, ask, say)
        if action is None:
            say(f"left after {_count(turns, 'turn')}, reward so far {total:+.2f}")
            return Outcome(None, total, turns)
        observation, reward, terminated, truncated, info = env.step(action)
        total, turns = total + float(reward), turns + 1
        if observation:
            say(_block("world", observation))
        say(_reward_line(float(reward), info["reward_terms"]))
        if terminated or truncated:
            success = bool(info["is_success"])
            cause = "out of turns" if truncated else "done"
            say(f"{cause}: {'solved' if success else 'not solved'}, reward {total:+.2f}, {_count(turns, 'turn')}")
            return Outcome(success, total, turns)


def _next_action(
    env: gymnasium.Env[str, str],
    tools: Mapping[str, Mapping[str, Any]],
    ask: Callable[[], str | None],
    say: Callable[[str], None],
) -> str | None:
    """Read until there is a turn to play; None if the person leaves."""
    while True:
        line = ask()
        if line is None:
            return None
        text = line.strip()
        if text.startswith(_FENCE):
            return _read_lines(line.partition(_FENCE)[2], ask)
        if not text.startswith("/"):
            if text:
                return line
            continue
        command, _, rest = text[1:].partition(" ")
        if command == "quit":
            return None
        if command == "help":
            say("\n".join([HELP, *(_tool_line({"function": tool}) for tool in tools.values())]))
            continue
        try:
            if command == "expert":
                action = env.unwrapped.expert_action()  # type: ignore[attr-defined]
            else:
                action = tool_call(env, tools, command, rest.strip())
        except ConfigError as error:
            say(str(error))
            continue
        say(_block("you", action))
        return action


def tool_call(env: gymnasium.Env[str, str], tools: Mapping[str, Mapping[str, Any]], name: str, argument: str) -> str:
    """Write a call in the environment's wire format.

    Args:
        env: the environment; its `parser` knows the format.
        tools: function schemas by name.
        name: the tool.
        argument: a JSON object with all arguments, or the value of the only (or only required) one.

    Raises:
        ConfigError: for an unknown tool, an environment without a wire format, or arguments that cannot be told apart.
    """
    parser = getattr(env.unwrapped, "parser", None)
    if parser is None or name not in tools:
        known = ", ".join(f"/{known}" for known in [*tools, "expert", "help", "quit"])
        raise ConfigError(f"there is no /{name} here; known: {known}")
    return parser.render(name, _arguments(name, tools[name]["parameters"], argument))


def _arguments(name: str, schema: Mapping[str, Any], text: str) -> dict[str, Any]:
    if text.startswith("{"):
        try:
            return dict(json.loads(text))
        except ValueError as error:
            raise ConfigError(f"/{name}: not valid JSON: {error}") from error
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not text and not required:
        return {}
    candidates = required if len(required) == 1 else list(properties)
    if len(candidates) != 1:
        example = json.dumps({key: "..." for key in properties})
        raise ConfigError(f"/{name} takes {', '.join(properties) or 'no argument'}: write /{name} {example}")
    return {candidates[0]: _value(text, properties[candidates[0]])}


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """Read a number, list or flag as such; what does not fit goes through as text, for the tool to complain about."""
    if schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _read_lines(first: str, ask: Callable[[], str | None]) -> str | None:
    """Read up to the closing fence; None if the input ends before it."""
    lines = [first] if first else []
    if first.rstrip().endswith(_FENCE):
        return first.rstrip()[: -len(_FENCE)]
    while (line := ask()) is not None:
        if line.rstrip().endswith(_FENCE):
            last = line.rstrip()[: -len(_FENCE)]
            return "\n".join([*lines, last] if last else lines)
        lines.append(line)
    return None


def _block(title: str, text: str) -> str:
    return f"--- {title}\n{text}"


def _tool_line(schema: Mapping[str, Any]) -> str:
    function = schema["function"]
    arguments = " ".join(function["parameters"].get("properties", {}))
    call = f"/{function['name']} {arguments}"
    return f"  {call:<15}  {function['description']}"


def _reward_line(reward: float, terms: Mapping[str, float]) -> str:
    listed = ", ".join(f"{name} {value:+.2f}" for name, value in terms.items())
    return f"reward {reward:+.2f}" + (f" ({listed})" if listed else "")


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
