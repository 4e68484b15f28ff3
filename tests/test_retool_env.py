"""ReTool and MathPython as environments: the protocol, what is paid, and how an episode ends."""

from __future__ import annotations

import importlib.util
import re
import sys
from typing import Any

import gymnasium
import pytest

from agent_gym import ConfigError
from agent_gym.envs.retool.env import LOST, NO_OUTPUT, shown
from agent_gym.envs.retool.protocols import printing
from agent_gym.sandbox import Execution, Limits, LocalSandbox
from agent_gym.tools import HermesParser

IDS = ("AgentR1/ReTool-v0", "AgentR1/MathPython-v0")
SLOW = "TimeoutError: the program took too much CPU time"
GOLD = "1918273"
ROW = {"problem": "How many?", "answer": GOLD, "program": f"print({GOLD})"}
RIGHT, WRONG = f"<answer>\n\\boxed{{{GOLD}}}\n</answer>", "\\boxed{5}"


def make(env_id: str = IDS[0], **kwargs: Any) -> Any:
    return gymnasium.make(env_id, **kwargs).unwrapped


def block(code: str) -> str:
    return f"Let me see.\n<code>\n```python\n{code}\n```\n</code>"


def call(code: str) -> str:
    return HermesParser().render("code_interpreter", {"code": code})


def play(env: Any, *actions: str, task: Any = ROW) -> list[tuple[Any, ...]]:
    env.reset(seed=0, options={"task": task})
    return [env.step(action) for action in actions]


def ended(stdout: str = "", stderr: str = "", status: Any = "ok", code: int | None = 0) -> Execution:
    return Execution(status, stdout, stderr, code, 0.25, False)


def test_an_episode_inline() -> None:
    env = make()
    observation, info = env.reset(seed=0, options={"task": ROW})
    assert observation.endswith(ROW["problem"]) and "<interpreter>" in observation and "\\boxed" in observation
    assert info["stop"] == ["</code>"] and info["tools"][0]["function"]["name"] == "code_interpreter"
    first, second, last = play(env, block("x = 6 * 7\nprint(x)"), block("print(x)"), RIGHT)
    assert first[0] == "\n<interpreter>\n42</interpreter>\n\n"
    assert second[0].endswith("NameError: name 'x' is not defined</interpreter>\n\n"), "each program starts anew"
    assert last[:4] == ("", 1.0, True, False) and last[4]["is_success"] is True
    assert second[4]["error"] and second[4]["metrics"] == {"programs": 2, "failed_programs": 1}
    assert first[4]["tool_calls"][0]["arguments"] == {"code": "x = 6 * 7\nprint(x)"}


def test_an_episode_as_chat() -> None:
    env = make(IDS[1])
    _, info = env.reset(seed=0, options={"task": ROW})
    assert info["stop"] == []
    first, second, third, last = play(env, call("x = 6"), call("x * 7") + call("x"), block("print(x)"), RIGHT)
    assert [step[0] for step in (first, second, third, last)] == ["[no output]", "42\n6", "6", ""]
    assert [message["content"] for message in second[4]["messages"]][1:] == ["42", "6"], "a message for each"
    assert last[1] == 1.0
    env.reset(seed=0, options={"task": ROW})
    assert "NameError" in env.step(call("x"))[0], "names do not outlive the episode"
    env.close()


def test_mistakes_are_observations() -> None:
    for action, error in (
        ("<code></code>", "Error: the program is empty"),
        (call("1").replace("code_interpreter", "rm"), "Error: unknown tool 'rm'"),
        (HermesParser().render("code_interpreter", {"code": 5}), "Error: code_interpreter takes one argument"),
        (block("import os\nos.listdir('/')"), "PermissionError"),
    ):
        for env_id in IDS:
            observation, reward, terminated, *_, info = play(make(env_id), action)[0]
            assert error in observation and error in info["error"]
            assert (reward, terminated) == (0.0, False)


@pytest.mark.parametrize(
    ("answer", "outcome", "formed"),
    [
        (RIGHT, 1, 1),
        ("\\boxed{5}, no: \\boxed{1,918,273.0}", 1, 0),
        ("\\boxed{1918272+1}", 0, 1),  # nothing is computed for the policy
        (f"<answer>{GOLD}</answer>", 0, 0),
        ("", 0, 0),
    ],
)
def test_answers(answer: str, outcome: int, formed: int) -> None:
    for env in (make(reward_weights={"format": 0.1}), make(IDS[1], reward_weights={"format": 0.1})):
        ((observation, reward, terminated, truncated, info),) = play(env, answer)
        assert (observation, terminated, truncated, info["is_success"]) == ("", True, False, bool(outcome))
        assert reward == pytest.approx(outcome + 0.1 * formed)


