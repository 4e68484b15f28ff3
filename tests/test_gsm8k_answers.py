"""GSM8K's answers: the forms of a number that are read, and what is no number or another one."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from agent_gym.envs.gsm8k.scoring import same_number, stated_answer

RIGHT = r"""
72@72|72.0@72|$72@72|1,234@1234|5 million@5|18 dollars@18|20%@20
3/4@0.75|-3/4@-0.75|$3/4@0.75|3/4 cup@0.75
The answer is 3/4.@0.75|**3/4**@0.75|x = 3/4@0.75|6/2@3|\frac{3}{4}@0.75|½@0.5
1 1/2@1.5|1½@1.5|1 000@1000|1 234 567@1234567|$1 000@1000|1 000 000 dollars@1000000|1 234.5@1234.5
18 cm@18|18 cm^2@18|18 cm²@18|18 cm^{2}@18|18 m**3@18|18 ft2@18|18\text{ cm}^2@18
1.8e1@18|1e3@1000|1.8 × 10^1@18|1.8*10^1@18|-2.5e-1@-0.25
5*3=15@15|5 * 3 = 15@15|5 × 3 = 15 apples@15|48/2=24@24|10-4=6@6|(5+10)*2 = 30@30|$5*3 = $15@15|5.0*3=15.0@15
"""
WRONG = r"""
18 or 19@18|18 or 19@19|18, 19@18|18 19@18|18 19@1819|18-19@18|3-4@-1
5*3@15|2^3@8|10^5@10|5*3=16@16|5*3=15@5|7=6=5@5|2=3@3|5*3=15=16@16|5*3=15 or 16@15
3/4@0.7|3/4@3|3/4 or 1@0.75|1/2/3@0.5|5 7/4@6.75|1/0@0|18/@1|3:4@0.75|Total - 3/4@-0.75|3/4 million@0.75|5 3/4@5
1 00@100|12 34@1234|1 0000@10000|18cm 2@18|18 cm^5@18|x^2 = 18@2|1e400@1|1e3@1|eighteen@18|@18
"""


def _cases(table: str) -> list[list[str]]:
    return [case.rsplit("@", 1) for line in table.strip().split("\n") for case in line.split("|")]


def test_other_forms_of_a_number_are_read() -> None:
    assert [case for case in _cases(RIGHT) if not same_number(*case)] == []


def test_other_numbers_and_several_are_not_right() -> None:
    assert [case for case in _cases(WRONG) if same_number(*case)] == []
    assert same_number(None, "18") == same_number("1/2", "1/2") == 0.0  # a gold answer is one numeral


@pytest.mark.parametrize("text", ["<Answer>3/4</Answer>", "<ANSWER> 3/4 </answer>", "<answer>3/4</answer>", "#### 3/4"])
def test_tags_may_have_any_case(text: str) -> None:
    assert stated_answer(text) == "3/4"


@pytest.mark.parametrize("no_tool", [False, True])
@pytest.mark.parametrize(("answer", "formed"), [("<answer>3/4</answer>", 1), ("<Answer>0.75</Answer>", 0)])
def test_the_environment_pays_them(no_tool: bool, answer: str, formed: int) -> None:
    env: Any = gymnasium.make("AgentR1/GSM8K-NoTool-v0" if no_tool else "AgentR1/GSM8K-v0").unwrapped
    env.reset(seed=0, options={"task": {"question": "How much?", "answer": "#### 0.75"}})
    _, reward, terminated, _, info = env.step(answer)
    assert terminated and info["is_success"] and reward == pytest.approx(1 + 0.1 * formed)


def test_protocols_keep_their_own_match() -> None:
    env: Any = gymnasium.make("AgentR1/GSM8K-NoTool-v0", protocol="verl").unwrapped
    env.reset(seed=0, options={"task": {"question": "How much?", "answer": "#### 0.75"}})
    assert not env.step("#### 3/4")[4]["is_success"]


@pytest.mark.parametrize("piece", ["1 ", "1/", "1=", "9*", "1e", "\\frac{1}", "½", "((", "1 000 ", "<Answer>"])
def test_long_answers_take_no_time(piece: str) -> None:
    for length in (250, 100_000):
        assert same_number(stated_answer(f"<answer>{(piece * length)[:length]}</answer>"), "18") == 0.0
