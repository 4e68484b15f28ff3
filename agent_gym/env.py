"""`TextEnv`: a `gymnasium.Env` that speaks text and reports the author of each token.

The environment, not the trainer, keeps the transcript, because only the environment knows its own text. Every call
returns in `info` the appended messages, character spans and, with a tokenizer, token ids and token spans. A rollout
concatenates these and has the exact context of the policy and the mask for its loss.

make, reset, step and close of one environment happen in one thread, which is not the main thread in rollouts. A
subclass defines `begin(task)` (the first message) and `respond(action)` (the world's answer). A mistake of the policy
is a `Reply`; a failure of the machinery is an `EnvFailure`.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium

from agent_gym.chat import MAX_OBSERVATION_CHARS, ChatRenderer, Message, check_content, copied, cut_to_size, text_of
from agent_gym.errors import ConfigError, EnvFailure, quoted, shown, unknown_arguments, whole_number
from agent_gym.images import Content, images_of, join
from agent_gym.models import named_tokenizer
from agent_gym.renamed import renamed_methods
from agent_gym.reply import MAX_REWARD, Reply, check_reply, plain_number, plain_numbers
from agent_gym.row_splits import default_split
from agent_gym.spaces import Text
from agent_gym.transcript import PROMPT_STEP, Sampled, Source, Transcript, kind_of, plain_action

MAX_ACTION_CHARS = 1 << 20
HISTORY_HEADING = "What happened so far:"
CATEGORY_FIELDS = frozenset({"type", "level", "kind", "category"})
"""Fields of a data set's row that give the kind of its task."""
_OPTIONS = {"split", "index", "task"}

RENAMED = {
    "behind_system_prompt": "with_system_prompt", "leave": "on_truncated",
    "opening": "initial_messages", "situation": "state_prompt",
}  # fmt: skip
"""Methods of environments by their old names, which work for one release more."""