@pytest.mark.parametrize(
    ("reward", "right", "wrong", "out_of_turns"),
    [("outcome", 1.0, 0.0, 0.0), ("retool", 1.0, -1.0, -1.0), ("verl", 1.0, -0.8, -0.8)],
)
def test_rewards(reward: str, right: float, wrong: float, out_of_turns: float) -> None:
    """Two programs before the end each time: six messages in verl's count."""
    env = make(reward=reward, max_turns=3)
    episodes = [play(env, block("print(1)"), block("1/0"), last) for last in (RIGHT, WRONG, block("print(1)"))]
    for steps, paid in zip(episodes, (right, wrong, out_of_turns), strict=True):
        assert [step[1] for step in steps] == [0.0, 0.0, pytest.approx(paid)], "only the end pays"
    ends = [(*steps[-1][2:4], steps[-1][4]["is_success"]) for steps in episodes]
    assert ends == [(True, False, True), (True, False, False), (False, True, False)]


def test_verls_bonus_is_verls_formula() -> None:
    env = make(reward="verl", max_turns=9)
    for turns in range(8):
        reward = play(env, *["<code></code>"] * turns, WRONG)[-1][1]
        num_turns = 2 * turns + 2  # the question, this many programs with their answers, and the last turn
        assert reward == pytest.approx(min(-0.6, -1 + (num_turns - 2) / 2 * 0.1))


@pytest.mark.parametrize(
    ("env_id", "kwargs", "task", "programs"),
    [
        (IDS[0], {}, ROW, 1),
        (IDS[1], {}, ROW, 1),
        (IDS[0], {}, {"problem": "p", "answer": "\\frac{1}{2}"}, 0),  # data without programs is answered at once
        (IDS[0], {"max_turns": 1}, ROW, 0),
    ],
)
def test_expert(env_id: str, kwargs: dict[str, Any], task: dict[str, str], programs: int) -> None:
    env = make(env_id, **kwargs)
    env.reset(seed=0, options={"task": task})
    direct = env.expert_action("direct")
    for _ in range(programs):
        assert task["answer"] in env.step(env.expert_action())[0]
    assert env.expert_action() == direct and env.step(direct)[4]["is_success"]


def test_the_careless_expert_forgets_to_print_and_does_not_know_the_answer() -> None:
    env, successes = make(IDS[0]), 0
    for seed in range(30):
        env.reset(seed=seed)
        output = env.step(env.expert_action("careless"))[0]
        success = env.step(env.expert_action("careless"))[4]["is_success"]
        assert success == (NO_OUTPUT not in output)
        successes += success
    assert 3 <= successes <= 15  # in three of ten episodes it prints


def test_no_session_outlives_its_episode() -> None:
    live: list[int] = []

    class Counting:  # a sandbox and its sessions
        def session(self, *, seed: int = 0) -> Any:
            live.append(1)
            return self

        def run(self, code: str, *, seed: int = 0) -> Execution:
            return ended("1")

        def close(self) -> None:
            live.pop()

    env = make(IDS[1], sandbox=Counting(), max_turns=2)
    for last in (WRONG, call("2")):
        env.reset(seed=0, options={"task": ROW})
        env.step(call("1"))
        assert live == [1]
        env.step(last)
        assert live == []
    play(env, call("1"))
    env.close()
    assert live == []


@pytest.mark.parametrize("style", ["full", "retool"])
@pytest.mark.parametrize("env_id", IDS)
def test_the_same_program_has_the_same_answer(env_id: str, style: str) -> None:
    """Random numbers are those of the seed, and nothing shows the process or the time."""
    env, answers = make(env_id, output_style=style), []
    program = "import random\nprint(random.random(), {'a', 'b', 'c'}, sum(range(10**6)))\nundefined"
    for seed in (1, 1, 2):
        env.reset(seed=seed, options={"index": 0})
        answers.append(env.step(block(program))[0])
    assert answers[0] == answers[1] and (answers[0] != answers[2]) == (style == "full")
    env.close()


TRACEBACK = (
    'Traceback (most recent call last):\n  File "main.py", line 2, in <module>\nZeroDivisionError: division by zero\n'
)


