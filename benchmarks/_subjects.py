"""The subjects of env_steps.py, one process each: import a library, play the scripted episode, print what it cost.

    python benchmarks/_subjects.py NAME SECONDS DATA

It runs in this repository's environment for agent_gym and in that of setup_peers.sh for the others, so that its top
imports the standard library alone. A library that is not there is reported as such. Each subject is a function that
returns `play`, which plays an episode, reset included, and `reset`, which only starts one. Both say how much they did:
`play` in steps of an environment, `reset` in episodes.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import re
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

QUESTION = "Mia sold 48 clips in April and half as many in May. How many clips did she sell in both months together?"
SOLUTION = "In May she sold 48/2=<<48/2=24>>24 clips.\nTogether that is 48+24=<<48+24=72>>72 clips.\n#### 72"
ANSWER = "72"
ACTIONS = [
    '<tool_call>\n{"name": "calculator", "arguments": {"expression": "48/2"}}\n</tool_call>',
    '<tool_call>\n{"name": "calculator", "arguments": {"expression": "48+24"}}\n</tool_call>',
    f"<answer>{ANSWER}</answer>",
]

Subject = tuple[Callable[[], int], Callable[[], int]]


def agent_gym_bare(data: str) -> Subject:
    import gymnasium

    return _gymnasium_episode(gymnasium.make("AgentR1/GSM8K-v0", data=data), ANSWER)


def agent_gym_embedded(data: str) -> Subject:
    import gymnasium

    return _gymnasium_episode(gymnasium.make("AgentR1/GSM8K-v0"), None)


def agent_gym_vector(data: str) -> Subject:
    import gymnasium

    return _vector_episode(gymnasium.make_vec("AgentR1/GSM8K-v0", num_envs=64, data=data), 64)


def agent_gym_sync(data: str) -> Subject:
    import gymnasium

    return _vector_episode(gymnasium.vector.SyncVectorEnv([_maker(data)] * 64), 64)


def agent_gym_async(data: str) -> Subject:
    import gymnasium

    envs = gymnasium.vector.AsyncVectorEnv([_maker(data)] * 8)
    atexit.register(envs.close)
    return _vector_episode(envs, 8)


def gem_calculator(data: str) -> Subject:
    env = _gem_env()

    def play() -> int:
        env.reset()
        for action in ACTIONS:
            _, reward, terminated, _, _ = env.step(action)
        assert terminated and reward == 1.0
        return len(ACTIONS)

    return play, _counted(env.reset)


def gem_sync(data: str) -> Subject:
    from gem.vector.sync_vector_env import SyncVectorEnv

    count = 64
    envs = SyncVectorEnv(env_ids=[""] * count, env_fns=[_gem_env] * count)
    batches = [[action] * count for action in ACTIONS]
    envs.reset()

    def play() -> int:
        # Its vector environments reset within the step that ends an episode.
        for batch in batches:
            _, rewards, terminated, _, _ = envs.step(batch)
        assert terminated.all() and rewards.all()
        return count * len(ACTIONS)

    return play, _counted(envs.reset, count)


def gem_guess(data: str) -> Subject:
    import gem

    env = gem.make("game:GuessTheNumber-v0-hard")

    def play() -> int:
        env.reset()
        for guess in _guesses(env.game_number, 50):
            _, _, terminated, _, _ = env.step(f"\\boxed{{{guess}}}")
        assert terminated
        return 3

    return play, _counted(env.reset)


def skyrl_calculator(data: str) -> Subject:
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
    from skyrl_gym.tools.core import ToolGroup, tool

    calculate = _calculator()

    class CalculatorGroup(ToolGroup):
        def __init__(self) -> None:
            super().__init__(name="CalculatorGroup")

        @tool
        def calculator(self, expression: str) -> str:
            return calculate(expression)

    class CalculatorEnv(BaseTextEnv):
        def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None) -> None:
            super().__init__()
            self.ground_truth = (extras or {})["reward_spec"]["ground_truth"]
            self.init_tool_groups([CalculatorGroup()])

        def step(self, action: str) -> BaseTextEnvStepOutput:
            self.turns += 1
            call = _parse_call(action)
            if call is None:
                reward = float(_final_answer(action) == self.ground_truth)
                return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata={})
            text = self._execute_tool("CalculatorGroup", call["name"], list(call["arguments"].values()))
            messages = [{"role": "user", "content": text}]
            return BaseTextEnvStepOutput(observations=messages, reward=0.0, done=False, metadata={})

    import skyrl_gym

    skyrl_gym.register("benchmark-calculator", CalculatorEnv)
    return _skyrl_episode("benchmark-calculator", {}, ACTIONS)


def skyrl_gsm8k(data: str) -> Subject:
    return _skyrl_episode("gsm8k_multi_turn", {"max_turns": 3}, ["#### 24", "#### 48", f"#### {ANSWER}"])


def textarena_guess(data: str) -> Subject:
    import textarena

    # Without its observation wrapper, which keeps every observation of every episode and joins them all at each step.
    env = textarena.make("GuessTheNumber-v0-raw")

    def reset() -> None:
        env.reset(num_players=1)
        env.get_observation()

    def play() -> int:
        reset()
        done = False
        for guess in _guesses(env.state.game_state["game_number"], 20):
            done, _ = env.step(f"[{guess}]")
            env.get_observation()
        assert done
        return 3

    return play, _counted(reset)


# Name in the table: function, what is imported, distribution, how its episode differs from the one above.
SUBJECTS: dict[str, tuple[Callable[[str], Subject], str, str, str]] = {
    "agent_gym": (agent_gym_bare, "agent_gym", "agent-gym", "gym.make; two calculator calls, an answer"),
    "agent_gym, generated data": (agent_gym_embedded, "agent_gym", "agent-gym", "the same on a new problem each time"),
    "agent_gym, make_vec(64)": (agent_gym_vector, "agent_gym", "agent-gym", "the first, by gym.make_vec in 64 copies"),
    "agent_gym, SyncVectorEnv(64)": (
        agent_gym_sync,
        "agent_gym",
        "agent-gym",
        "the same in Gymnasium's own vector env",
    ),
    "agent_gym, AsyncVectorEnv(8)": (agent_gym_async, "agent_gym", "agent-gym", "the same in 8 processes"),
    "gem": (gem_calculator, "gem", "gem-llm", "same texts and calculator, written as gem tool and env"),
    "gem, SyncVectorEnv(64)": (gem_sync, "gem", "gem-llm", "the same, gem's vector env"),
    "gem, GuessTheNumber": (gem_guess, "gem", "gem-llm", "its own game: three guesses, no tool"),
    "skyrl-gym": (skyrl_calculator, "skyrl_gym", "skyrl-gym", "same texts and calculator, written as skyrl-gym tool"),
    "skyrl-gym, gsm8k_multi_turn": (skyrl_gsm8k, "skyrl_gym", "skyrl-gym", "its own env: three answers, no tool"),
    "textarena, GuessTheNumber": (textarena_guess, "textarena", "textarena", "its own game: three guesses, no tool"),
}


def main() -> None:
    name, seconds, data = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    make, module, distribution, _ = SUBJECTS[name]
    if importlib.util.find_spec(module) is None:
        print(json.dumps({"missing": distribution}))
        return
    cpu, wall = time.process_time(), time.perf_counter()
    __import__(module)
    cost = {"import_cpu": time.process_time() - cpu, "import_wall": time.perf_counter() - wall}
    play, reset = make(data)
    play()
    steps, cpu, wall = _repeat(play, seconds)
    resets, reset_cpu, reset_wall = _repeat(reset, seconds / 4)
    cost |= {"version": metadata.version(distribution), "rss_mib": _rss_mib(), "modules": len(sys.modules)}
    cost |= {"steps": steps, "steps_cpu": cpu, "steps_wall": wall}
    cost |= {"resets": resets, "reset_cpu": reset_cpu, "reset_wall": reset_wall}
    print(json.dumps(cost))


def _counted(reset: Callable[[], Any], count: int = 1) -> Callable[[], int]:
    def counted() -> int:
        reset()
        return count

    return counted


def _repeat(action: Callable[[], int], seconds: float) -> tuple[int, float, float]:
    """Act for a while; return how much was done, the CPU time of this process and the wall time."""
    done = 0
    cpu, begin = time.process_time(), time.perf_counter()
    while (wall := time.perf_counter() - begin) < seconds:
        done += action()
    return done, time.process_time() - cpu, wall


def _maker(data: str) -> Callable[[], Any]:
    import gymnasium

    return lambda: gymnasium.make("AgentR1/GSM8K-v0", data=data)


def _gymnasium_episode(env: Any, answer: str | None) -> Subject:
    def play() -> int:
        env.reset()
        for action in ACTIONS:
            _, _, terminated, _, info = env.step(action)
        assert terminated and (answer is None or info["is_success"])
        return len(ACTIONS)

    return play, _counted(env.reset)


def _vector_episode(envs: Any, count: int) -> Subject:
    batches = [[action] * count for action in ACTIONS]
    envs.reset(seed=0)

    def play() -> int:
        for batch in batches:
            _, rewards, terminated, _, _ = envs.step(batch)
        assert terminated.all() and (rewards > 1).all()
        # Gymnasium resets finished environments in the next step, which ignores its actions and is no step of theirs.
        envs.step(batches[0])
        return count * len(batches)

    return play, _counted(envs.reset, count)


def _gem_env() -> Any:
    from gem.core import Env
    from gem.tools.base_tool import BaseTool
    from gem.tools.tool_env_wrapper import ToolEnvWrapper

    calculate = _calculator()

    class CalculatorTool(BaseTool):
        tool_type = "calculator"
        name = "calculator"

        def instruction_string(self) -> str:
            return "Use <tool_call> to call the calculator."

        def execute_action(self, action: str) -> tuple[bool, bool, str, str]:
            call = _parse_call(action)
            if call is None:
                return False, True, "", ""
            result = calculate(**call["arguments"])
            return True, result.startswith("Error"), result, action

    class QuestionEnv(Env):
        def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
            super().reset(seed)
            return QUESTION, {}

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            return "", float(_final_answer(action) == ANSWER), True, False, {}

    return ToolEnvWrapper(QuestionEnv(), [CalculatorTool()])


def _skyrl_episode(env_id: str, extras: dict[str, Any], actions: list[str]) -> Subject:
    import skyrl_gym

    extras = {"reward_spec": {"ground_truth": ANSWER}, **extras}
    prompt = [{"role": "user", "content": QUESTION}]

    def reset() -> Any:
        # An episode is an object here: there is no way to start another one in it.
        env = skyrl_gym.make(env_id, extras=extras)
        env.init(prompt)
        return env

    def play() -> int:
        env = reset()
        for action in actions:
            output = env.step(action)
        assert output["done"] and output["reward"] == 1.0
        return len(actions)

    return play, _counted(reset)


def _calculator() -> Callable[[str], str]:
    """Our calculator, for the others too: what is compared is the libraries and not the arithmetic."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from agent_gym.envs.gsm8k.calculator import calculate

    return calculate


_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FINAL = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def _parse_call(action: str) -> dict[str, Any] | None:
    found = _CALL.search(action)
    return json.loads(found[1]) if found else None


def _final_answer(action: str) -> str | None:
    found = _FINAL.search(action)
    return found[1].strip() if found else None


def _guesses(number: int, largest: int) -> list[int]:
    """Two wrong guesses and the right one."""
    return [*[n for n in (1, largest, 2) if n != number][:2], number]


def _rss_mib() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) / 1024


if __name__ == "__main__":
    main()
