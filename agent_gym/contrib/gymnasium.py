"""Any `gymnasium.Env` whose observations are or become texts, as a `TextEnv` with spans and masks.

    env = FromGymnasium(lambda: SomeTextEnv(level=2))                      # a task is a seed
    env = FromGymnasium(make_episode, tasks={"train": ids, "test": others})  # or the arguments of `make_episode`
    env = FromGymnasium(lambda: House(), success="won")                      # info["won"] says whether it is solved
    env = FromGymnasium("FrozenLake-v1", describe=shown, actions=["Left", "Down", "Right", "Up"])  # numbers, as texts

A world that makes an environment per task, as tau2-bench's `AgentGymEnv(domain, task_id, solo_mode=True)`, is of the
second kind.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import gymnasium
import numpy as np

from agent_gym.env import Reply, TextEnv
from agent_gym.errors import ConfigError, shown
from agent_gym.rewards import after_thought, tagged_answer
from agent_gym.tool_results import MAX_RESULT_CHARS, checked_limit, cut_text

# A task is a seed, and a split a range of them.
SEEDS = {"train": range(100_000), "validation": range(100_000, 101_000), "test": range(101_000, 102_000)}


class FromGymnasium(TextEnv):
    """A text environment of Gymnasium's.

    `reward` (weight 1) is its own. Where it truncates, the episode is truncated here, too. `is_success` is the value
    that its `info` says under the name `success`; without one under "is_success", else whether the last reward is at
    least `success_reward`. An observation of more than `max_chars` characters is cut, with a mark at its end.

    Args:
        make: an id that `gymnasium.make` knows, or a function that makes the environment. With `tasks`, a function of a
            task, which is called for each episode.
        tasks: split name to tasks; by default seeds, of which no two splits share one.
        env_kwargs: arguments of the id.
        success_reward: an episode whose last reward is at least this counts as solved, where nothing else says so.
        success: the name in `info` that says whether the task is solved, such as "won" or "success", or a function of
            `info`. It is True or False, 0 or 1, or an array or list of one of these. The last one that was said counts,
            whatever is paid and when; a step without it leaves it as it was.
        max_chars: see above; at least 100.
        describe: a function of an observation and the environment that returns a text, for observations that are none.
        actions: names of the actions of a `Discrete` space, in its order; by default their numbers. A turn is one of
            them, in any case, or has it in `<answer>`. Anything else is answered by a line that names them, and does
            nothing.
        **kwargs: see `TextEnv`; a system prompt may say how actions are written, where observations do not. By default
            it names the actions of a `Discrete` space.

    Raises:
        ConfigError: if the environment cannot be made, if its observation is not a text and there is no `describe`, or
            `describe` returns none, if `actions` does not fit the space, or if `success` names nothing that it ever
            says, or something else than yes or no.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"reward": 1.0}

    def __init__(
        self,
        make: str | Callable[..., gymnasium.Env],
        *,
        tasks: Mapping[str, Sequence[Any]] | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        success_reward: float = 1.0,
        success: str | Callable[[Mapping[str, Any]], Any] | None = None,
        max_chars: int = MAX_RESULT_CHARS,
        describe: Callable[[Any, Any], str] | None = None,
        actions: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        if not (describe is None or callable(describe)):
            raise ConfigError(f"describe is {shown(describe)}; it must be a function of an observation and the world")
        self._describe, self._given = describe, actions
        if not (success is None or isinstance(success, str) or callable(success)):
            raise ConfigError(f"success is {shown(success)}; it must be a name in info, such as 'won', or a function")
        self._per_task = tasks is not None
        if isinstance(make, str) and self._per_task:
            raise ConfigError(f"with tasks, make is a function that is given a task, not the id {make!r}")
        if env_kwargs and not isinstance(make, str):
            raise ConfigError("env_kwargs are the arguments of an id; a function makes the environment with its own")
        if isinstance(make, str):
            try:
                self._inner: Any = gymnasium.make(make, **(env_kwargs or {}))
            except (gymnasium.error.Error, TypeError) as error:
                raise ConfigError(f"Gymnasium cannot make {make!r}: {error}") from error
        else:
            self._make = make
            self._inner = None if self._per_task else make()
        self._success_reward, self._success = success_reward, success
        self._won: bool | None = None  # as the world said it last
        self._max_chars = checked_limit(max_chars)
        self._names = names = [] if self._inner is None else action_names(self._inner.action_space, actions)
        if names and kwargs.get("system_prompt") is None:
            kwargs = {**kwargs, "system_prompt": f"Answer with one of these actions: {', '.join(names)}."}
        super().__init__(SEEDS if tasks is None else tasks, **{"max_turns": 100, **kwargs})
        self._budget = self.max_turns

    def begin(self, task: Any) -> str:
        self.max_turns, self._won = self._budget, None
        if self._per_task:
            self.close()
            self._inner = self._make(task)
        self._names = action_names(self._inner.action_space, self._given)
        seed = int(self.np_random.integers(2**31)) if self._per_task else int(task)
        observation, _ = self._inner.reset(seed=seed)
        return self._text(observation)

    def respond(self, action: str) -> Reply:
        chosen: Any = action
        if self._names:
            said = (tagged_answer(action) or after_thought(action)).strip().lower()
            known = [name.lower() for name in self._names]
            if said not in known:
                error = f"Answer with one of these actions: {', '.join(self._names)}."
                return Reply(error, terms={"reward": 0.0}, error="no such action")
            chosen = int(self._inner.action_space.start) + known.index(said)
        observation, reward, terminated, truncated, info = self._inner.step(chosen)
        if truncated:
            self.max_turns = self.turn + 1  # this was the last one
        over = bool(terminated or truncated)
        solved = self._solved(info, over)
        if solved is None:
            solved = over and float(reward) >= self._success_reward
        return Reply(
            self._text(observation), terms={"reward": float(reward)}, terminated=bool(terminated), success=solved
        )

    def _solved(self, info: Mapping[str, Any], over: bool) -> bool | None:
        """Return the world's verdict on success so far, None if the reward has to."""
        if self._success is None:
            return None if info.get("is_success") is None else over and yes_or_no(info["is_success"], "'is_success'")
        said = self._success(info) if callable(self._success) else info.get(self._success)
        if said is not None:
            self._won = yes_or_no(said, f"success={self._success!r}")
        if over and self._won is None:
            names = ", ".join(map(str, info)) or "nothing"
            world = type(self._inner.unwrapped).__name__
            said = f"no info of {world} said it; the last one has: {names}"
            raise ConfigError(f"success is {self._success!r}, and {said}")
        return bool(self._won)

    def gold(self, task: Any) -> Any:
        raise ConfigError("a Gymnasium environment names no gold answer")

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()

    @property
    def random_action(self) -> Callable[[np.random.Generator], str]:
        """A function that draws the name of an action, only there in a `Discrete` space."""
        if not (names := self._names):
            raise AttributeError("random_action")
        return lambda rng: names[int(rng.integers(len(names)))]

    def _text(self, observation: Any) -> str:
        text, world = observation, type(self._inner.unwrapped).__name__
        if self._describe is not None:
            text = self._describe(observation, self._inner)
        if not isinstance(text, str):
            said = f"what describe returned of {world}" if self._describe else f"the observation of {world}"
            cure = "it must return a text" if self._describe else "give describe=, a function that makes it a text"
            raise ConfigError(f"{said} is {shown(text)}; {cure}")
        return cut_text(text, self._max_chars)


def action_names(space: Any, given: Any) -> list[str]:
    """Return the names of the actions of a `Discrete` space, [] for any other; `ConfigError` if they do not fit."""
    count = int(space.n) if isinstance(space, gymnasium.spaces.Discrete) else 0
    if given is None:
        return [str(int(space.start) + action) for action in range(count)]
    names = [*given] if isinstance(given, list | tuple) else []
    plain = {one.lower() for one in names if isinstance(one, str) and one.strip() == one != ""}
    if not count or len(plain) != count or len(names) != count:
        wanted = f"a list of {count} different names" if count else "left out: only a Discrete space takes names"
        raise ConfigError(f"actions is {shown(given)}, and the action space {space}; it must be {wanted}")
    return names


def yes_or_no(value: Any, name: str) -> bool:
    """Return a value of `info` as a bool: one of Python, numpy or torch, 0 or 1, or a list of one of these.

    Raises:
        ConfigError: for anything else, such as a score of 0.7 or a text.
    """
    one = value
    for _ in range(3):  # [array([True])]
        if hasattr(one, "tolist"):
            one = one.tolist()
        if isinstance(one, list | tuple) and len(one) == 1:
            one = one[0]
    if not isinstance(one, bool | int | float) or one not in (0, 1):
        raise ConfigError(f"{name} of info is {shown(value)}; it must be True or False, 1 or 0")
    return bool(one)


def wrap(make: str | Callable[..., gymnasium.Env], **kwargs: Any) -> FromGymnasium:
    """Return `FromGymnasium(make, **kwargs)`; `ConfigError` for an environment that is made already.

    One object cannot play several episodes at once, so that its factory is asked for.
    """
    if not (isinstance(make, str | type) or callable(make) and not hasattr(make, "step")):
        raise ConfigError(f"wrap got {shown(make)}; hand over its id, or a function that makes it: lambda: MyEnv()")
    return FromGymnasium(make, **kwargs)


# Environments live in threads, and the generators belong to all of them.
_TURN = threading.RLock()


class OwnRandomness:
    """Python's and NumPy's global generators, used by some libraries, as the generators of one environment.

        with self._randomness.used():
            game.step(action)

    One environment at a time uses it: a draw of another would change the game. Afterwards the process has its own back.
    """

    def __init__(self) -> None:
        self._mine: tuple[Any, Any] | None = None

    @contextmanager
    def used(self) -> Iterator[None]:
        with _TURN:
            before = random.getstate(), np.random.get_state()
            if self._mine is not None:
                random.setstate(self._mine[0])
                np.random.set_state(self._mine[1])
            try:
                yield
            finally:
                self._mine = random.getstate(), np.random.get_state()
                random.setstate(before[0])
                np.random.set_state(before[1])