@pytest.mark.parametrize(
    ("execution", "in_full", "in_retool", "in_verl"),
    [
        (ended("42\n"), "42", "42", "42\n"),
        (ended("\n42\n"), "\n42", "42", "\n42\n"),
        (ended(), NO_OUTPUT, NO_OUTPUT, ""),
        (ended("42\n", "a warning\n"), "42\na warning", "42", "42\na warning\n"),
        (
            ended("1\n", TRACEBACK, "error", 1),
            "1\n" + TRACEBACK.rstrip(),
            "ZeroDivisionError: division by zero",
            "1\n" + TRACEBACK,
        ),
        (ended("1\n", "", "error", 3), "1\nSystemExit: 3", "SystemExit: 3", "1\n"),
        (ended("1\n", "", "cpu_limit", None), f"1\n{SLOW}", SLOW, "no stdout here"),
        (ended("", "MemoryError\n", "memory_limit", 1), "MemoryError", "MemoryError", "MemoryError\n"),
        (ended("", "", "killed", -11), "SystemError: the program crashed", "SystemError: the program crashed", ""),
        (ended("a" * 256), "a" * 256, "a" * 256, "a" * 256),
        (ended("a" * 257), "a" * 257, "a" * 257, "a" * 128 + "...(truncated)..." + "a" * 128),
    ],
)
def test_styles(execution: Execution, in_full: str, in_retool: str, in_verl: str) -> None:
    assert shown(execution, "full", 2000) == in_full
    assert shown(execution, "retool", 2000) == in_retool
    assert shown(execution, "verl", 2000) == in_verl


@pytest.mark.parametrize(
    ("written", "run"),
    [
        ("x = 6\nx * 7\n\n", "x = 6\nprint(x * 7)\n\n"),
        ("print(6)", "print(6)"),
        ("I try\n```python\nx\n```\nor\n```python\ny\n```", "print(x)"),
        ("for i in []:\n    print(i)", "for i in []:\nprint(    print(i))"),  # which is no Python, there as here
        ("", ""),
    ],
)
def test_verls_recipe_prints_the_last_line(written: str, run: str) -> None:
    assert printing(written) == run


def test_what_is_printed_is_bounded_and_can_be_stored() -> None:
    flood = "print('x' * 150_000 + 'y' * 150_000)"
    strange = "import sys\nsys.stdout.buffer.write(bytes(range(256)))\nprint('\\ud800')"
    first, second = (step[0] for step in play(make(IDS[1], max_output_chars=500), call(flood), call(strange)))
    assert len(first) <= 500 and re.fullmatch(r"x{200,}\n\[... cut ...\]\ny{200,}", first)
    second.encode("utf-8")
    assert "\0" not in second and "\x1b" not in second


def test_a_session_that_ran_into_a_limit_starts_anew() -> None:
    env = make(IDS[1], sandbox=LocalSandbox(Limits(cpu_seconds=0.3), servers=1, packages=()))
    steps = play(env, *map(call, ("x = 1", "while True: pass", "x = 2", "x")))
    assert [step[0] for step in steps] == [NO_OUTPUT, f"{SLOW}\n{LOST}", NO_OUTPUT, "2"]
    assert steps[-1][4]["metrics"] == {"programs": 4, "failed_programs": 1}
    env.close()


def test_a_session_that_its_program_ended_starts_anew() -> None:
    """The next program runs; that names are lost is said with the result of the one that lost them."""
    env = make(IDS[1])
    steps = play(env, *map(call, ("x = 1", "import os\nprint(x)\nos._exit(0)", "print(6 * 7)", "x", "x = 3", "x")))
    assert [step[0] for step in steps[:3]] == [NO_OUTPUT, f"1\n{LOST}", "42"]
    assert "NameError" in steps[3][0] and steps[5][0] == "3"
    env.close()


@pytest.mark.parametrize(
    "code",
    [
        "```python\nprint(6 * 7)\n```",
        "```\nprint(6 * 7)\n```",
        "```python print(6 * 7)```",
        "I try\n```python\nprint(5)\n```\nor\n```py\nprint(6 * 7)\n```",
    ],
)
def test_a_fence_in_a_tool_call_is_no_part_of_the_program(code: str) -> None:
    for env_id in IDS:
        ((observation, *_),) = play(make(env_id), call(code))
        assert observation.strip().removeprefix("<interpreter>\n").removesuffix("</interpreter>") == "42"


def test_a_program_may_quote_a_fence() -> None:
    ((observation, *_),) = play(make(IDS[1]), call("print('''\n```python\nx\n```\n''')"))
    assert observation == "\n```python\nx\n```"


def test_long_integers_are_printed() -> None:
    for env_id in IDS:
        first, second = play(make(env_id), call("print(2**20000)"), call("print(len(str(10**10000)))"))
        assert "398027684033796659235430720619" in first[0]
        assert "10001" in second[0] and not first[4]["error"]


def test_the_template_shows_no_other_form_inline(tokenizer: Any) -> None:
    for env_id, expected in zip(IDS, (False, True), strict=True):
        _, info = make(env_id, tokenizer=tokenizer).reset(seed=0)
        assert ("code_interpreter" in tokenizer.decode(info["token_ids"])) is expected
        assert info["tools"]


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "math_verify" else find(name, *rest)
    )
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(ConfigError, match=r"math_verify.*agentic-gym\[math\]"):
        make()
