"""verifiers (github.com/PrimeIntellect-ai/verifiers), the environments of its versions before 0.4, such as `ToolEnv`.

verifiers drives its environments itself and asks a client for each turn. On the way in the client is ours: it hands
the prompt to the episode and waits for the policy, so that loop, stop conditions and scoring are verifiers' own.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import gymnasium

from agent_gym.chat import Message
from agent_gym.contrib import opening_messages
from agent_gym.env import Reply
from agent_gym.errors import ConfigError, EnvFailure, require
from agent_gym.tool_env import ToolEnv
from agent_gym.tools import Tool

_KEY = "agent_gym"


def _verifiers() -> Any:
    verifiers = require("verifiers", "verifiers")
    if not hasattr(verifiers, "MultiTurnEnv"):
        raise ConfigError(
            f"verifiers {verifiers.__version__} has no MultiTurnEnv: version 0.4 removed the environments of before; "
            "pip install 'verifiers<0.4'"
        )
    return verifiers


def to_verifiers(env_id: str, *, split: str = "train", tasks: int = 100, seed: int = 0, **env_kwargs: Any) -> Any:
    """Make an environment of agent_gym a `verifiers.MultiTurnEnv`.

    Calls are text in the environment's own format, which the prompt describes. The rubric pays the sum of the rewards.
    Task i (of `tasks`) of the split is reset with `seed` + i.

    Raises:
        ConfigError: if verifiers is not installed or too new, or there are fewer tasks.
    """
    vf = _verifiers()
    datasets = require("datasets", "train")
    probe: Any = gymnasium.make(env_id, **env_kwargs)
    rows = []
    for index in range(tasks):
        start = {"seed": seed + index, "options": {"split": split, "index": index}}
        _, info = probe.reset(**start)
        rows.append({"prompt": opening_messages(probe.unwrapped, info), "info": json.dumps(start)})
    probe.close()

    class MultiTurnEnv(vf.MultiTurnEnv):  # type: ignore[name-defined]
        async def setup_state(self, state: Any) -> Any:
            env = gymnasium.make(env_id, **env_kwargs)
            await asyncio.to_thread(env.reset, **state["info"])
            state[_KEY] = {"env": env, "reward": 0.0, "success": False}
            return state

        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            mine = state[_KEY]
            action = messages[-1].content or ""
            _, reward, terminated, truncated, info = await asyncio.to_thread(mine["env"].step, action)
            mine["reward"] += float(reward)
            answers = [{"role": "user", "content": one["content"]} for one in info["messages"][1:]]
            if terminated or truncated:
                mine["success"] = bool(info["is_success"])
                state["final_env_response"] = answers
            return answers

        @vf.cleanup
        async def close_env(self, state: Any) -> None:
            if _KEY in state:
                state[_KEY].pop("env").close()

    async def reward(state: Any) -> float:
        return float(state[_KEY]["reward"])

    async def success(state: Any) -> float:
        return float(state[_KEY]["success"])

    rubric = vf.Rubric(funcs=[reward, success], weights=[1.0, 0.0])
    return MultiTurnEnv(dataset=datasets.Dataset.from_list(rows), rubric=rubric, env_id=env_id)


class FromVerifiers(ToolEnv):
    """An environment of verifiers (before 0.4).

    Turns with calls of the environment's tools are handed over as tool calls, others as text. `terminated` when
    verifiers ends the rollout; then `reward` (weight 1) is what the rubric gives, and its metrics are in the info.

    Args:
        env: a `verifiers.Environment`. Copies of this environment share it, and it keeps no state of an episode.
        success_reward: an episode whose reward is at least this counts as solved.
        **kwargs: see `ToolEnv`.

    Raises:
        ConfigError: if verifiers is not installed or too new.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"reward": 1.0}

    def __init__(self, env: Any, *, success_reward: float = 1.0, max_turns: int = 100, **kwargs: Any) -> None:
        self._vf = _verifiers()
        self._env, self._success_reward = env, success_reward
        self._rollout: _Rollout | None = None
        tasks: dict[str, Sequence[Any]] = {}
        if env.dataset_source is not None or env.dataset is not None:
            tasks["train"] = env.get_dataset()
        tasks["test"] = env.get_eval_dataset()
        tools = [Tool(one.name, one.description, one.parameters) for one in env.tool_defs or []]  # verifiers runs them
        super().__init__(tasks, tools=tools, max_turns=max_turns, **kwargs)

    def begin(self, task: Any) -> str:
        self.close()
        self._rollout = _Rollout(self._vf, self._env, task)
        prompt, _ = self._rollout.next_prompt()
        if prompt is None:
            raise EnvFailure("verifiers ended the rollout before the first turn")
        self._seen = len(prompt)
        *before, last = (one["content"] for one in prompt)
        self.system_prompt = "\n\n".join(before)
        return last

    def respond(self, action: str) -> Reply:
        assert self._rollout is not None
        calls = [call for call in self.parser.parse(action) if call.name in self.tools and not call.error]
        self._rollout.take((action, calls))
        prompt, result = self._rollout.next_prompt()
        if prompt is None:
            reward, metrics = float(result["reward"] or 0.0), result.get("metrics") or {}
            success, terms = reward >= self._success_reward, {"reward": reward}
            return Reply(messages=[], terms=terms, terminated=True, success=success, metrics=metrics, tool_calls=calls)
        # Behind what was seen stand this turn's own message and the answers to it.
        answers = prompt[self._seen + 1 :]
        self._seen = len(prompt)
        return Reply(messages=answers, terms={"reward": 0.0}, tool_calls=calls)

    def close(self) -> None:
        if self._rollout is not None:
            self._rollout.take(None)
            self._rollout = None


