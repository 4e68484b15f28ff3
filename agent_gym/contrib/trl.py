"""TRL's `environment_factory`: a class with `reset(**row)` whose public methods are tools.

The trainer of TRL runs such an environment itself. Data without a place in it is lost there: rewards of single steps,
an end that the environment declares, formats of calls other than the template's. `AgentGRPOTrainer` keeps them.

TRL describes the tools by the chat template and reads the calls of its model's family itself. So a prompt from here
describes no tool, and an environment whose own texts ask for another form of calls is refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from agent_gym.chat import Message, text_of
from agent_gym.contrib.lending import ExternalEpisode, task_rows
from agent_gym.env import Reply
from agent_gym.errors import ConfigError, message_of, require, shown
from agent_gym.images import Content
from agent_gym.registry import make
from agent_gym.row_opening import RowOpening
from agent_gym.tool_env import ToolEnv
from agent_gym.tools import FunctionTool, Tool, ToolResult

_NO_TOOLS = ("reset", "get_reward", "close")
_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}


class ForTRL(NamedTuple):
    """The arguments of `trl.GRPOTrainer`."""

    environment_factory: type
    train_dataset: Any
    reward_funcs: Callable[..., list[float]]


def to_trl(env_id: str, *, split: str = "train", tasks: int = 1000, seed: int = 0, **env_kwargs: Any) -> ForTRL:
    """Make an environment with tools into arguments of `trl.GRPOTrainer`.

        trl.GRPOTrainer(model, **to_trl("AgentR1/GSM8K-v0")._asdict(), args=...)

    A method that is called plays a turn with that call, and the last message of a completion is played as the answer.
    The reward is the whole episode's. Task i (of `tasks`) of the split is reset with `seed` + i, which is in the row:
    TRL hands all members of a group the same row, so that they begin in the same state.

    Raises:
        ConfigError: if the environment has no tools, its texts ask for a form of calls that TRL does not read,
            `datasets` is not installed, or there are fewer tasks.
    """
    probe = make(env_id, **env_kwargs)
    if not isinstance(probe, ToolEnv) or not probe.tools:
        raise ConfigError(f"{env_id} has no tools, and TRL's environments are tools: train it with AgentGRPOTrainer")
    datasets = require("datasets", "train")
    rows = [
        {"prompt": [*_before(probe, row), {"role": "user", "content": ""}], **row}
        for row in task_rows(env_id, split, tasks, seed, env_kwargs)
    ]
    if rows:
        _check_form(probe, env_id, rows[0])
    methods = {name: _method(tool) for name, tool in probe.tools.items()}
    probe.close()
    factory = type("AgentGymEnvironment", (_Environment,), {**methods, "_made_by": (env_id, env_kwargs)})
    return ForTRL(factory, datasets.Dataset.from_list(rows), _reward)


def _check_form(probe: ToolEnv, env_id: str, row: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if the opening of a task asks for calls in a form of the environment's own."""
    own = not probe.explains_tools and not probe.parser.in_templates  # a published prompt, which describes its form
    probe.explains_tools = False  # `reset` gives the texts of the environment without a description of the tools
    _, info = probe.reset(seed=int(row["seed"]), options={"split": row["split"], "index": int(row["index"])})
    texts = "\n".join(text_of(message["content"]) for message in info["messages"])
    if own or any(call.name in probe.tools for call in probe.parser.parse(texts)):
        raise ConfigError(
            f"the prompt of {env_id} asks for calls in its own form ({type(probe.parser).__name__}), and TRL "
            "reads only the form of the chat template: train it with AgentGRPOTrainer, or lend a variant without that "
            "prompt"
        )


def _before(probe: ToolEnv, row: Mapping[str, Any]) -> list[Message]:
    """Return the messages before the question of a task: the system prompt, and the turns that its row has."""
    system, turns, task = probe.system_prompt, tuple[Message, ...](), probe.tasks[row["split"]][row["index"]]
    if isinstance(probe, RowOpening) and isinstance(task, Mapping):
        system, turns = probe.conversation(task, system)
    return [*([{"role": "system", "content": system}] if system else []), *turns]


class _Environment:
    """One environment as TRL uses it: made once, reset often."""

    _made_by: tuple[str, Mapping[str, Any]]

    def __init__(self) -> None:
        self._episode = ExternalEpisode(*self._made_by)

    def reset(self, **row: Any) -> str:
        return str(self._episode.reset(row)[-1]["content"])

    def _turn(self, text: str) -> str:
        if self._episode.over:
            raise ValueError("the episode is over")  # as TRL's environments signal it
        answers, _ = self._episode.step(text)
        return "\n".join(message["content"] for message in answers)


def _method(tool: Tool) -> Any:  # TRL makes the same tool of it: it reads the signature and the docstring
    def call(self: Any, **arguments: Any) -> str:
        return self._turn(self._episode.env.unwrapped.parser.render(tool.name, arguments))

    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", [])
    keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter("self", keyword)]
    lines = [tool.description, "", "Args:"]
    for name in sorted(properties, key=lambda name: name not in required):
        kind = _TYPES.get(properties[name].get("type", "string"), str)
        default = inspect.Parameter.empty if name in required else properties[name].get("default")
        parameters.append(inspect.Parameter(name, keyword, annotation=kind, default=default))
        lines.append(f"    {name}: {properties[name].get('description') or name}")
    call.__name__ = call.__qualname__ = tool.name
    call.__doc__ = "\n".join([*lines, "", "Returns:", "    What the world answers."])
    call.__annotations__ = {one.name: one.annotation for one in parameters[1:]} | {"return": str}
    call.__signature__ = inspect.Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]
    return call


