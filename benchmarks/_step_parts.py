"""What the time of an episode of env_steps.py is spent on: its parts, timed one by one, and what is left over.

python benchmarks/_step_parts.py SECONDS DATA
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import _subjects
import gymnasium

from agent_gym import Transcript
from agent_gym.envs.gsm8k.calculator import calculate
from agent_gym.vector import batch_infos

COUNT = 64


def main() -> None:
    seconds, data = float(sys.argv[1]), sys.argv[2]
    *calls, answer = _subjects.ACTIONS
    env: Any = gymnasium.make("AgentR1/GSM8K-v0", data=data).unwrapped
    vector: Any = gymnasium.make_vec("AgentR1/GSM8K-v0", num_envs=COUNT, data=data)
    vector.reset(seed=0)
    bare_episode, _ = _subjects._gymnasium_episode(env, _subjects.ANSWER)
    together, _ = _subjects._vector_episode(vector, COUNT)
    copies = [_subjects._maker(data)() for _ in range(COUNT)]
    infos = [[each.reset()[1] for each in copies]]
    infos += [[each.step(action)[4] for each in copies] for action in _subjects.ACTIONS]
    parsed = [call.arguments for action in calls for call in env.parser.parse(action)]
    tool = env.tools["calculator"]

    def on_all(function: Callable[[Any], Any], arguments: list[Any]) -> Callable[[], None]:
        def run() -> None:
            for argument in arguments:
                function(argument)

        return run

    def transcript() -> None:
        env.transcript = Transcript()
        for step, action in enumerate(_subjects.ACTIONS):
            env.transcript.append("agent", step, action)
            env.transcript.append("env", step, "24")

    def cost(function: Callable[[], Any]) -> float:
        return best(function, seconds)

    whole, bare = cost(together) / COUNT, cost(bare_episode)
    calls_parsed, calls_run = cost(on_all(env.parser.parse, calls)), cost(on_all(tool.run, parsed))
    calculated = cost(on_all(calculate, [arguments["expression"] for arguments in parsed]))
    parts = {
        "finding the calls in the texts": calls_parsed,
        "checking the arguments and calling the tool": calls_run - calculated,
        "the calculator": calculated,
        "messages, records and terms of the calls": cost(on_all(env.respond, calls)) - calls_parsed - calls_run,
        "scoring the answer": cost(on_all(env.respond, [answer])),
        "transcript and spans": cost(transcript),
        "reset": cost(env.reset),
    }
    parts["the rest of step: info, reward, limits"] = bare - sum(parts.values())
    parts["merging infos"] = cost(on_all(batch_infos, infos)) / COUNT
    parts["the rest of the vector environment, garbage collection"] = whole - sum(parts.values())
    print(json.dumps(parts))


def best(function: Callable[[], Any], seconds: float) -> float:
    """CPU microseconds of a call: the best of many series of a few milliseconds, which others seldom interrupt."""
    begin = time.process_time()
    function()
    calls = max(1, int(0.003 / (time.process_time() - begin)))
    fastest, stop = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < stop:
        begin = time.process_time()
        for _ in range(calls):
            function()
        fastest = min(fastest, (time.process_time() - begin) / calls)
    return 1e6 * fastest


if __name__ == "__main__":
    main()
