'''`agent-gym play`: a person plays an environment, or watches a model; `agent-gym chat`: a person talks to a policy.

In a game the person reads the policy's prompts and writes in the policy's place. Only three things are added: a short
form for tool calls (`/calculator 48/2` becomes the environment's own wire format, and is shown as such), `/expert`,
which plays the expert's next move, and text of several lines between two lines of `"""`.
'''

from __future__ import annotations

import json
import secrets
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import gymnasium

from agent_gym.chat import text_of
from agent_gym.cli.parser import CommandParser, Flag, natural, positive
from agent_gym.errors import ConfigError, RolloutError, require
from agent_gym.rollout import make_env
from agent_gym.tool_results import counted_raises
from agent_gym.untrusted import harmless

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


def play(argv: Sequence[str]) -> int:
    """Play one episode yourself, or with --model watch a model: the task, the turns, the rewards."""
    parser = CommandParser("play", play.__doc__)
    parser.add_env()
    parser.add_env_kwargs()
    _add_task(parser.flag, "split to take the task from; default: the environment's own")
    parser.flag("--seed", "seed of the episode; default: a new one each time", type=natural)
    flag = parser.add_model("who plays instead of you")
    flag("--temperature", "of the sampling; 0 is greedy", type=float, default=0.0)
    flag("--max_turn_tokens N", "tokens sampled per turn", type=positive, default=1024)
    flag("--max_tokens N", "tokens of the episode", type=positive, default=8192)
    parser.set_defaults(concurrency=1)
    arguments = parser.parse(argv)
    if arguments.model or arguments.endpoint:
        return _watch(arguments)
    wanted = {"split": arguments.split, "index": arguments.index}
    options = {key: value for key, value in wanted.items() if value is not None}
    env = make_env(arguments.env_id, arguments.env_kwargs)
    print(arguments.env_id)
    with counted_raises():
        _game(env, arguments.seed, options)
    env.close()
    return 0


def _watch(arguments: Namespace) -> int:
    """Let a model play one episode, and print it as a person would have seen it."""
    from agent_gym.cli.engine import open_model
    from agent_gym.rollout import Budget, EpisodeSpec, Runner

    env_id, env_kwargs = arguments.env_id, arguments.env_kwargs
    arguments.seed = secrets.randbelow(1 << 30) if arguments.seed is None else arguments.seed
    spec = EpisodeSpec(env_id, env_kwargs, seed=arguments.seed, split=arguments.split, index=arguments.index)
    env = make_env(env_id, env_kwargs)  # before a model is loaded: the mistakes in these arguments are cheap to find
    env.reset(seed=spec.seed, options=spec.options)
    env.close()
    tokenizer, policy = open_model(arguments, env_id, arguments.max_tokens)
    budget = Budget(max_turn_tokens=arguments.max_turn_tokens, max_tokens=arguments.max_tokens)
    with closing(policy), closing(Runner(policy, tokenizer, budget, workers=1)) as runner:
        (episode,) = runner.run([spec], temperature=arguments.temperature)
    print(f"{env_id}, played by {arguments.model or arguments.endpoint}\ntask {episode.task_id}")
    for message in episode.initial_messages:
        print(f"--- {message['role']}\n{harmless(text_of(message['content']))}")
    for step in episode.steps:
        print(f"--- policy\n{harmless(step.action)}")
        print(end=f"--- world\n{harmless(step.observation)}\n" if step.observation else "")
        print(f"reward {step.reward:+.2f}{_terms(step.reward_terms)}")
    end = "failed" if episode.failure else episode.truncation or "done"
    turns = "1 turn" if len(episode.steps) == 1 else f"{len(episode.steps)} turns"
    solved = "solved" if episode.success else "not solved"
    print(f"{end}: {solved}, reward {episode.reward:+.2f}, {turns}")
    if episode.failure:
        raise RolloutError(f"the episode failed: {harmless(episode.failure)}")
    return 0


def _terms(terms: Mapping[str, float]) -> str:
    text = ", ".join(f"{name} {value:+.2f}" for name, value in terms.items())
    return f" ({text})" if text else ""


def _add_task(flag: Flag, split_text: str) -> None:
    flag("--split", split_text)
    flag("--index", "which task of the split; default: drawn by the seed", type=int)


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


def _game(env: gymnasium.Env[str, str], seed: int | None, options: dict[str, Any]) -> None:
    _, info = env.reset(seed=seed, options=options)
    tools = {schema["function"]["name"]: schema["function"] for schema in info["tools"]}
    help_text = HELP
    for name, tool in tools.items():
        call = f"/{name} {' '.join(tool['parameters'].get('properties', {}))}"
        help_text += f"\n  {call:<15}  {tool['description']}"
    print(f"task {info['task_id']}")
    for message in info["messages"]:
        print(f"--- {message['role']}\n{text_of(message['content'])}")
    print(f"--- help\n{help_text}", flush=True)
    total, turns = 0.0, "0 turns"
    for turn in count(1):
        action = _next_action(env, tools, help_text)
        if action is None:
            print(f"left after {turns}, reward so far {total:+.2f}")
            return
        observation, reward, terminated, truncated, info = env.step(action)
        total, turns = total + float(reward), "1 turn" if turn == 1 else f"{turn} turns"
        if observation:
            print(f"--- world\n{observation}")
        print(f"reward {reward:+.2f}{_terms(info['reward_terms'])}", flush=True)
        if terminated or truncated:
            end = "out of turns" if truncated else "done"
            print(f"{end}: {'solved' if info['is_success'] else 'not solved'}, reward {total:+.2f}, {turns}")
            return


