"""`TextVectorEnv`: Gymnasium's `SyncVectorEnv`, made for text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agent_gym.checks import check_action
from agent_gym.errors import ConfigError, EnvFailure, described
from agent_gym.vector.infos import batch_infos
from agent_gym.vector.threads import Threads, one_by_one

Env = gymnasium.Env[str, str]
# Observation, reward, terminated, truncated, info: of one environment, and of all of them.
Step = tuple[str, SupportsFloat, bool, bool, dict[str, Any]]
Batch = tuple[tuple[str, ...], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]
# The caller's own mistakes: they say something about the call, not that an environment broke.
_CALLERS = (ConfigError, gymnasium.error.ResetNeeded)


class SlotFailure(EnvFailure):
    """Environments of a vector environment broke; the others did their step, and `result` has it.

    Attributes:
        slots: slot number to what was raised there.
        result: what `step` or `reset` would have returned. A broken slot has the observation "" and, of a step, the
            reward NaN, and it is truncated: like any episode that ended, it is reset where autoreset would do so.
    """

    def __init__(self, slots: Mapping[int, Exception], result: tuple[Any, ...]) -> None:
        """Name the slots and what happened there."""
        said = "; ".join(f"slot {slot}: {described(error)}" for slot, error in sorted(slots.items()))
        super().__init__(f"{len(slots)} of {len(result[0])} environments broke: {said}")
        self.slots = dict(slots)
        self.result = result


class TextVectorEnv(SyncVectorEnv[tuple[str, ...], Sequence[str]]):
    """Environments that speak text, stepped together.

    Actions and observations are tuples of strings. Seeds, autoreset modes, infos, `call`, `get_attr` and `set_attr`
    are those of `SyncVectorEnv`. What is different:

    - `options` of `reset` may hold `"per_env"`, a list with the options of each environment (or None), which are
      added to the rest: `envs.reset(options={"split": "test", "per_env": [{"index": i} for i in range(64)]})`.
    - Infos are merged column by column, so that a column of several types loses nothing (`infos.batch_infos`).
    - With `workers`, environments run in that many threads. That pays where they wait: for a search server, a sandbox.
      Each is made, reset, stepped and closed in one of them.
    - If an environment breaks, the others do their step before `SlotFailure` is raised.

    Args:
        env_fns: functions that make one environment each.
        autoreset_mode: when an environment whose episode ended is reset: in the next step, which then ignores its
            action (the default), in the same step (`infos["final_obs"]` and `infos["final_info"]` have what ended), or
            by the caller (`options={"reset_mask": ...}`).
        workers: number of threads; 0 runs the environments in the caller's, one after the other.

    Raises:
        ConfigError: for an unknown mode or a number of workers or environments that cannot be.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Env]],
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        workers: int = 0,
    ) -> None:
        """Make the environments."""
        if not env_fns:
            raise ConfigError("a vector environment needs at least 1 environment, got none")
        if workers < 0:
            raise ConfigError(f"workers is {workers}; it must be 0 (no threads) or more")
        try:
            mode = AutoresetMode(autoreset_mode)
        except ValueError:
            known = ", ".join(repr(mode.value) for mode in AutoresetMode)
            raise ConfigError(f"autoreset_mode is {autoreset_mode!r}; known: {known}") from None
        self._threads = threads = Threads(min(workers, len(env_fns))) if workers else None
        if threads is not None:
            env_fns = [partial(threads.of(slot).run, make) for slot, make in enumerate(env_fns)]
        try:
            super().__init__(env_fns, autoreset_mode=mode)
        except BaseException:
            if threads is not None:
                threads.close()
            raise
        self._run: Callable[..., list[Any]] = self._threads or one_by_one
        self._texts = [""] * self.num_envs
        self._over = [False] * self.num_envs
        self._failures: dict[int, Exception] = {}

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Start an episode in all environments, or in those of `options["reset_mask"]`.

        Args:
            seed: for each environment; an integer stands for itself in the first one, plus 1 in the next and so on.
            options: given to all environments, except `reset_mask` ((num_envs,) booleans) and `per_env` (see above).

        Raises:
            ConfigError: if there are not as many seeds or options as environments, or the mask is none.
            SlotFailure: if environments break.
        """
        given = dict(options or {})
        slots = _slots(given.pop("reset_mask", None), self.num_envs)
        if isinstance(seed, int):
            seed = range(seed, seed + self.num_envs)
        seeds = _one_each(seed, "seeds", self.num_envs)
        per_env = _one_each(given.pop("per_env", None), "options['per_env']", self.num_envs)
        self._failures = {}

        def start(slot: int) -> tuple[str, dict[str, Any]]:
            single = {**given, **(per_env[slot] or {})}
            return self._start(slot, seeds[slot], single or None)

        infos: list[dict[str, Any]] = [{}] * self.num_envs
        for slot, (text, info) in zip(slots, self._run(start, slots), strict=True):
            self._texts[slot], infos[slot] = text, info
        return self._unless_broken((tuple(self._texts), batch_infos(infos)))

    def step(self, actions: Sequence[str]) -> Batch:
        """Let each environment take its action.

        Args:
            actions: one text for each environment.

        Returns:
            observations, rewards, terminated, truncated (each with num_envs elements) and the merged infos.

        Raises:
            TypeError: for actions that are no texts.
            ConfigError: if there are not as many actions as environments.
            gymnasium.error.ResetNeeded: before the first `reset`, and without autoreset after the end of an episode.
            SlotFailure: if environments break.
        """
        wanted = f"step takes {self.num_envs} actions, one text for each environment, got {actions!r:.80}"
        if not hasattr(actions, "__len__"):
            raise TypeError(wanted)
        if isinstance(actions, str) or len(actions) != self.num_envs:
            raise ConfigError(wanted)
        for ended, action in zip(self._over, actions, strict=True):
            if not ended:  # an environment that is reset ignores its action
                check_action(action)
        if self.autoreset_mode is AutoresetMode.DISABLED and any(self._over):
            over = [slot for slot, ended in enumerate(self._over) if ended]
            raise gymnasium.error.ResetNeeded(f"the episodes of slots {over} are over: reset them by a reset_mask")
        self._failures = {}
        steps = self._run(self._advance, range(self.num_envs), actions)
        texts, rewards, terminated, truncated, infos = zip(*steps, strict=True)
        self._texts = list(texts)
        ends = np.array(terminated, dtype=np.bool_), np.array(truncated, dtype=np.bool_)
        return self._unless_broken((texts, np.array(rewards, dtype=np.float64), *ends, batch_infos(infos)))

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments, each in its thread, and let the threads end."""
        threads = getattr(self, "_threads", None)  # an object that was never finished is closed, too
        if threads is None or not hasattr(self, "envs"):
            super().close_extras(**kwargs)
            return
        try:
            threads(lambda slot: self.envs[slot].close(), range(self.num_envs))
        finally:
            threads.close()

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each environment, or read an attribute, in the thread of its slot."""

        def of(slot: int) -> Any:
            value = self.envs[slot].get_wrapper_attr(name)
            return value(*args, **kwargs) if callable(value) else value

        return tuple(self._run(of, range(self.num_envs)))

    def _advance(self, slot: int, action: str) -> Step:
        if self._over[slot]:
            text, info = self._start(slot)
            broken = self._over[slot]
            return text, math.nan if broken else 0.0, False, broken, info
        try:
            done = self.envs[slot].step(action)
        except _CALLERS:
            raise
        except Exception as error:
            self._failures[slot] = error
            done = ("", math.nan, False, True, {})
        text, reward, terminated, truncated, info = done
        if terminated or truncated:
            self._over[slot] = True
            if self.autoreset_mode is AutoresetMode.SAME_STEP:
                final = {"final_obs": text, "final_info": info}
                text, info = self._start(slot)
                return text, reward, terminated, truncated, {**final, **info}
        return done

    def _start(
        self, slot: int, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Reset one environment. If it breaks, its slot is over, so that the next step tries again."""
        try:
            text, info = self.envs[slot].reset(seed=seed, options=options)
        except _CALLERS:
            raise
        except Exception as error:
            self._failures.setdefault(slot, error)
            self._over[slot] = True
            return "", {}
        self._over[slot] = False
        return text, info

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


def _slots(mask: Any, size: int) -> list[int]:
    """The slots that a `reset_mask` names, by Gymnasium's rules for it; all of them without one."""
    if mask is None:
        return list(range(size))
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (size,) or not mask.any():
        raise ConfigError(
            f"options['reset_mask'] is {mask!r:.200}; it must be a numpy array of {size} booleans of which at least "
            "one is True"
        )
    return [int(slot) for slot in np.flatnonzero(mask)]
