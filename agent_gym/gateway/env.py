"""`AgentEnv`: an agent that one did not write, as an environment whose situation is the agent's next request.

    reset   starts the agent on the task; its first request is the prompt
    step    answers the request with the policy's turn, and waits for the next one, or for the agent's end

So rollouts, budgets, failures, evaluation and training need to know nothing of agents. The prompt of each turn is
rendered from the request, turns of the policy id for id (history.py); the rollout joins it to the row that it extends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agent_gym.chat import ChatRenderer, Message, copied, text_of
from agent_gym.data import load_splits
from agent_gym.env import Reply, TextEnv
from agent_gym.errors import ConfigError, EnvFailure, described, shown
from agent_gym.formats.json_calls import HermesParser
from agent_gym.formats.native import NativeParser
from agent_gym.gateway import thing_at
from agent_gym.gateway.agents import FunctionAgent, Output, ProgramAgent
from agent_gym.gateway.exchange import HERMES, Answer, Refused, split_turn
from agent_gym.gateway.history import History
from agent_gym.gateway.known_turns import KnownMessages
from agent_gym.gateway.server import Act, AgentSession, Ended, Exchange, shared_gateway
from agent_gym.registry import make
from agent_gym.tool_env import ToolEnv
from agent_gym.tools import ToolCall, ToolSchema, Turn
from agent_gym.transcript import Sampled


class Either(HermesParser):
    """Reads calls in the policy's own form, and calls in Hermes' form, as agents in a world write them."""

    def __init__(self, model: NativeParser) -> None:
        super().__init__()
        self._model, self.family = model, model.family

    def for_tools(self, tools: Sequence[ToolSchema]) -> Either:
        return Either(self._model.for_tools(tools))

    def parse(self, text: str) -> list[ToolCall]:
        return self._model.parse(text) or super().parse(text)

    def split(self, text: str, prefill: str = "") -> Turn:
        turn = self._model.split(text, prefill)
        return turn if turn.calls else super().split(text, prefill)

    def render_calls(self, calls: Sequence[ToolCall], before: int = 0) -> str:
        return self._model.render_calls(calls, before)


class AgentEnv(TextEnv):
    """Let an agent solve a task with the policy as its model.

    ## Description
    The agent is a function or a program that knows a base URL and a key. It decides on the policy's prompts and tools,
    on the kept part of a conversation, and on the number of conversations.

    ## Action
    The answer to a request of the agent. Tool calls are read in the policy's own form where the request offers tools.

    ## Reward
    `reward` (weight 1): the value of `reward(task, result, transcript)`, where the result is the agent's return value
    (of a program an `Output`) and the transcript all messages; or the sum of the rewards of the `world`. From 1 on the
    task counts as solved.

    ## Episode end
    `terminated` when the agent ends, `truncated` after `max_turns` requests. With a `world` the episode ends as that
    does, and the agent is stopped. An agent that raises, exits with another code than 0, asks nothing or is silent for
    `patience_s` fails the episode.

    Args:
        agent: `module:function` of an agent, or the words of a command; None for one that comes by itself to `session`.
        tasks: a file or folder of rows, see `load_splits`, or a name of `gateway.place_of`: rows, or rows by split.
        reward: `module:function`; not with a `world`.
        world: id of an environment that gives the tasks and the reward. The agent's task then has its `messages`,
            `tools`, the `question` and `step`, a function that acts in it and returns its answer. A text that the agent
            returns is its last action there.
        world_kwargs: arguments of the world.
        session: the key of the agent that comes by itself; its episode ends when it is silent for `patience_s`.
        agent_env_pass: names of further variables of this process that the program of an agent gets.
        patience_s: seconds.
        **kwargs: see `TextEnv`.

    Raises:
        ConfigError: for an agent, a reward or tasks that cannot be found, or none of them.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"reward": 1.0}

    def __init__(
        self,
        *,
        agent: str | Sequence[str] | None = None,
        tasks: str | None = None,
        reward: str | None = None,
        world: str | None = None,
        world_kwargs: Mapping[str, Any] | None = None,
        session: str | None = None,
        agent_env_pass: Sequence[str] = (),
        patience_s: float = 600.0,
        max_turns: int = 32,
        **kwargs: Any,
    ) -> None:
        if (agent is None) == (session is None):
            raise ConfigError("give an agent: a function, module:function, or the words of a command")
        if session is None and (tasks is None, reward is None) != (world is not None, world is not None):
            raise ConfigError("give an agent either tasks and a reward, or an environment that has both")
        self._function = thing_at(agent) if isinstance(agent, str) else None
        self._command = None if agent is None or isinstance(agent, str) else [*agent]
        self._reward = None if reward is None else thing_at(reward)
        self._world = None if world is None else make(world, **(world_kwargs or {}))
        self._caller, self._patience_s = session, patience_s
        if isinstance(agent_env_pass, str) or not all(isinstance(name, str) for name in agent_env_pass):
            raise ConfigError(f"agent_env_pass is {shown(agent_env_pass)}; it must be a list of names of variables")
        self._passed = tuple(agent_env_pass)
        self._session: AgentSession | None = None
        self._running: FunctionAgent | ProgramAgent | None = None
        self._exchange: Exchange | None = None
        splits = self._world.tasks if self._world is not None else {"train": [{}]} if tasks is None else _splits(tasks)
        super().__init__(splits, max_turns=max_turns, **kwargs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, **self._limits, "rebuilds": True}

    def initial_messages(self, task: Any) -> tuple[list[Message], str]:
        if not (self.renderer is None or isinstance(self.renderer, ChatRenderer)):
            raise ConfigError("agents have their own threads or processes: leave env_processes at 0")
        self.on_truncated()
        self._history, self._solved = History(self.parser), False
        self._paid = self._process = 0.0  # by the world since the last turn: all of it, and the process reward in it
        self._world_over = self._world_cut = False
        self._told: dict[str, float] = {}  # the numbers for the log of the world's last step
        self._session = shared_gateway().open(self._caller)
        self._task = copied(task) if self._world is None else self._begin_world(task, self._session)
        if self._function is not None:
            self._running = FunctionAgent(self._function, self._task, self._session)
        elif self._command is not None:
            self._running = ProgramAgent(self._command, self._task, self._session, self._passed)
        if ended := self._listen():
            self.on_truncated()
            why = f": {described(ended.error)}" if ended.error else ""
            raise EnvFailure(f"the agent or its world ended before its first request{why}") from ended.error
        self._talk = [*self._news]
        return self._news, "\n\n".join(one["content"] for one in self._news)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.renderer is not None and not self._shown:
            raise ConfigError("an agent writes its own prompts, so that the only context is 'append'")
        self._action = action
        observation, reward, terminated, truncated, info = super().step(action)
        info["process_reward"], self._process = self.weights["reward"] * self._process, 0.0
        if self._world_cut:
            terminated, truncated = False, True
        return observation, reward, terminated, truncated, {**info, **self._limits}

    def respond(self, action: str) -> Reply:
        assert self._exchange is not None
        answer, asked = self._written(action), self._exchange.asked
        self._history.add(asked.messages, answer, action)
        if self._session is not None:
            turn = {"text": action, "token_ids": [*answer.token_ids], "logprobs": [*answer.logprobs], "cut": answer.cut}
            self._session.on_answer(self._news, asked.tools, getattr(self, "_prompt", ()), turn)
        self._exchange.resolve(answer)
        self._talk.append({"role": "assistant", "content": action})
        reply = Reply(messages=[])
        offered = {one["function"]["name"] for one in asked.tools}  # not the tools of `reset`: each request has its own
        reply.tool_calls = [
            ToolCall(call.name, json.loads(call.arguments), offered=call.name in offered) for call in answer.calls
        ]
        reply.metrics = {} if asked.temperature is None else {"asked_temperature": float(asked.temperature)}
        if ended := self._listen():
            reply.terms, reply.terminated = {"reward": self._score(ended)}, True
            reply.success = self._solved if self._world is not None else reply.terms["reward"] >= 1
            self.on_truncated()
        else:
            reply.terms, self._paid = {"reward": self._paid}, 0.0  # now: a limit may end the episode here
            reply.messages = self._news
            self._talk += self._news
        reply.metrics |= self._told
        return reply

    def _written(self, text: str) -> Answer:
        """The answer that the policy wrote, as ids where there are any."""
        assert self._exchange is not None
        stop = min((word for word in self.stop if word in text), key=text.find, default=None)
        if self.renderer is None:
            return Answer(*split_turn(text, self._exchange.asked), cut=False, stop=stop)
        ids, _ = self._token_ids(self._action, text, [], "", True)
        logprobs = self._action.logprobs if isinstance(self._action, Sampled) else [0.0] * len(ids)
        ended = bool(ids) and ids[-1] in self.renderer.eos_token_ids
        cut = not ended and stop is None
        tokens = [self.renderer.decode_action([i]) for i in ids]
        prefill = self.renderer.prefill_at(self._messages)
        parts = split_turn(text, self._exchange.asked, prefill, self.parser)
        return Answer(*parts, cut, self._prompt, ids, logprobs, tokens, stop)

    def _listen(self) -> Ended | None:
        """Wait for the agent's next request, and read it; returns the end if the agent or its world ends instead."""
        assert self._session is not None
        while True:
            try:
                entry = self._session.next(self._patience_s)
            except EnvFailure:
                if self._caller is None:
                    raise
                entry = Ended()
            if isinstance(entry, Act):
                self._answer_act(entry)
                if not self._world_over:
                    continue
                entry = Ended()  # nothing that the agent does can earn more
            if isinstance(entry, Ended):
                self._exchange = None
                return entry
            try:
                self._read(entry)
            except ConfigError as error:  # the chat template takes no such conversation
                entry.resolve(Refused(400, str(error)))
                continue
            return None

    def _read(self, exchange: Exchange) -> None:
        asked = exchange.asked
        messages, self._news = self._history.recognise(asked.messages), self._history.news(asked.messages)
        self.tool_schemas, self.stop = asked.tools, asked.stop
        self._limits = {"stop": [*asked.stop], "max_tokens": asked.max_tokens}
        if asked.tools and self.renderer is not None:
            self.renderer.call_format.say()
        if asked.tools and not self.template_tools:
            # The template would not show the tools, so that the system prompt has to.
            first = messages[0] if messages[0]["role"] == "system" else {"role": "system", "content": ""}
            content = "\n\n".join(filter(None, [first["content"], self.parser.instructions(asked.tools)]))
            made = [{**first, "content": content}, *messages[messages[0] is first :]]
            messages = KnownMessages(made, messages.known)
        if self.renderer is not None:
            self._prompt = self.renderer.conversation(messages, self.template_tools)
        self._exchange, self._messages, self._shown = exchange, messages, False

    @property
    def template_tools(self) -> list[dict[str, Any]]:
        return self.tool_schemas if self.renderer is None or self.renderer.call_format.in_template else []

    @property
    def parser(self) -> NativeParser:
        """The wire format in which the policy writes calls."""
        return (HERMES if self.renderer is None else self.renderer.call_format.parser).for_tools(self.tool_schemas)

    def state_prompt(self) -> list[Message]:
        return self._messages

    def prompt_ids(self, messages: list[Message]) -> list[int]:
        self._shown = True
        return self._prompt

    def _token_ids(
        self, action: str, text: str, answers: list[Message], observation: str, terminated: bool
    ) -> tuple[Sequence[int], Sequence[int]]:
        # The text after the turn is not known before the next request, which is a separate prompt.
        return super()._token_ids(action, text, [], "", True)

    def _score(self, ended: Ended) -> float:
        if ended.error is not None:
            raise EnvFailure(f"the agent failed: {described(ended.error)}") from ended.error
        if self._world is not None:
            result = ended.result.text if isinstance(ended.result, Output) else ended.result
            if isinstance(result, str) and not self._world_over:
                self._act(result)
            return self._paid
        return 0.0 if self._reward is None else float(self._reward(self._task, ended.result, self._talk))

    def on_truncated(self) -> None:
        session, self._session = self._session, None
        running, self._running = self._running, None
        if running is not None:
            running.stop()
        if session is not None:
            session.close()

    def close(self) -> None:
        self.on_truncated()
        if self._world is not None:
            self._world.close()

    # The world, which lives in the thread of this environment as all others do.

    def categories(self, task: Any) -> dict[str, str]:
        return super().categories(task) if self._world is None else self._world.categories(task)

    def gold(self, task: Any) -> Any:
        return super().gold(task) if self._world is None else self._world.gold(task)

    def _begin_world(self, task: Any, session: AgentSession) -> dict[str, Any]:
        assert self._world is not None
        if self.renderer is not None and isinstance(world := self._world.unwrapped, ToolEnv):
            world.spoken = Either(self.renderer.call_format.parser)
        _, info = self._world.reset(seed=int(self.np_random.integers(1 << 31)), options={"task": task})
        question = text_of(info["messages"][-1]["content"])
        return {"messages": info["messages"], "tools": info["tools"], "question": question, "step": session.act}

    def _answer_act(self, act: Act) -> None:
        try:
            act.answer.set_result(self._act(act.action))
        except BaseException as error:
            act.answer.set_exception(error)
            raise  # a world that fails has failed, whatever the agent makes of it

    def _act(self, action: str) -> str:
        assert self._world is not None
        observation, reward, terminated, truncated, info = self._world.step(action)
        self._paid += reward
        self._process += info.get("process_reward", 0.0)
        self._world_over, self._world_cut = terminated or truncated, truncated
        self._solved, self._told = bool(info.get("is_success", False)), info.get("metrics", {})
        return observation


def _splits(tasks: str) -> Mapping[str, Sequence[Any]]:
    rows = thing_at(tasks) if tasks.startswith("object:") else load_splits(tasks, columns=())
    return rows if isinstance(rows, Mapping) else {"train": rows}