def _next_action(env: gymnasium.Env[str, str], tools: Mapping[str, Mapping[str, Any]], help_text: str) -> str | None:
    """Read until there is a turn to play; None if the person leaves."""
    while (line := _ask()) is not None:
        text = line.strip()
        if text.startswith(_FENCE):
            return _read_lines(line.partition(_FENCE)[2])
        if text and not text.startswith("/"):
            return line
        command, _, rest = text[1:].partition(" ")
        if command == "quit":
            return None
        if command == "help":
            print(help_text)
        elif text:
            try:
                if command == "expert":
                    action: str = env.unwrapped.expert_action()  # type: ignore[attr-defined]
                else:
                    action = tool_call(env, tools, command, rest.strip())
            except ConfigError as error:
                print(error)
            else:
                print(f"--- you\n{action}")
                return action
    return None


def _read_lines(text: str) -> str | None:
    """Read up to the closing fence; None if the input ends before it."""
    while not text.rstrip().endswith(_FENCE):
        line = _ask()
        if line is None:
            return None
        text = f"{text}\n{line}"
    return text.rstrip().removesuffix(_FENCE).removeprefix("\n").removesuffix("\n")


def tool_call(env: gymnasium.Env[str, str], tools: Mapping[str, Mapping[str, Any]], name: str, argument: str) -> str:
    """Write a call in the environment's wire format.

    `tools` are the function schemas by name; `argument` is a JSON object with all arguments, or the value of the only
    (or only required) one.
    """
    parser = getattr(env.unwrapped, "parser", None)
    if parser is None or name not in tools:
        known = ", ".join(f"/{known}" for known in [*tools, "expert", "help", "quit"])
        raise ConfigError(f"there is no /{name} here; known: {known}")
    if argument.startswith("{"):
        try:
            return parser.render(name, dict(json.loads(argument)))
        except ValueError as error:
            raise ConfigError(f"/{name}: not valid JSON: {error}") from error
    schema = tools[name]["parameters"]
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not argument and not required:
        return parser.render(name, {})
    candidates = required if len(required) == 1 else list(properties)
    if len(candidates) != 1:
        example = json.dumps({key: "..." for key in properties})
        raise ConfigError(f"/{name} takes {', '.join(properties) or 'no argument'}: write /{name} {example}")
    value: Any = argument
    if properties[candidates[0]].get("type") != "string":
        with suppress(ValueError):  # the tool explains unusable arguments
            value = json.loads(argument)
    return parser.render(name, {candidates[0]: value})


def chat(argv: Sequence[str]) -> int:
    """Talk to a policy: your words take the place of its task, and without tools those of the world."""
    parser = CommandParser("chat", chat.__doc__)
    parser.add_env()
    parser.add_model("who answers")("--temperature", "of the sampling; 0 is greedy", type=float, default=0.0)
    parser.add_env_kwargs()
    flag = parser.group("the world that the tools look into")
    _add_task(flag, "split of the task whose world it is; default: the environment's own")
    flag("--seed", "seed of the world and of the sampling", type=natural, default=0)
    flag = parser.group("limits")
    flag("--max_turns N", "turns of the policy per message", type=positive, default=16)
    flag("--max_turn_tokens N", "tokens sampled per turn", type=positive, default=1024)
    flag("--max_tokens N", "tokens of the conversation", type=positive, default=8192)
    flag = parser.group("where")
    flag("--web", "serve a web page to this machine instead", action="store_true")
    flag("--port", "its port; 0 takes a free one", type=int, default=8070)
    parser.set_defaults(concurrency=1)
    arguments = parser.parse(argv)
    if arguments.web:
        return _serve(arguments)
    require("rich", "train")
    from rich.console import Console

    from agent_gym.serve.terminal import ChatTerminal

    with _conversation(arguments) as conversation:
        ChatTerminal(conversation, arguments.model or arguments.endpoint, Console()).run(_ask)
    return 0


@contextmanager
def _conversation(arguments: Namespace) -> Iterator[Conversation]:
    from agent_gym.cli.engine import open_model
    from agent_gym.rollout import EpisodeSpec
    from agent_gym.serve.conversation import ChatLimits, Conversation, first_prompt

    limits = ChatLimits(arguments.max_turn_tokens, arguments.max_tokens, arguments.max_turns)
    env_id, env_kwargs, seed = arguments.env_id, arguments.env_kwargs, arguments.seed
    spec = EpisodeSpec(env_id, env_kwargs, seed=seed, split=arguments.split, index=arguments.index)
    # Before a model is loaded: the mistakes in these arguments are cheap to find.
    with closing(make_env(env_id, env_kwargs)) as env:
        first_prompt(env, spec)
    tokenizer, policy = open_model(arguments, env_id, limits.tokens)
    env = make_env(env_id, env_kwargs, tokenizer)
    try:
        yield Conversation(env, policy, tokenizer, spec, limits, temperature=arguments.temperature)
    finally:
        env.close()
        policy.close()


def _serve(arguments: Namespace) -> int:
    from agent_gym.cli.serve import listening
    from agent_gym.serve.page import ChatServer

    with listening("127.0.0.1", arguments.port) as listener, _conversation(arguments) as conversation:
        with ChatServer(conversation, arguments.model or arguments.endpoint, listener) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            print(f"open {server.url} in a browser; Ctrl-C ends it", file=sys.stderr, flush=True)
            server.talk()
    return 0