class TextEnv(gymnasium.Env[str, str]):
    """Base class of every environment here.

    Args:
        tasks: split name to a sequence of tasks. A task is whatever `begin` understands.
        split: the split that `reset` draws from unless `options["split"]` says otherwise; by default "train", or the
            only one there is (`row_splits.default_split`). Else one has to be named, here or there.
        system_prompt: replaces the environment's own system prompt; "" means none.
        max_turns: the episode is truncated after this many actions.
        reward_weights: overrides of the default weights, by term.
        tokenizer: a Hugging Face tokenizer (or a `ChatRenderer`), or the model folder, hub id or name of a prepared
            model that has it; with it `info` also reports token ids and spans.
        render_mode: "ansi" or None.

    Raises:
        ConfigError: for an argument that the environment does not take or that is of a wrong type, an unknown split or
            reward term, a weight that is not a finite number, a process term without a weight, or a turn budget below
            1.
    """

    # Of the class as well: Gymnasium looks at them before anybody can say that `__init__` of the base was not called.
    observation_space = Text(MAX_OBSERVATION_CHARS)
    action_space = Text(MAX_ACTION_CHARS)
    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 4}
    reward_weights: ClassVar[Mapping[str, float]] = {}
    """Default weight of each reward term."""
    process_terms: ClassVar[frozenset[str]] = frozenset()
    """The terms that judge a step on the way and not the outcome; a trainer may normalise and weigh them apart."""
    default_system_prompt: ClassVar[str] = ""
    rollout_budget: ClassVar[Mapping[str, int]] = {}
    """Limits of tokens, by their names in `Budget`, that its episodes want; of `eval` and `rollout` without others."""
    stop: tuple[str, ...] = ()
    """Strings after which a turn is complete; the policy's engine may stop generating there."""
    inline: bool = False
    """Whether the world answers inside the policy's own turn instead of in a separate message."""
    author: Source = "agent"
    """The source of the policy's text; with the name of its role where there are several ("agent:buyer")."""
    shows_images: bool = False
    """Whether it answers with images, so that a model that is made for it on the spot has to read them."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        renamed_methods(cls, RENAMED)

    def __init__(
        self,
        tasks: Mapping[str, Sequence[Any]],
        *,
        split: str | None = None,
        system_prompt: str | None = None,
        max_turns: int = 8,
        reward_weights: Mapping[str, float] | None = None,
        tokenizer: Any = None,
        render_mode: str | None = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            raise ConfigError(unknown_arguments(type(self), unknown))
        self._check_definition(tasks)
        self.tasks = tasks
        self.split = default_split(tasks) if split is None else split
        if split is not None:
            self._check_split(split)
        self.max_turns = whole_number("max_turns", max_turns, 1)
        for name, value in (("system_prompt", system_prompt), ("render_mode", render_mode)):
            if not (value is None or isinstance(value, str)):
                raise ConfigError(f"{name} is {quoted(value)}; it must be a text or None")
        self.weights = self._known_weights(reward_weights)
        self.system_prompt = self.default_system_prompt if system_prompt is None else system_prompt
        if isinstance(tokenizer, str):
            tokenizer = named_tokenizer(tokenizer, images=self.shows_images)
        self.renderer = None if tokenizer is None else ChatRenderer.of(tokenizer)
        self.render_mode = render_mode
        self.observation_space = Text(MAX_OBSERVATION_CHARS)
        self.action_space = Text(MAX_ACTION_CHARS)
        self.transcript = Transcript()
        self.tool_schemas: list[dict[str, Any]] = []
        self.turn = 0  # the one that comes next, 0 for the first
        self._over = True

    def _check_definition(self, tasks: Any) -> None:
        name, own = type(self).__name__, type(self)
        if not hasattr(tasks, "keys") or not hasattr(tasks, "__getitem__"):
            raise ConfigError(f"tasks of {name} is {shown(tasks)}; it must be a dict by split: {{'train': [...]}}")
        if not len(tasks):
            raise ConfigError(f"tasks of {name} has no split; give at least one: {{'train': [...]}}")
        for split, rows in tasks.items() if isinstance(tasks, dict) else ():
            if isinstance(rows, str | Mapping) or not (hasattr(rows, "__len__") and hasattr(rows, "__getitem__")):
                raise ConfigError(f"split {split!r} of the tasks of {name} is {shown(rows)}; it must be a list")
        if own.respond is TextEnv.respond and own.step is TextEnv.step:
            raise ConfigError(f"{name} does not define respond(action): let it return an agent_gym.Reply")

    def _check_split(self, split: str | None) -> None:
        if split is None:
            have = ", ".join(self.tasks)
            raise ConfigError(f"there is no split 'train'; this environment has: {have}; choose one by split")
        if split not in self.tasks:
            have = ", ".join(self.tasks)
            raise ConfigError(f"unknown split {split!r}; this environment has: {have}; choose one by split")

    def _known_weights(self, given: Mapping[str, float] | None) -> dict[str, float]:
        name, defaults = type(self).__name__, type(self).reward_weights
        given, known = given or {}, ", ".join(defaults) or "none"
        if not isinstance(given, Mapping):
            raise ConfigError(f"reward_weights is {quoted(given)}; it must be a dict from reward terms to weights")
        if unknown := set(given) - set(defaults):
            raise ConfigError(f"{name} has no reward term {sorted(map(str, unknown))}; known: {known}")
        if lost := sorted(self.process_terms - set(defaults)):
            raise ConfigError(f"process_terms of {name} names {lost}, and reward_weights does not; known: {known}")
        weights = {**defaults, **given}
        try:
            return {term: plain_number(weight, f"the weight of {term!r}", name) for term, weight in weights.items()}
        except EnvFailure as error:
            raise ConfigError(str(error)) from None

    def begin(self, task: Any) -> Content:
        """Start the task and return the user's first message: a text, or parts with images (`images.parts`)."""
        raise ConfigError(f"{type(self).__name__} does not define begin(task): let it return the first message, a text")

    def respond(self, action: str) -> Reply:
        """Answer one action of the policy."""
        raise ConfigError(f"{type(self).__name__} does not define respond(action): let it return an agent_gym.Reply")

    def categories(self, task: Any) -> dict[str, str]:
        """Return the kinds of a task, by name, for evaluations; by default the `CATEGORY_FIELDS` of its row."""
        row = task if isinstance(task, Mapping) else {}
        return {name: str(row[name]) for name in row if name in CATEGORY_FIELDS and isinstance(row[name], str | int)}

    def gold(self, task: Any) -> Any:
        """Return the reference solution of a task, as a JSON value; by default the `answer` of its row.

        It needs no `reset`. Raises `ConfigError` if there is none: the seed draws it, or another library has it.
        """
        if isinstance(task, Mapping) and "answer" in task:
            return task["answer"]
        raise ConfigError(f"{type(self).__name__} names no gold answer; define gold(task), or give rows an answer")

    def expert_action(self) -> str:
        """Return the next action of the environment's own expert, which reads the gold answer."""
        raise ConfigError(f"{type(self).__name__} has no expert")

    def check_style(self, style: str, known: Sequence[str] = ("default", "direct")) -> None:
        """Raise `ConfigError` unless the expert has a style."""
        if style not in known:
            raise ConfigError(f"the expert of {type(self).__name__} has no style {style!r}; known: {', '.join(known)}")

    def initial_messages(self, task: Any) -> tuple[list[Message], str]:
        """Start the task; return the messages before the policy's first turn, and the text of the observation."""
        return self._first_messages(self.begin(task))

    def _first_messages(self, question: Content) -> tuple[list[Message], str]:
        check_content(question, f"what {type(self).__name__}.begin returned")
        return cut_to_size(self.with_system_prompt(question), "\n\n")

    def prompt_ids(self, messages: list[Message]) -> list[int]:
        """Render a prompt, the opening or the return value of `state_prompt`: (T,) ids."""
        assert self.renderer is not None
        return self.renderer.prompt(messages, self.template_tools)

    def on_truncated(self) -> None:
        """Stop background work of an episode that a budget truncated. By default there is none."""

    def state_prompt(self) -> list[Message]:
        """Return the prompt of the next turn, for `rebuild` contexts: by default the opening and the history."""
        opening: list[Message] = copied(self._opening)
        if history := self.history():
            opening[-1]["content"] = join([opening[-1]["content"], f"{HISTORY_HEADING}\n{history}"], "\n\n")
        return opening

    def history(self) -> str:
        """Return the history so far, one numbered step after the other; "" at the start."""
        lines: list[str] = []
        for one in self.transcript.segments:
            if kind_of(one.source) == "agent":
                lines.append(f"{len(lines) + 1}. You: {one.text}\n   Answer: ")
            elif lines:
                lines[-1] += one.text
        return "\n".join(lines)

    def opening_system_prompt(self) -> str:
        """Return the system prompt of the episode that is starting."""
        return self.system_prompt

    def with_system_prompt(self, content: Content) -> list[Message]:
        """Return the messages of a prompt: the system prompt, if there is one, and the user's message."""
        system = self.opening_system_prompt()
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        return [*messages, {"role": "user", "content": content}]

    @property
    def template_tools(self) -> list[dict[str, Any]]:
        """The schemas that a chat template is given: the ones of `tool_schemas`, where it asks for the right format."""
        return self.tool_schemas

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: decides everything random in the episode, the choice of task included.
            options: `{"split": ..., "index": ...}` picks a task, `{"task": ...}` hands one in.

        Returns:
            The task as the policy should see it, and `info` with messages, tools, stop, task_id, categories, spans (and
            token_ids, token_spans when there is a tokenizer).

        Raises:
            ConfigError: for options that are not a dict or not known, an unknown split, an index out of range, or a
                wrong result of `begin`.
        """
        self._require_init()
        super().reset(seed=seed)
        if not (options is None or isinstance(options, Mapping)):
            example = "{'split': 'test', 'index': 0}"
            raise ConfigError(f"options of reset is {shown(options)}; it must be a dict, such as {example}")
        task, self.task_id = self._choose_task(options or {})
        self.place = f"task {self.task_id} of {self.spec.id if self.spec else type(self).__name__}"  # for messages
        self.transcript = Transcript()
        self.turn = 0
        self._over = True  # until there is something to act on
        messages, observation = self.initial_messages(task)
        messages = _plain(messages)
        self._opening = copied(messages)
        opening = self._begin_transcript(messages)
        self._over = False
        info: dict[str, Any] = {
            "messages": messages,
            "tools": [*self.tool_schemas],
            "stop": [*self.stop],
            "task_id": self.task_id,
            "categories": {str(name): str(kind) for name, kind in self.categories(task).items()},
        }
        return observation, info | opening

    def _require_init(self) -> None:
        if "_over" not in vars(self):
            name = type(self).__name__
            raise ConfigError(f"{name}.__init__ does not call the one of its base: super().__init__(tasks, **kwargs)")

    def _begin_transcript(self, messages: list[Message]) -> dict[str, Any]:
        """Write the opening into the transcript; returns its part of `info`."""
        # A template renders the opening as a whole, and splitting its ids by message would be a guess: all of them are
        # in the user's segment. None of them is the policy's.
        ids = [] if self.renderer is None else self.prompt_ids(messages)
        opening = []
        for message in messages[:-1]:
            source: Source = "system" if message["role"] == "system" else "user"
            opening.append(self.transcript.append(source, PROMPT_STEP, text_of(message["content"])))
        opening.append(self.transcript.append("user", PROMPT_STEP, text_of(messages[-1]["content"]), ids))
        info: dict[str, Any] = {"messages": messages, "spans": [segment.span for segment in opening]}
        if self.renderer is not None:
            info["token_ids"], info["token_spans"] = [*ids], [opening[-1].token_span]
        return info

    def _choose_task(self, options: Mapping[str, Any]) -> tuple[Any, str]:
        """Return the task that the options of `reset` name, or a random one, and its id, as "train/42"."""
        if not options.keys() <= _OPTIONS:
            raise ConfigError(f"unknown reset options {sorted(options.keys() - _OPTIONS)}; known: split, index, task")
        if options.get("task") is not None:
            if beside := [name for name in ("split", "index") if options.get(name) is not None]:
                raise ConfigError(f"reset options have a task and also {' and '.join(beside)}; give either")
            return options["task"], "given"
        split, index = options.get("split") or self.split, options.get("index")
        self._check_split(split)
        tasks = self.tasks[str(split)]
        if index is None:
            index = int(self.np_random.random() * len(tasks))
        elif isinstance(index, bool) or not hasattr(index, "__index__"):
            raise ConfigError(f"index is {index!r}; it must be an integer from 0 to {len(tasks) - 1}")
        index = operator.index(index)
        if not 0 <= index < len(tasks):
            raise ConfigError(f"index {index} is out of range: split {split!r} has {len(tasks)} tasks, 0 first")
        return tasks[index], f"{split}/{index}"

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the policy's turn and return the world's answer.

        Args:
            action: the policy's text; a `Sampled` also carries the ids it was sampled as.

        Returns:
            observation, reward, terminated (the task is over), truncated (the turn budget is), and `info` with
            messages, spans, reward_terms (they sum to the reward), process_reward (the part of the sum that judges the
            way and not the outcome), tool_calls, metrics, error, at the end is_success, and token_ids and token_spans
            when there is a tokenizer.

        Raises:
            gymnasium.error.ResetNeeded: before the first `reset` and after the end of an episode.
            TypeError: for an action that is not a text.
            ConfigError: if `respond` returns something else than a `Reply`, wrong types in it, or an unknown term.
            EnvFailure: if the machinery breaks, or a reward or metric is not a finite number of at most `MAX_REWARD`.
        """
        self._require_init()
        if self._over:
            why = "the episode is over" if hasattr(self, "task_id") else "no episode has begun"
            raise gymnasium.error.ResetNeeded(f"{why}: call reset() before step()")
        text = plain_action(action)
        reply = self.respond(text)
        self._over = True  # also where a check raises: the world advanced and the transcript did not
        check_reply(reply, type(self).__name__, self.weights)
        terms = {
            name: plain_number(value, "reward term", self.place, MAX_REWARD, self.weights[name], name)
            for name, value in reply.terms.items()
        }
        reward = plain_number(sum(terms.values()), "the reward", self.place, MAX_REWARD)
        metrics = plain_numbers(reply.metrics, "metric", self.place)
        terminated = bool(reply.terminated)
        truncated = not terminated and self.turn + 1 >= self.max_turns

        answers, observation = self.as_messages(reply)
        sampled, ids = self._token_ids(action, text, answers, observation, terminated)
        agent = self.transcript.append(self.author, self.turn, text, sampled)
        world = self.transcript.append(reply.source, self.turn, observation, ids)
        info: dict[str, Any] = {
            "messages": [{"role": "assistant", "content": text}, *answers],
            "spans": [agent.span, world.span],
            "reward_terms": terms,
            "process_reward": sum([paid for name, paid in terms.items() if name in self.process_terms], 0.0),
            "tool_calls": [call.record for call in reply.tool_calls],
            "metrics": metrics,
            "error": reply.error,
        }
        if self.renderer is not None:
            info["token_ids"] = [*sampled, *ids]
            info["token_spans"] = [agent.token_span, world.token_span] if ids else [agent.token_span]
        if terminated or truncated:
            info["is_success"] = bool(reply.success)
        self.transcript.messages += info["messages"]
        self.turn += 1
        self._over = terminated or truncated
        return observation, reward, terminated, truncated, info

    def render(self) -> str | None:
        """Return the transcript so far, one block per segment, when `render_mode` is "ansi"."""
        if self.render_mode is None:
            return None
        return "\n\n".join(f"[{one.source}]\n{one.text}" for one in self.transcript.segments if one.text)

    def as_messages(self, reply: Reply) -> tuple[list[Message], str]:
        """Return the world's answer as messages and as one text."""
        if reply.messages is not None:
            return cut_to_size(_plain(reply.messages), "\n")
        if reply.tool_calls and not reply.text:
            known = [schema["function"]["name"] for schema in self.tool_schemas]
            # A name that the policy made up stays out of the template, which would print it unchanged.
            answers: list[Message] = [
                {
                    "role": "tool",
                    "name": call.name if call.name in known else "error",
                    **({"tool_call_id": call.id} if call.id else {}),
                    "content": call.answer,
                }
                for call in reply.tool_calls
            ]
            return cut_to_size(answers, "\n")
        if reply.terminated and not reply.text:
            return [], ""
        role = self.renderer.observation_role if self.renderer and kind_of(reply.source) != "user" else "user"
        return cut_to_size(_plain([{"role": role, "content": reply.text}]), "")

    def _token_ids(
        self, action: str, text: str, answers: list[Message], observation: str, terminated: bool
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Return the ids of the action, and of the world's answer; empty where there are none."""
        if self.renderer is None:
            return (), ()
        if isinstance(action, Sampled):
            sampled = action.token_ids
        else:
            # A script's or a person's. Where the world answers inside the turn, sampling ends at a stop string.
            stopped = self.inline and text.endswith(tuple(self.stop))
            last = self.transcript.segments[-1].token_ids
            sampled = self.renderer.encode_action(text, closed=not stopped, after=last)
        if terminated and not observation:
            return sampled, ()
        if self.inline:
            return sampled, self.renderer.inline_reply(sampled, observation)
        # A truncated episode could continue: its text ends with the generation prompt.
        past = self.transcript.messages if self.renderer.call_format.counts else ()
        return sampled, self.renderer.reply(sampled, answers, final=terminated, tools=self.template_tools, past=past)


renamed_methods(TextEnv, RENAMED)


def _plain(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Copy messages; parts without an image become the text that they are, since most readers expect a text."""
    copies = [copied(dict(message)) for message in messages]
    for one in copies:
        if isinstance(one["content"], list) and not images_of([one]):
            one["content"] = text_of(one["content"])
    return copies
