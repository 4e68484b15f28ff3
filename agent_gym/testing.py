"""The tests of every environment here, for your own environments.

    import gymnasium
    from agent_gym.testing import check_text_env

    def test_my_env():
        check_text_env(lambda: gymnasium.make("Mine/MyTask-v0"))

Besides Gymnasium's `check_env` it checks the properties that trainers need: spans that tile the transcript, terms that
sum to the reward, the same episode for the same seed, an expert that solves its tasks. As in rollouts, each environment
lives in a separate thread, which is not the main thread.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agent_gym.env import TextEnv
from agent_gym.errors import ConfigError
from agent_gym.images import Image
from agent_gym.tools import failed_calls
from agent_gym.transcript import Span, check_tiling, kind_of

Log = list[tuple[Any, ...]]
"""The return values of `reset` and of each `step` of one episode."""
HOSTILE = ("", "\x00\ud800", "<tool_call>{</tool_call>", "<answer>", "x" * 10_000)
"""Actions that a policy may well write and no environment expects."""
_OF_RESET = {"messages", "tools", "stop", "task_id", "spans"}
_OF_STEP = {"messages", "spans", "reward_terms", "process_reward", "tool_calls", "metrics", "error"}


def check_text_env(make: Callable[[], Any], *, episodes: int = 5, expert: bool = True) -> None:
    """Play and check an environment.

    Args:
        make: makes it, wrapped or not; called several times.
        episodes: how many seeds to play.
        expert: whether it has an `expert_action`, which then must solve each task; else texts without meaning play.

    Raises:
        AssertionError: for the first fault, in words; errors of the environment pass, with a line on threads.
    """
    try:
        with ThreadPoolExecutor(1) as alone, ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
            alone.submit(_check_gymnasium, make).result()
            _check(make, episodes, expert, _caller(one), _caller(other))
    except AssertionError:
        raise
    except Exception as error:
        error.add_note("It was raised in a thread that is not the main one, where rollouts run environments, too.")
        raise


def _caller(thread: ThreadPoolExecutor) -> Callable[..., Any]:
    return lambda function, *args, **kwargs: thread.submit(function, *args, **kwargs).result()


def _check(
    make: Callable[[], Any], episodes: int, expert: bool, here: Callable[..., Any], there: Callable[..., Any]
) -> None:
    first, second = here(make), there(make)
    require(isinstance(first.unwrapped, TextEnv), f"{first.unwrapped!r} is no agent_gym.TextEnv")
    turns: list[tuple[Any, Any]] = []
    for seed in range(episodes):
        idle = ["x"] * first.unwrapped.max_turns
        log = here(expert_episode, first, seed=seed) if expert else here(play, first, idle, seed=seed)
        check_returned(first.unwrapped, log)
        turns += [(info["tool_calls"], info["error"]) for *_, info in log[1:]]
        complaint = failed_calls(turns) if expert else None
        require(complaint is None, str(complaint))
        again = there(play, second, policy_texts(log), seed=seed)
        require(again == log, f"seed {seed} gave two different episodes")
        require(not expert or log[-1][-1]["is_success"], f"the expert did not solve the task of seed {seed}")
    for action in HOSTILE:
        check_returned(first.unwrapped, here(play, first, [action], seed=0))
    here(first.close)
    there(second.close)


def _check_gymnasium(make: Callable[[], Any]) -> None:
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # One of them wants to make the environment again in other render modes, which only a registered one can.
        warnings.filterwarnings("ignore", ".*alternative render modes.*")
        check_env(make().unwrapped, skip_close_check=True)


def require(condition: bool, complaint: str) -> None:
    """Raise `AssertionError` with the complaint, also where Python runs with -O."""
    if not condition:
        raise AssertionError(complaint)


def play(env: Any, actions: Iterable[Any], **reset: Any) -> Log:
    """Reset and step until the actions or the episode end; wall-clock times are removed."""
    log: Log = [env.reset(**reset)]
    for action in actions:
        log.append(env.step(action))
        if log[-1][2] or log[-1][3]:
            break
    return without_times(log)


def without_times(log: Log) -> Log:
    """Remove the parts that differ between any two episodes."""
    for *_, info in log:
        for call in info.get("tool_calls", ()):
            call.pop("seconds", None)
    return log


def expert_episode(env: Any, **reset: Any) -> Log:
    """The expert's episode; it must end by itself."""
    return play(env, expert_turns(env), **reset)


