"""ReTool and MathPython as environments: the protocol, what is paid, how an episode ends, whose tokens are whose."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from rollout_tools import scripted

from agent_gym import ConfigError, EnvFailure
from agent_gym.envs.retool.data import read
from agent_gym.formats.hermes import HermesParser
from agent_gym.rollout import EpisodeSpec, Runner
from agent_gym.sandbox import Execution, SandboxError

IDS = ("AgentR1/ReTool-v0", "AgentR1/MathPython-v0")
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


def test_a_block_that_the_policy_left_open_is_closed_by_the_world() -> None:
    (step,) = play(make(), "<code>\nprint(1)")
    assert step[0] == "</code>\n<interpreter>\n1</interpreter>\n\n"
    (step,) = play(make(), "```python\nprint(1)\n```")
    assert step[0] == "\n<interpreter>\n1</interpreter>\n\n"


def test_mistakes_are_observations() -> None:
    for action, said in (
        ("<code></code>", "Error: the program is empty"),
        (call("1").replace("code_interpreter", "rm"), "Error: unknown tool 'rm'"),
        (HermesParser().render("code_interpreter", {"code": 5}), "Error: code_interpreter takes one argument"),
        ("<tool_call>{</tool_call>", "Error: the tool call is not valid JSON"),
        (block("import os\nos.listdir('/')"), "PermissionError"),
        (block("import agent_gym"), "ModuleNotFoundError"),
    ):
        for env_id in IDS:
            observation, reward, terminated, *_, info = play(make(env_id), action)[0]
            assert said in observation and said in info["error"]
            assert (reward, terminated) == (0.0, False)


@pytest.mark.parametrize(
    ("answer", "outcome", "formed"),
    [
        (RIGHT, 1, 1),
        ("So it is $\\boxed{1{,}918{,}273}$.".replace("{,}", ","), 1, 1),
        ("\\boxed{5}, no: \\boxed{1918273.0}", 1, 0),
        ("\\boxed{1918272+1}", 0, 1),  # nothing is computed for the policy
        (WRONG, 0, 1),
        (f"<answer>{GOLD}</answer>", 0, 0),
        (f"<interpreter>{GOLD}</interpreter>", 0, 0),
        ("I do not know.", 0, 0),
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
    ends = []
    for last in (RIGHT, WRONG, block("print(1)")):
        steps = play(make(reward=reward, max_turns=3), block("print(1)"), block("1/0"), last)
        assert [step[1] for step in steps[:2]] == [0.0, 0.0], "only the end pays"
        ends.append(steps[-1])
    assert [step[1] for step in ends] == pytest.approx([right, wrong, out_of_turns])
    assert [step[2:4] for step in ends] == [(True, False), (True, False), (False, True)]
    assert [step[4]["is_success"] for step in ends] == [True, False, False]


@pytest.mark.parametrize("turns", range(8))
def test_verls_bonus_is_verls_formula(turns: int) -> None:
    env = make(reward="verl", max_turns=9)
    reward = play(env, *["<code></code>"] * turns, WRONG)[-1][1]
    num_turns = 2 * turns + 2  # the question, this many programs with their answers, and the last turn
    assert reward == pytest.approx(min(-0.6, -1 + (num_turns - 2) / 2 * 0.1))


def test_gold_is_nowhere() -> None:
    tries = [
        "I do not know",
        block("print(globals())"),
        block("import sys\nprint(sys.argv, sys.path, dir())"),
        WRONG,
        "",
    ]
    for env in (make(), make(IDS[1]), make(reward="verl", render_mode="ansi")):
        for action in tries:
            text = json.dumps([env.reset(seed=0, options={"task": ROW}), env.step(action), env.render()], default=str)
            assert GOLD not in text


def test_expert() -> None:
    for env_id in IDS:
        env = make(env_id)
        env.reset(seed=0, options={"task": ROW})
        program = env.expert_action()
        assert GOLD in env.step(program)[0] and env.expert_action() == RIGHT
        env.reset(seed=0, options={"task": ROW})
        assert env.expert_action("direct") == RIGHT
        with pytest.raises(ConfigError, match="'poetic'.*default, direct"):
            env.expert_action("poetic")
    env.reset(seed=0, options={"task": {"problem": "p", "answer": "\\frac{1}{2}"}})
    assert env.step(env.expert_action())[1] == 1.0, "data without programs is answered at once"
    env = make(max_turns=1)
    env.reset(seed=0, options={"task": ROW})
    assert env.step(env.expert_action())[4]["is_success"]


def test_no_session_outlives_its_episode() -> None:
    live: list[int] = []

    class Session:
        def run(self, code: str) -> Execution:
            return Execution("ok", "1", "", 0, 0.0, False)

        def close(self) -> None:
            live.pop()

    class Counting:
        def run(self, code: str, *, seed: int = 0) -> Execution:
            raise AssertionError("programs of this environment run in sessions")

        def close(self) -> None: ...

        def session(self, *, seed: int = 0) -> Session:
            live.append(1)
            return Session()

    env = make(IDS[1], sandbox=Counting(), max_turns=2)
    env.reset(seed=0, options={"task": ROW})
    for last in (WRONG, call("2")):
        env.step(call("1"))
        assert live == [1]
        env.step(last)
        assert live == []
        env.reset(seed=0, options={"task": ROW})
    env.step(call("1"))
    env.close()
    assert live == []


def test_a_broken_sandbox_is_no_reward() -> None:
    class Broken:
        def run(self, code: str, *, seed: int = 0) -> Any:
            raise SandboxError("it is gone")

        session = run

        def close(self) -> None: ...

    env = make(sandbox=Broken())
    env.reset(seed=0, options={"task": ROW})
    with pytest.raises(EnvFailure, match="it is gone"):
        env.step(block("print(1)"))


def test_programs_draw_the_random_numbers_of_the_seed() -> None:
    env = make()
    said = []
    for seed in (1, 1, 2):
        env.reset(seed=seed, options={"index": 0})
        said.append(env.step(block("import random\nprint(random.random())"))[0])
    assert said[0] == said[1] != said[2]


# Tokens.


def rollout(env_id: str, tokenizer: Any, actions: list[str]) -> Any:
    policy = scripted(tokenizer, lambda episode: actions[len(episode.steps)])
    runner = Runner(policy, tokenizer, workers=1)
    (episode,) = runner.run([EpisodeSpec(env_id, {}, index=0)])
    runner.close()
    assert episode.failure is None, episode.failure
    return episode


def test_the_interpreter_is_never_the_policys(tokenizer: Any) -> None:
    """One assistant turn holds it all, and the mask knows who wrote what."""
    actions = ["<code>\nprint(6*7)\n</code> and what I would say next", "<code>\nprint(1", WRONG]
    episode = rollout(IDS[0], tokenizer, actions)
    (row,) = episode.rows
    said = [tokenizer.decode(row.token_ids[span.start : span.stop]) for span in row.spans]
    assert said[1:5] == [
        "<code>\nprint(6*7)\n</code>",  # the turn was stopped there, and the tag is the policy's own
        "\n<interpreter>\n42</interpreter>\n\n",
        said[3],
        said[4],
    ]
    assert said[3].startswith("<code>\nprint(1")
    assert "</code>\n<interpreter>" in said[4] and [span.source for span in row.spans][1:5] == ["agent", "env"] * 2
    masked = [i for i, kept in zip(row.token_ids, row.action_mask, strict=True) if kept]
    assert "interpreter" not in tokenizer.decode(masked)
    text = tokenizer.decode(row.token_ids)
    assert text.count("<|im_start|>assistant") == 2, "the cut-off turn had ended; the first went on"


def test_the_template_shows_no_other_form_inline(tokenizer: Any) -> None:
    for env_id, shown in zip(IDS, (False, True), strict=True):
        _, info = make(env_id, tokenizer=tokenizer).reset(seed=0)
        assert ("code_interpreter" in tokenizer.decode(info["token_ids"])) is shown
        assert info["tools"]


# Data and settings.


@pytest.mark.parametrize(
    ("row", "problem", "gold"),
    [
        ({"problem": "p", "answer": "1/2", "solution": "s"}, "p", "1/2"),
        ({"problem": "p", "answer": 34}, "p", "34"),
        ({"question": "q", "answer": "so\n#### 1,000"}, "q", "1,000"),
        ({"prompt": "p", "reward_model": {"ground_truth": "34"}}, "p", "34"),
    ],
)
def test_rows(row: dict[str, Any], problem: str, gold: str) -> None:
    assert read(row) == (problem, gold, "")


DAPO = {
    "data_source": "math_dapo",
    "prompt": [
        {
            "role": "user",
            "content": "Solve the following math problem step by step. The last line of your response should be of the "
            "form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\nFind $x$.\n\nNow.\n\n"
            'Remember to put your answer on its own line after "Answer:".',
        }
    ],
    "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
    "extra_info": {"index": "a"},
}


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "dataset"])
def test_dapo_repeats_nothing_and_asks_for_a_box(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {**DAPO, "prompt": [{"role": "user", "content": "Another."}]}
    rows = [DAPO, other, DAPO, DAPO, other]
    path = tmp_path / f"dapo.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = str(path)
    elif kind == "parquet":
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pa.Table.from_pylist(rows), path)
        data = str(path)
    else:
        datasets = pytest.importorskip("datasets")
        made = datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)})
        monkeypatch.setattr(datasets, "load_dataset", lambda *_: made)
        data = "BytedTsinghua-SIA/DAPO-Math-17k"
    env = make(data=data)
    assert len(env.tasks["train"]) == 2
    _, info = env.reset(options={"index": 0})
    assert info["messages"][-1]["content"] == "Find $x$.\n\nNow."
    assert env.step("\\boxed{34}")[4]["is_success"]
    assert env.reset(options={"index": 1})[1]["messages"][-1]["content"] == "Another."


def test_wrong_data_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for row in (
        {"problem": "p"},
        {"problem": "p", "answer": ""},
        {"text": "p", "answer": "5"},
        {"problem": "p", "answer": None},
    ):
        path.write_text(json.dumps(row) + "\n")
        with pytest.raises(ConfigError, match=r"rows\.jsonl, split train.*problem.*answer"):
            make(data=str(path))
    for task in ("q", ["p", "a"], {"problem": None, "answer": "1"}):
        with pytest.raises(ConfigError, match="a problem is a row"):
            make().reset(options={"task": task})


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"rendering": "video"}, "'video'.*inline, chat"),
        ({"reward": "money"}, "'money'.*outcome, retool, verl"),
        ({"output_style": "loud"}, "'loud'.*full, retool"),
        ({"level": 7}, "level is 7"),
        ({"kinds": ("coins", "cards")}, "kinds is .'coins', 'cards'.; allowed: some of divisor-sum, .*, best-bundle"),
        ({"kinds": "coins"}, "kinds is 'coins'; allowed: some of"),
        ({"kinds": ()}, "kinds is ..; allowed: some of"),
        ({"data": "./nowhere.jsonl"}, "no such file"),
        ({"sandbox": "nowhere"}, "sandbox is 'nowhere'"),
        ({"sandbox": "http://127.0.0.1:1", "stateful": True}, "no sessions"),
    ],
)
def test_wrong_settings_are_named(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(**kwargs)


def test_levels_and_kinds_are_for_embedded_problems(tmp_path: Path) -> None:
    assert {row["level"] for row in make(level=1).tasks["train"][:50]} == {1}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n")
    for name, value in (("level", 1), ("kinds", ("coins",))):
        with pytest.raises(ConfigError, match=f"{name} is .*only the embedded problems have {name}"):
            make(data=str(path), **{name: value})


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "math_verify" else find(name, *rest)
    )
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(ConfigError, match=r"math_verify.*agent-gym\[math\]"):
        make()


def test_embedded_splits() -> None:
    assert {split: len(tasks) for split, tasks in make().tasks.items()} == {
        "train": 20_000,
        "validation": 1_000,
        "test": 1_000,
        "unseen_numbers_dev": 1_000,
        "unseen_numbers": 1_000,
    }
