"""ReTool's problems from elsewhere, and answers: the box, which are the same, that nothing is computed or held up."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prepare_tools import write_lines
from process_tools import holds_in_a_fork
from test_retool_env import make

from agent_gym import ConfigError
from agent_gym.envs.retool import scoring
from agent_gym.envs.retool.data import read
from agent_gym.envs.retool.scoring import math_equal, numeral
from agent_gym.errors import EnvFailure
from agent_gym.rewards import boxed_answer, boxed_format

pytest.importorskip("math_verify")


@pytest.mark.parametrize(
    ("text", "answer", "formed"),
    [
        (r"\boxed{72}", "72", 1),
        (r"So <answer>" + "\n\\boxed{ 72 }\n</answer>\n", "72", 1),
        (r"\[\boxed {\sqrt{2^{10}}}\]", r"\sqrt{2^{10}}", 1),
        (r"\boxed{\left\{1, 2\right.}", r"\left\{1, 2\right.", 1),  # in TeX an escaped brace is a letter
        (r"\boxed{1}, no, \boxed{2}", "2", 0),
        (r"<think>\boxed{1}?</think>\boxed{2}", "2", 1),  # a thought states nothing
        (r"\boxed{}", "", 0),
        (r"\boxed{1", None, 0),
        ("<answer>5</answer>", None, 0),
    ],
)
def test_boxes(text: str, answer: str | None, formed: int) -> None:
    assert boxed_answer(text) == answer
    assert boxed_format(text) == formed


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("x^2+1", "1+x^2"),
        ("2\\sqrt2", "\\sqrt{8}"),
        ("\\{2,1\\}", "\\{1,2\\}"),
        # What the gold answer has an answer may have.
        ("(x+1)^2", "x^2+2x+1"),
        ("5\\cdot3^{100}+x", "x+3^{100}\\cdot5"),
        ("y=x+1", "1+x"),
    ],
)
def test_the_same(answer: str, gold: str) -> None:
    assert math_equal(answer, gold)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (None, "5"),
        (" ", " "),
        ("(2,1)", "(1,2)"),
        ("0.05", "5\\%"),
        ("}{", "5"),
        ("\ud800", "5"),
        # Nothing is computed for a gold answer in symbols either.
        ("\\sum_{k=1}^{5} k x", "15x"),
        ("5!\\sqrt{2}", "120\\sqrt{2}"),
        ("\\sqrt{3}=\\sqrt{5}=\\sqrt{2}", "\\sqrt{2}"),
    ],
)
def test_different(answer: str | None, gold: str) -> None:
    assert not math_equal(answer, gold)


NUMERALS = (
    "+72  −72→-72  - 72→-72  072→72  72.50→72.5  .5→0.5  5.→5",
    "1{,}234→1234  1 234 567→1234567  10,\\!080→10080  12\\,345→12345  1,234.5→1234.5",
    "\\frac 1 2→1/2  \\frac{3}{-4}→-3/4  -\\tfrac{6}{8}→-3/4  \\cfrac{1,000}{3}→1000/3",
    "1\\frac{1}{2}→3/2  -2\\frac34→-11/4",
    "1.5\\times10^{3}→1500  2\\cdot 10^{-2}→1/50  10^5→100000  1e+16→10000000000000000",
    "\\boxed{5}→5  $x = 5$.→5  \\(5\\)→5  \\left(-5\\right)→-5  \\text{5 cm}→5",
    "5\\text{ m}^2→5  5 \\mathrm{~km/h}→5  18 dollars→18  \\$1,200.50→1200.5  60^{\\circ}→60",
    "5\\%→5  500\\%→500  5 percent→5  5\\text{ cm}²→5  \u20115→-5  1\u202f200\u202fcm→1200",
    "AB = 5→5  x_1=5→5  x_{10}=5→5  f(2) = 5→5  \\theta = 5^\\circ→5  \\angle ABC=60^\\circ→60",
    "5^\\circ\\text{C}→5  5°F→5",
)


@pytest.mark.parametrize("case", [case for line in NUMERALS for case in line.split("  ")])
def test_numerals(case: str) -> None:
    text, _, value = case.partition("→")
    assert numeral(text) == Fraction(value or text)


COMPUTED = (
    r"2+3|6-1|2^3|10^{2^3}|12!|\sqrt{25}|\binom{5}{1}|\sum_{i=1}^{5} 1|7=6=5|5=5|5\cdot 1|2\times3|15\times10^2|3\div 4"
    r"|1/2/3|(2)(3)|\frac{1+2}{4}|\frac{\frac{1}{2}}{3}|12 \mod 7|12 \bmod 7|\lfloor 5.5 \rfloor|\gcd(5,10)|\max(5,1)"
    r"|x+1=6|2x=10|\sqrt{x}=5|x=y=5|--5|\pm 5|5x|5i|5\pi|5 pi|5_8|5\text{ or }6"
    r"|5 \text{ squared}|5\text{ dozens}|2\frac{3}{2}|5 6"
    r"|12,34|1,2,3|[5]|\{5\}|1/0|\frac{0}{0}|1.2.3|1e9999|five|½|٥||-|\infty"
)


@pytest.mark.parametrize("text", ["|-5|", *COMPUTED.split("|")])
def test_what_would_have_to_be_computed_is_no_numeral(text: str) -> None:
    assert numeral(text) is None


NUMBER = st.sampled_from(["9", "99", "(9)", "{9}", "\\frac{9}{2}", "9+9", "\\pi"])
TOWER = st.recursive(
    NUMBER,
    lambda inner: (
        st.builds("{}^{{{}}}".format, NUMBER, inner)
        | st.builds("\\left({}\\right)**{}".format, inner, NUMBER)
        | st.builds("{{{}}}^{}".format, inner, st.sampled_from("239"))
    ),
    max_leaves=6,
).filter(lambda text: text.count("^") + text.count("**") > 1)
LARGE = TOWER | st.sampled_from(["99999999!", "9!!!", "9^{99999999}", "\\binom{9999999}{999999}", "2^{1000000}"])
FRAME = st.sampled_from(["{}", "x^{{{}}}", "\\sqrt{{{}}}", "\\frac{{1}}{{{}}}", "{}x", "(1,{})", "x={}", "1-{}"])


@given(FRAME, LARGE, st.sampled_from(["7", "5\\%", "x+1", "\\sqrt{2}", "\\pi", "(1,2)", "2^{n}", "\\text{yes}"]))
def test_towers_of_powers_are_wrong_without_being_looked_at(frame: str, large: str, gold: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "_compare", lambda *pair: pytest.fail(f"math-verify was asked about {pair}"))
        assert not math_equal(frame.format(large), gold)


HOSTILE = ["9^{9^{9^9}}", "10000000!", "{" * 450 + "1" + "}" * 450, "\\int_0^1 x^{x^x} dx", "\\sqrt" * 199]


def test_expensive_answers_are_wrong_and_spare_the_others() -> None:
    """From threads, as environments run; the honest answers between them are judged as ever."""
    pairs = [(text, gold) for text in HOSTILE for gold in ("9", "9x")] + [("2\\cdot x", "2x"), ("x+x", "2x")] * 3
    with ThreadPoolExecutor(4) as threads:
        verdicts = list(threads.map(lambda pair: math_equal(*pair), pairs))
    assert verdicts == [False] * 2 * len(HOSTILE) + [True] * 6
    assert not math_equal("1" * 100_000, "1") and not math_equal("\\boxed{" * 100_000, "1")


def test_forked_processes_have_checkers_of_their_own() -> None:
    assert math_equal("3\\cdot 3x", "9x")
    assert holds_in_a_fork(lambda: math_equal("4\\cdot 4x", "16x") and not math_equal("4\\cdot 5x", "16x"))
    assert math_equal("5\\cdot 5x", "25x")


def test_a_checker_has_no_keys_a_killed_one_is_replaced_and_a_broken_one_is_no_wrong_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "CANARY-KEY")
    scoring._pool.close()
    assert math_equal("6\\cdot 6x", "36x")
    (checker,) = scoring._pool.idle
    environment = Path(f"/proc/{checker.pid}/environ")
    assert not environment.exists() or b"CANARY-KEY" not in environment.read_bytes()
    checker.kill()
    checker.wait()
    assert math_equal("7\\cdot 7x", "49x")
    scoring._pool.close()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EnvFailure, match="cannot be compared"):
        math_equal("8\\cdot 8x", "64x")


# Problems from elsewhere


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
    assert read(row) == (problem, (gold,), "")


DAPO_PROMPT = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\nFind $x$.\n\nNow.\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)


@pytest.mark.parametrize("kind", ["jsonl", "dataset"])
def test_dapo_repeats_nothing_and_asks_for_a_box(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (
        {"prompt": [{"role": "user", "content": text}], "reward_model": {"ground_truth": "34"}, "extra_info": {"a": 1}}
        for text in (DAPO_PROMPT, "Another.")
    )
    rows = [one, other, one, one, other]
    data = str(write_lines(tmp_path / "dapo.jsonl", rows))
    if kind == "dataset":
        datasets = pytest.importorskip("datasets")
        made = datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)})
        monkeypatch.setattr(datasets, "load_dataset", lambda *_: made)
        data = "BytedTsinghua-SIA/DAPO-Math-17k"
    env = make(data=data)
    assert len(env.tasks["train"]) == 2
    openings = [env.reset(options={"index": index})[1]["messages"][-1]["content"] for index in range(2)]
    assert openings == ["Find $x$.\n\nNow.", "Another."]
    assert env.step("\\boxed{34}")[4]["is_success"]


def test_wrong_data_is_named(tmp_path: Path) -> None:
    for row in ({"problem": "p"}, {"problem": "p", "answer": ""}, {"text": "p", "answer": "5"}):
        with pytest.raises(ConfigError, match=r"rows\.jsonl, line 1.*(answer|question)"):
            make(data=str(write_lines(tmp_path / "rows.jsonl", [row])))
    for task in ("q", {"problem": None, "answer": "1"}):
        with pytest.raises(ConfigError, match="must be an object|question"):
            make().reset(options={"task": task})


def test_levels_and_kinds_are_for_embedded_problems(tmp_path: Path) -> None:
    tasks = make().tasks
    assert {split: len(rows) for split, rows in tasks.items()} == {**dict.fromkeys(tasks, 1_000), "train": 20_000}
    assert {row["level"] for row in make(level=1).tasks["train"][:50]} == {1}
    data = str(write_lines(tmp_path / "rows.jsonl", [{"problem": "How many?", "answer": "5"}]))
    for name, value in (("level", 1), ("kinds", ("coins",))):
        with pytest.raises(ConfigError, match=f"{name} is .*only data='embedded' has it"):
            make(data=data, **{name: value})
