"""Environments in processes of their own: the same episodes, and what happens when a process dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import toy_envs
from process_tools import alive, until
from rollout_tools import check_episode, counting, expert, roll, scripted

from agent_gym.errors import ConfigError
from agent_gym.rollout import Budget, Episode, EpisodeSpec, Runner, to_record

toy_envs.register()


def outcomes(episodes: list[Episode]) -> list[Any]:
    """Everything that does not depend on the clock."""
    records = [{**to_record(episode), "seconds": 0} for episode in episodes]
    for record in records:
        for step in record["steps"]:
            step["env_seconds"] = 0
            step["tool_calls"] = [{**call, "seconds": 0} for call in step["tool_calls"]]
    return records


@pytest.mark.parametrize("context", ["append", "rebuild"])
@pytest.mark.parametrize("env_id", ["AgentR1/ALFWorld-v0", "AgentR1/WebShop-v0", "Toy/Inline-v0"])
def test_episodes_are_those_of_threads(env_id: str, context: str, tokenizer: Any) -> None:
    specs = counting(3, env_id)
    budget = Budget(max_turn_tokens=2000, max_tokens=60_000)
    there, here = (roll(tokenizer, specs, budget=budget, context=context, env_processes=n) for n in (2, 0))
    assert all(episode.failure is None for episode in there), [episode.failure for episode in there]
    assert outcomes(there) == outcomes(here)


def test_the_users_mistake_is_reported_as_ever(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="unknown split"):
        roll(tokenizer, [EpisodeSpec("AgentR1/GSM8K-v0", split="nope")], env_processes=1)
    with pytest.raises(ConfigError, match="env_processes is -1"):
        roll(tokenizer, counting(1), env_processes=-1)
    with pytest.raises(ConfigError, match="env_processes=0"):
        roll(tokenizer, counting(1, "AgentR1/GSM8K-v0", data=threading.Lock()), env_processes=1)


def test_killed_processes_cost_the_episodes_in_them_and_are_replaced(tokenizer: Any) -> None:
    killed: set[int] = set()

    def act(episode: Any) -> str:
        pid = episode.env.process.pid
        if episode.spec.index in (3, 12, 21) and pid not in killed and episode.env.process.alive:
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
        return "go"

    # Not the expert: that would be asked in a process that may be dead, by the policy.
    with closing(Runner(scripted(tokenizer, act), tokenizer, env_processes=2, max_live=6)) as runner:
        episodes = runner.run(counting(40))
        idle = next(process for process in runner._processes._processes if process)  # type: ignore[union-attr]
        os.kill(idle.pid or 0, signal.SIGKILL)
        until(lambda: not idle.alive)
        healthy = runner.run(counting(2))
    failures = [episode.failure for episode in episodes if episode.failure]
    assert failures and all(f.kind == "EnvFailure" and "signal 9" in f.message for f in failures)
    good = [episode for episode in episodes if not episode.failure]
    for episode in [*good, *healthy]:
        check_episode(episode, tokenizer)
    assert len(good) > 10 and len(killed) == 3
    assert not any(alive(str(pid)) for pid in killed)


def test_a_process_that_hangs_is_killed(tokenizer: Any) -> None:
    seen: list[int] = []
    act = lambda episode: (seen.append(episode.env.process.pid), expert(episode))[1]  # noqa: E731
    budget = Budget(max_seconds=4.0)
    with closing(Runner(scripted(tokenizer, act), tokenizer, budget, env_processes=1, workers=4)) as runner:
        runner.run(counting(1))
        first = seen[0]
        specs = counting(1, "Toy/Broken-v0", how="hang", when=0)
        with pytest.raises(Exception, match="no answer"):
            runner.run(specs)
        until(lambda: not alive(str(first)))
        assert not runner.run(counting(2))[0].failure


def test_ctrl_c_ends_a_process_that_hangs(tokenizer: Any) -> None:
    """Also where no time limit is set, and although its thread waits for it."""
    seen: list[int] = []
    coming: list[threading.Timer] = []

    def act(episode: Any) -> str:
        seen.append(episode.env.process.pid)  # in the thread of the environment
        if len(set(seen)) == 2 and not coming:
            coming.append(threading.Timer(0.5, lambda: signal.pthread_kill(main, signal.SIGINT)))
            coming[0].start()
        return expert(episode)

    main = threading.main_thread().ident
    assert main is not None
    runner = Runner(scripted(tokenizer, act), tokenizer, env_processes=2)
    with pytest.raises(KeyboardInterrupt):
        # One in each: a process that hangs answers none of its environments, and the script asks them.
        runner.run(counting(2, "Toy/Broken-v0", how="hang", when=0))
    runner.close()
    assert len(set(seen)) == 2 and not any(alive(str(pid)) for pid in seen)


_SCRIPT = """
import os, signal, sys, threading, time
from agent_gym.rollout.env_processes import EnvProcesses
sys.path.insert(0, {tests!r})
from tiny import make_tiny_tokenizer


def main():
    pool = EnvProcesses(make_tiny_tokenizer(), 2, lambda: None)
    envs = [pool.make("AgentR1/GSM8K-v0", {{}}) for _ in range(2)]
    maps = "".join(open(f"/proc/{{env.process.pid}}/maps").read() for env in envs)
    parents = [open(f"/proc/{{env.process.pid}}/stat").read().rpartition(")")[2].split()[1] for env in envs]
    maps += open(f"/proc/{{parents[0]}}/maps").read()
    torch = {{line.split()[-1] for line in maps.splitlines() if "torch" in line}}
    print(",".join(torch) or "none", *[env.process.pid for env in envs], *set(parents), flush=True)
    {ending}


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        pytest.param("pool.close()", 0, marks=pytest.mark.slow),
        pytest.param("pass", 0, marks=pytest.mark.slow),
        pytest.param("signal.raise_signal(signal.SIGINT)", -signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left_behind_and_nothing_imports_torch(ending: str, code: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(_SCRIPT).format(tests=str(Path(__file__).parent), ending=ending))
    # Without the libraries that an engine of an earlier test has had loaded into every process from then on.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == code, done.stderr
    torch, *pids = done.stdout.split()
    assert torch == "none" and len(pids) == 3
    until(lambda: not any(map(alive, pids)))
