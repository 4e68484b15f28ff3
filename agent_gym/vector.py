"""Many environments as one: the result of `gymnasium.make_vec` for the ids registered here.

    envs = gymnasium.make_vec("AgentR1/GSM8K-v0", num_envs=64)
    observations, infos = envs.reset(seed=0)
    observations, rewards, terminated, truncated, infos = envs.step(["<answer>1</answer>"] * 64)

`TextVectorEnv` is Gymnasium's `SyncVectorEnv` for text, with threads for environments that wait for a server, and with
failures that do not cost the other environments their step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agent_gym.errors import ConfigError, EnvFailure, described, quoted
from agent_gym.rollout.env_threads import Worker
from agent_gym.transcript import plain_action

if TYPE_CHECKING:
    _SyncVectorEnv = SyncVectorEnv[tuple[str, ...], Sequence[str]]
else:
    _SyncVectorEnv = SyncVectorEnv  # before Gymnasium 1.4 it names no types

__all__ = ["SlotFailure", "TextVectorEnv", "batch_infos"]


class SlotFailure(EnvFailure):
    """Environments of a vector environment broke: `slots` has the error of each.

    The others did their step, and `result` is the return value that `step` or `reset` would have had: a broken slot has
    the observation "" and, of a step, the reward NaN, and it is truncated, so that autoreset resets it.
    """

    def __init__(self, slots: Mapping[int, Exception], result: tuple[Any, ...]) -> None:
        what = "; ".join(f"slot {slot}: {described(error)}" for slot, error in sorted(slots.items()))
        super().__init__(f"{len(slots)} of {len(result[0])} environments broke: {what}")
        self.slots = dict(slots)
        self.result = result


class TextVectorEnv(_SyncVectorEnv):
    """Environments that speak text, stepped together; actions and observations are tuples of strings.

    Infos are merged column by column, so that a column of several types loses nothing (`batch_infos`). If an
    environment breaks, the others do their step before `SlotFailure` is raised. All else is as in `SyncVectorEnv`.

    Args:
        env_fns: functions that make one environment each.
        autoreset_mode: when an environment whose episode ended is reset: in the next step, which then ignores its
            action (the default), in the same step (`infos["final_obs"]` and `infos["final_info"]` have the end of the
            last episode), or by the caller (`options={"reset_mask": ...}`).
        workers: number of threads, in one of which each environment is made, reset, stepped and closed; 0 runs them in
            the caller's thread, one after the other.

    Raises:
        ConfigError: for an unknown mode or a number of workers or environments that cannot be.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env[str, str]]],
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        workers: int = 0,
    ) -> None:
        if not env_fns:
            raise ConfigError("a vector environment needs at least 1 environment, got none")
        if workers < 0:
            raise ConfigError(f"workers is {workers}; it must be 0 (no threads) or more")
        known = [mode.value for mode in AutoresetMode]
        if autoreset_mode not in [*known, *AutoresetMode]:
            raise ConfigError(f"autoreset_mode is {autoreset_mode!r}; known: {', '.join(map(repr, known))}")
        self._threads = [Worker("agent-gym-slots") for _ in range(min(workers, len(env_fns)))]
        makers = [lambda slot=slot: self._run(lambda slot: env_fns[slot](), [slot])[0] for slot in range(len(env_fns))]
        try:
            super().__init__(makers, autoreset_mode=AutoresetMode(autoreset_mode))
        except BaseException:
            self.close_extras()
            raise
        self._texts = [""] * self.num_envs
        self._over = [False] * self.num_envs
        self._failures: dict[int, Exception] = {}

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Start an episode in all environments, or in the ones of `options["reset_mask"]`.

        Args:
            seed: for each environment; an integer is the first seed, the next is one larger and so on.
            options: given to all environments, but for `reset_mask` ((num_envs,) booleans) and `per_env`, a list with
                further options of each environment (or None): `{"split": "test", "per_env": [{"index": i} for i in
                range(64)]}`.

        Raises:
            ConfigError: if there are not as many seeds or options as environments, or the mask is none.
            SlotFailure: if environments break.
        """
        given, slots = dict(options or {}), list(range(self.num_envs))
        if (mask := given.pop("reset_mask", None)) is not None:
            kind = isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (self.num_envs,)
            if not kind or not mask.any():
                raise ConfigError(
                    f"options['reset_mask'] is {quoted(mask)}; it must be a numpy array of {self.num_envs} booleans of "
                    "which at least one is True"
                )
            slots = [int(slot) for slot in np.flatnonzero(mask)]
        if isinstance(seed, int):
            seed = range(seed, seed + self.num_envs)
        seeds = _one_each(seed, "seeds", self.num_envs)
        per_env = _one_each(given.pop("per_env", None), "options['per_env']", self.num_envs)
        self._failures = {}
        infos: list[dict[str, Any]] = [{}] * self.num_envs
        starts = self._run(lambda slot: self._start(slot, seeds[slot], {**given, **(per_env[slot] or {})}), slots)
        for slot, (text, info) in zip(slots, starts, strict=True):
            self._texts[slot], infos[slot] = text, info
        return self._unless_broken((tuple(self._texts), batch_infos(infos)))

    def step(
        self, actions: Sequence[str]
    ) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Let each environment take its action, one text for each.

        Returns:
            observations, rewards, terminated, truncated (each with num_envs elements) and the merged infos.

        Raises:
            TypeError: for actions that are not texts.
            ConfigError: if there are not as many actions as environments.
            gymnasium.error.ResetNeeded: before the first `reset`, and without autoreset after the end of an episode.
            SlotFailure: if environments break.
        """
        wanted = f"step takes {self.num_envs} actions, one text for each environment, got {quoted(actions)}"
        if not hasattr(actions, "__len__"):
            raise TypeError(wanted)
        if isinstance(actions, str) or len(actions) != self.num_envs:
            raise ConfigError(wanted)
        for ended, action in zip(self._over, actions, strict=True):
            if not ended:  # an environment that is reset ignores its action
                plain_action(action)
        over = [slot for slot, ended in enumerate(self._over) if ended]
        if self.autoreset_mode is AutoresetMode.DISABLED and over:
            raise gymnasium.error.ResetNeeded(f"the episodes of slots {over} are over: reset them by a reset_mask")
        self._failures = {}
        steps = self._run(lambda slot: self._advance(slot, actions[slot]), range(self.num_envs))
        texts, *numbers, infos = zip(*steps, strict=True)
        self._texts = list(texts)
        arrays = [np.array(column, dtype=kind) for column, kind in zip(numbers, (float, bool, bool), strict=True)]
        return self._unless_broken((texts, *arrays, batch_infos(infos)))

    def close_extras(self, **kwargs: Any) -> None:
        try:
            if hasattr(self, "_failures"):  # an object that was never finished is closed, too
                self._run(lambda slot: self.envs[slot].close(), range(self.num_envs))
        finally:
            for thread in getattr(self, "_threads", ()):
                thread.close()

    def _run(self, function: Callable[[int], Any], slots: Sequence[int]) -> list[Any]:
        """Call the function for each slot, in the slot's thread; all calls end before the first error is raised."""
        if not self._threads:
            return [function(slot) for slot in slots]
        calls = [self._threads[slot % len(self._threads)].submit(function, slot) for slot in slots]
        wait(calls)
        return [call.result() for call in calls]

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each environment, or read an attribute, in the thread of its slot."""

        def of(slot: int) -> Any:
            value = self.envs[slot].get_wrapper_attr(name)
            return value(*args, **kwargs) if callable(value) else value

        return tuple(self._run(of, range(self.num_envs)))

    def _advance(self, slot: int, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        if self._over[slot]:
            text, info = self._start(slot)
            return text, math.nan if self._over[slot] else 0.0, False, self._over[slot], info
        broken: tuple[str, float, bool, bool, dict[str, Any]] = ("", math.nan, False, True, {})
        text, reward, terminated, truncated, info = self._try(slot, self.envs[slot].step, action) or broken
        self._over[slot] = terminated or truncated
        if self._over[slot] and self.autoreset_mode is AutoresetMode.SAME_STEP:
            final = {"final_obs": text, "final_info": info}
            text, info = self._start(slot)
            info = {**final, **info}
        return text, reward, terminated, truncated, info

    def _start(
        self, slot: int, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        started = self._try(slot, self.envs[slot].reset, seed=seed, options=options or None)
        self._over[slot] = started is None  # so that the next step tries again
        return started or ("", {})

    def _try(self, slot: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (ConfigError, gymnasium.error.ResetNeeded):  # mistakes of the caller: no environment broke
            raise
        except Exception as error:
            self._failures.setdefault(slot, error)  # the step before may have failed: its error is the cause
            return None

    def _unless_broken(self, result: Any) -> Any:
        if self._failures:
            raise SlotFailure(self._failures, result) from min(self._failures.items())[1]
        return result


def _one_each(given: Sequence[Any] | None, what: str, size: int) -> Sequence[Any]:
    if given is None:
        return [None] * size
    if len(given) != size:
        raise ConfigError(f"{len(given)} {what} for {size} environments; give one for each, None for none")
    return given


def batch_infos(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge infos in Gymnasium's vector form, column by column.

    Each key has an array with a value per environment and, under `_key`, a mask of the environments that have the key.
    Numbers get an array of their type, with zeros for the others; arrays are stacked; dicts are merged in turn; all
    else goes into an array of objects, with None. `VectorEnv._add_info` takes an array's type from the first
    environment that has the key, so that 1 makes a 0 of a later 0.5; here such a column has the wider type.
    """
    merged: dict[str, Any] = {}
    for key in dict.fromkeys(chain.from_iterable(infos)):
        mask = np.array([key in info for info in infos])
        merged[key], merged[f"_{key}"] = _column([info[key] for info in infos if key in info], mask), mask
    return merged