def expert_turns(env: Any) -> Iterator[str]:
    """Yield the turns of the environment's own expert."""
    while True:
        try:
            action = env.unwrapped.expert_action()
        except ConfigError as error:
            raise AssertionError(f"{error}; give it one, or check it with expert=False") from error
        yield action


def policy_texts(log: Log) -> list[str]:
    """The actions of an episode, as text."""
    return [info["messages"][0]["content"] for *_, info in log[1:]]


def leaves(value: Any, where: str = "info") -> Iterator[tuple[str, Any]]:
    """Every scalar inside plain containers, with the path to it; images are scalars, other objects are refused."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{where} key", key
            yield from leaves(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from leaves(item, f"{where}[{i}]")
    else:
        known = value is None or isinstance(value, str | int | float | bool | Image)
        require(known, f"{where} is a {type(value).__name__}")
        yield where, value


def check_returned(env: TextEnv, log: Log) -> None:
    """Check everything that `reset` and `step` returned in one episode against the contract (docs/envs.md)."""
    spans: list[Span] = []
    for n, (observation, *middle, info) in enumerate(log):
        require(observation in env.observation_space, f"an observation is outside of {env.observation_space}")
        where, keys = ("step", _OF_STEP) if n else ("reset", _OF_RESET)
        missing = sorted(keys - set(info))
        require(not missing, f"info of {where} lacks {', '.join(missing)}")
        spans += info["spans"]
        list(leaves({**info, "tools": [], "spans": []}))
        require(all({"role", "content"} <= set(one) for one in info["messages"]), "a message lacks role or content")
        if n:
            _check_step(env, n - 1, middle, info)
        else:
            outside = all(span.step == -1 and kind_of(span.source) != "agent" for span in info["spans"])
            require(outside, "a span of reset is the agent's, or of a step")
    text = env.transcript.text
    check_tiling(spans, len(text))
    written = [text[span.start : span.stop] for span in spans if kind_of(span.source) == "agent"]
    require(written == policy_texts(log), "the agent's spans do not hold what the policy wrote")


def _check_step(env: TextEnv, step: int, middle: list[Any], info: dict[str, Any]) -> None:
    reward, terminated, truncated = middle
    kinds = isinstance(reward, float), isinstance(terminated, bool), isinstance(truncated, bool)
    require(all(kinds), f"step returned {reward!r}, {terminated!r}, {truncated!r}; wanted float, bool, bool")
    terms = info["reward_terms"]
    require(math.isclose(sum(terms.values()), reward, abs_tol=1e-6), f"{terms} do not sum to the reward {reward}")
    require(set(terms) <= set(type(env).reward_weights), f"{terms} has terms that reward_weights does not know")
    process = sum(value for name, value in terms.items() if name in env.process_terms)
    require(math.isclose(process, info["process_reward"], abs_tol=1e-6), "process_reward is not the process terms' sum")
    over = terminated or truncated
    require(("is_success" in info) == over, "is_success belongs into the last info, and into no other")
    authors = [kind_of(span.source) for span in info["spans"]]
    require(authors in (["agent", "env"], ["agent", "user"]), "a step has a span of the agent, then the world's")
    require(all(span.step == step for span in info["spans"]), f"a span of step {step} names another step")
    require(info["messages"][0]["role"] == "assistant", "a step's first message is the policy's")
    whole = all({"name", "arguments", "error"} <= set(call) for call in info["tool_calls"])
    require(whole, "a tool call lacks name, arguments or error")
