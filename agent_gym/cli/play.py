'''`agent-gym play`: a person plays an environment; `agent-gym chat`: a person talks to a policy that uses its tools.

In a game the person sees what the policy sees and writes what the policy writes. Only three things are added: a short
form for tool calls (`/calculator 48/2` becomes the environment's own wire format, and is shown as such), `/expert`,
which plays the expert's next move, and text of several lines between two lines of `"""`.
'''

from __future__ import annotations

import json
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium

from agent_gym.cli.parser import Parser, positive
from agent_gym.errors import ConfigError, require
from agent_gym.images import text_of
from agent_gym.registry import check_env_id
from agent_gym.rollout import make_env

if TYPE_CHECKING:
    from agent_gym.serve.conversation import Conversation

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


def play(argv: Sequence[str]) -> int:
    """Play one episode on stdin and stdout."""
    summary = "Play one episode yourself: read the task, write your turns, see the rewards."
    parser = Parser("play", summary, config=False)
    parser.add_argument("env_id", metavar="ENV", help="environment id, for example AgentR1/GSM8K-v0")
    parser.add_env_kwargs()
    parser.add_argument("--split", help="split to take the task from; default: the environment's own")
    parser.add_argument("--index", type=int, help="which task of the split; default: drawn by the seed")
    parser.add_argument("--seed", type=int, help="seed of the episode; default: a new one each time")
    arguments = parser.parse(argv)
    wanted = {"split": arguments.split, "index": arguments.index}
    options = {key: value for key, value in wanted.items() if value is not None}
    env = make_env(arguments.env_id, arguments.env_kwargs)
    print(arguments.env_id)
    play_episode(env, _ask, lambda text: print(text, flush=True), seed=arguments.seed, options=options)
    env.close()
    return 0


def _ask() -> str | None:
    """Read the next line of the person, None at the end of the input."""
    try:
        line = input("> ")
    except EOFError:
        print()
        return None
    if not sys.stdin.isatty():
        print(line)  # a line from a pipe was not echoed by a terminal
    return line


def play_episode(
    env: gymnasium.Env[str, str],
    ask: Callable[[], str | None],
    say: Callable[[str], None],
    *,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
) -> Outcome:
    """Play one episode.

    Args:
        env: the environment.
        ask: returns the next line that the person typed, None at the end of the input.
        say: shows a text.
        seed: see `TextEnv.reset`.
        options: see `TextEnv.reset`.
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
    value: Any = text
    if properties[candidates[0]].get("type") != "string":
        with suppress(ValueError):  # the tool explains what it cannot use
            value = json.loads(text)
    return {candidates[0]: value}


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


def chat(argv: Sequence[str]) -> int:
    """Talk in the terminal or in a browser, until the person leaves."""
    parser = Parser("chat", "Talk to a policy that uses an environment's tools: your words take the place of its task.")
    parser.add_argument("env_id", metavar="ENV", help="environment id, for example AgentR1/GSM8K-v0")
    flag = parser.add_model("who answers").add_argument
    flag("--temperature", type=float, default=0.0, help="of the sampling; 0 is greedy")
    parser.add_env_kwargs()
    flag = parser.add_argument_group("the world that the tools look into").add_argument
    flag("--split", help="split of the task whose world it is; default: the environment's own")
    flag("--index", type=int, help="which task of the split; default: drawn by the seed")
    flag("--seed", type=int, default=0, help="seed of the world and of the sampling")
    flag = parser.add_argument_group("limits").add_argument
    flag("--max_turns", type=positive, metavar="N", default=16, help="turns of the policy per message")
    flag("--max_turn_tokens", type=positive, metavar="N", default=1024, help="tokens sampled per turn")
    flag("--max_tokens", type=positive, metavar="N", default=8192, help="tokens of the conversation")
    flag = parser.add_argument_group("where").add_argument
    flag("--web", action="store_true", help="serve a web page to this machine instead")
    flag("--port", type=int, default=8070, help="its port; 0 takes a free one")
    arguments = parser.parse(argv)
    check_env_id(arguments.env_id)
    if not (arguments.model or arguments.endpoint):
        raise ConfigError("who answers? give --model with a folder or hub id, or --endpoint with a server's address")
    if arguments.web:
        return _serve(arguments)
    require("rich", "train")
    from rich.console import Console

    from agent_gym.serve.terminal import Terminal

    with _conversation(arguments) as conversation:
        Terminal(conversation, arguments.model or arguments.endpoint, Console()).run(_ask)
    return 0


@contextmanager
def _conversation(arguments: Namespace) -> Iterator[Conversation]:
    from agent_gym.cli.engine import build, build_endpoint
    from agent_gym.rollout import EpisodeSpec
    from agent_gym.serve.conversation import Conversation, Limits

    limits = Limits(arguments.max_turn_tokens, arguments.max_tokens, arguments.max_turns)
    env_id, env_kwargs, seed = arguments.env_id, arguments.env_kwargs, arguments.seed
    spec = EpisodeSpec(env_id, env_kwargs, seed=seed, split=arguments.split, index=arguments.index)
    # Before a model is loaded: the mistakes in these arguments are cheap to find.
    make_env(env_id, env_kwargs).close()
    if arguments.endpoint:
        tokenizer, policy = build_endpoint(arguments, env_id, limits.tokens, concurrency=1)
    else:
        tokenizer, policy = build(arguments.model, arguments.engine, context=limits.tokens, seed=seed)
    env = make_env(env_id, env_kwargs, tokenizer)
    try:
        yield Conversation(env, policy, tokenizer, spec, limits, temperature=arguments.temperature)
    finally:
        env.close()
        policy.close()


def _serve(arguments: Namespace) -> int:
    from agent_gym.cli.serve import until_stopped
    from agent_gym.serve.page import ChatServer
    from agent_gym.serve.server import bind

    listener = bind(port=arguments.port)
    with until_stopped(), listener, _conversation(arguments) as conversation:
        with ChatServer(conversation, arguments.model or arguments.endpoint, listener) as server:
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            print(f"open {server.url} in a browser; Ctrl-C ends it", file=sys.stderr, flush=True)
            try:
                server.talk()
            finally:
                server.shutdown()
                thread.join()
    return 0