class _Rollout:
    """verifiers' rollout in a thread of its own, and the two queues between it and the episode."""

    def __init__(self, vf: Any, env: Any, row: Mapping[str, Any]) -> None:
        self._prompts: queue.SimpleQueue[tuple[list[Message] | None, Any]] = queue.SimpleQueue()
        # Waited for by the loop itself: a thread that waits would keep the interpreter from ending, if an episode is
        # left without `close`.
        self._turns: asyncio.Queue[Any] = asyncio.Queue()
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = runner.get_loop()
        work = env.run_rollout({"example_id": 0, **row}, _make_client(vf, self), "policy", {})

        def run() -> None:
            try:
                with runner:
                    self._prompts.put((None, runner.run(work)))
            except BaseException as error:
                self._prompts.put((None, error))

        threading.Thread(target=run, name="verifiers-rollout", daemon=True).start()

    def next_prompt(self) -> tuple[list[Message] | None, Any]:
        """Wait for the next prompt; None with the result when the rollout is over."""
        prompt, result = self._prompts.get()
        if isinstance(result, BaseException):
            raise EnvFailure(f"verifiers' rollout broke: {type(result).__name__}: {result}") from result
        if prompt is None and result.get("error"):
            raise EnvFailure(f"verifiers' rollout broke: {result['error']}")
        return prompt, result

    def take(self, turn: tuple[str, Sequence[Any]] | None) -> None:
        """Take the policy's turn: a text and its calls; None ends the rollout, if it has not ended by itself."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._turns.put_nowait, turn)

    async def turn(self, prompt: Sequence[Any]) -> tuple[str, Sequence[Any]]:
        """Show a prompt to the episode and wait for the policy; called by verifiers' loop."""
        self._prompts.put(([{"role": one.role, "content": one.content or ""} for one in prompt], None))
        turn = await self._turns.get()
        if turn is None:
            raise asyncio.CancelledError
        return turn


def _make_client(vf: Any, rollout: _Rollout) -> Any:
    types = require("verifiers.types", "verifiers")
    base = require("verifiers.clients", "verifiers").Client

    async def get_response(self: Any, prompt: Any, model: str, *args: Any, **kwargs: Any) -> Any:
        text, calls = await rollout.turn(prompt)
        made = [
            types.ToolCall(id=f"call_{len(prompt)}_{n}", name=call.name, arguments=json.dumps(call.arguments))
            for n, call in enumerate(calls)
        ]
        message = types.ResponseMessage(
            content=text, tool_calls=made or None, finish_reason="tool_calls" if made else "stop", is_truncated=False
        )
        return types.Response(id="turn", created=int(time.time()), model=model, message=message)

    # What turns prompts into requests of a server is not needed, since there is none.
    unused = {name: None for name in base.__abstractmethods__}
    return type("PolicyClient", (base,), {**unused, "get_response": get_response})(None)