def _column(values: list[Any], mask: np.ndarray) -> Any:
    kinds, size = set(map(type, values)), len(mask)
    if all(issubclass(kind, dict) for kind in kinds):
        entries = iter(values)
        return batch_infos([next(entries) if has else {} for has in mask])
    if all(kind in (bool, int, float) or issubclass(kind, np.number) for kind in kinds):
        column = np.zeros(size, dtype=np.result_type(*kinds))
        column[mask] = values
    elif kinds == {np.ndarray} and len({value.shape for value in values}) == 1:
        column = np.zeros((size, *values[0].shape), dtype=np.result_type(*values))
        column[mask] = values
    else:
        column = np.full(size, None, dtype=object)
        # Through an iterator, because numpy takes a list of equally long lists for two dimensions.
        column[mask] = np.fromiter(values, dtype=object, count=len(values))
    return column


def __getattr__(name: str) -> Any:
    """Find `make_vec`'s entry points: `"agent_gym.vector:<id>"` makes copies of that id.

    An entry point does not learn which id it is for, and a spec that holds a callable cannot be written as JSON.
    """
    if name not in gymnasium.registry:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}, and no environment has that id")

    def make(num_envs: int, autoreset_mode: Any = AutoresetMode.NEXT_STEP, workers: int = 0, **kwargs: Any) -> Any:
        return TextVectorEnv([partial(gymnasium.make, name, **kwargs)] * num_envs, autoreset_mode, workers)

    return make