def _reward(completions: Sequence[Any], environments: Sequence[Any], **_: Any) -> list[float]:
    """Play each completion's last message as the answer and return the rewards of the episodes."""
    for completion, environment in zip(completions, environments, strict=True):
        last = completion[-1] if completion else {"role": "assistant", "content": ""}
        # A completion that was cut off ends with a tool's answer: the policy has written nothing since.
        if last["role"] == "assistant" and not environment._episode.over:
            environment._turn(last.get("content") or "")
    return [environment._episode.total for environment in environments]


class FromTRL(ToolEnv):
    """An environment that was written for TRL's `environment_factory`.

    An episode begins with the row's `prompt` and the result of `reset`; public methods are tools. `reward` (weight 1)
    is paid at the end, also where turns run out: `get_reward()` of the environment, and `reward_func` of the
    completion.

    Args:
        factory: makes the environment, as in TRL.
        rows: the data set, rows with a `prompt` (messages) and whatever `reset` takes; or such rows by split.
        reward_func: one of TRL's reward functions, for environments without `get_reward`.
        success_reward: an episode whose reward is at least this counts as solved.
        **kwargs: see `ToolEnv`.

    Raises:
        ConfigError: if there is nothing that gives a reward, or a method lacks type hints or a docstring.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"reward": 1.0}

    def __init__(
        self,
        factory: Callable[[], Any],
        rows: Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Mapping[str, Any]]],
        *,
        reward_func: Callable[..., Sequence[float]] | None = None,
        success_reward: float = 1.0,
        **kwargs: Any,
    ) -> None:
        self._trl = factory()
        self._reward_func, self._success_reward = reward_func, success_reward
        if reward_func is None and not hasattr(self._trl, "get_reward"):
            raise ConfigError(f"{type(self._trl).__name__} has no get_reward: give reward_func=")
        names = [name for name, _ in inspect.getmembers(type(self._trl), inspect.isfunction) if name[0] != "_"]
        tools = [_Method(getattr(self._trl, name)) for name in names if name not in _NO_TOOLS]
        splits = rows if isinstance(rows, Mapping) else {"train": rows}
        for split, some in splits.items():
            for number, row in enumerate(some):
                _check_prompt(row, f"row {number} of split {split!r}")
        super().__init__(splits, tools=tools, **kwargs)

    def begin(self, task: Any) -> str:
        text = self._trl.reset(**task)
        self._row = task
        *before, last = task.get("prompt") or [{"role": "user", "content": ""}]
        self._system = "\n\n".join(text_of(message["content"]) for message in before if message["role"] == "system")
        self._examples = [message for message in before if message["role"] != "system"]
        return f"{text_of(last['content'])}{text or ''}"

    def opening_system_prompt(self) -> str:
        return "\n\n".join(filter(None, [self._system, super().opening_system_prompt()]))

    def with_system_prompt(self, content: Content) -> list[Message]:
        *system, question = super().with_system_prompt(content)
        return [*system, *self._examples, question]

    def answer(self, text: str) -> Reply:
        return Reply(terminated=True)

    def respond(self, action: str) -> Reply:
        reply = super().respond(action)
        if reply.terminated or self.turn + 1 >= self.max_turns:  # TRL pays for a completion without an answer, too
            reward = self._pay(("assistant", action), *(("tool", call.answer) for call in reply.tool_calls))
            reply.terms, reply.success = {"reward": reward}, reward >= self._success_reward
        return reply

    def _pay(self, *turn: tuple[str, str]) -> float:
        reward = float(self._trl.get_reward()) if hasattr(self._trl, "get_reward") else 0.0
        if self._reward_func is not None:
            roles = {"agent": "assistant", "env": "tool"}
            before = [(roles[one.source], one.text) for one in self.transcript.segments if one.source in roles]
            completion = [{"role": role, "content": words} for role, words in (*before, *turn)]
            columns = {name: [value] for name, value in self._row.items() if name != "prompt"}
            (paid,) = self._reward_func(
                prompts=[self._row.get("prompt")], completions=[completion], environments=[self._trl], **columns
            )
            reward += float(paid)
        return reward


def _check_prompt(row: Any, place: str) -> None:
    """Raise `ConfigError` unless a row is an object whose `prompt`, if it has one, is a list of messages."""
    prompt = row.get("prompt") if isinstance(row, Mapping) else row
    messages = prompt is None or (isinstance(prompt, list | tuple) and all(map(_is_message, prompt)))
    if not isinstance(row, Mapping) or not messages:
        wanted = 'messages, [{"role": "user", "content": "..."}]'
        raise ConfigError(f"{place}: prompt is {shown(prompt)}; it must be {wanted}")


def _is_message(one: Any) -> bool:
    return isinstance(one, Mapping) and isinstance(one.get("role"), str) and isinstance(one.get("content"), str | list)


class _Method(FunctionTool):
    """A method of TRL's: whatever it raises goes to the policy as an error, which is how TRL treats it."""

    def _raised(self, error: BaseException, arguments: Mapping[str, Any]) -> ToolResult:
        super()._raised(error, arguments)  # its author reads of it here, too
        return ToolResult(f"Error: {message_of(error)}", error=True)

    def run(self, arguments: Mapping[str, Any]) -> ToolResult:
        try:
            return super().run(arguments)
        except ConfigError:
            raise
        except Exception as error:
            return self._raised(error, arguments)
