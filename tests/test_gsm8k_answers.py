"""GSM8K's answers: the forms of a number that are read, and what is no number or another one."""

from __future__ import annotations

import re
import string
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

# The number among words, units, currencies and markup, and with a sign next to it that changes its reading.
PLAIN = r"""
7@7|7 cm@7|7cm@7|7 m@7|7h@7|7 g@7|7 L@7|7°@7|7 °C@7|7^\circ@7|7^{\circ}C@7|7\%@7|7 percent@7|7 per cent@7|7'@7
7"@7|-7@-7|$7@7|US$7@7|US$ 7@7|C$7@7|USD 7@7|7 USD@7|EUR7@7|Rs7@7|Rs. 7@7|€7@7|7€@7|£ 7@7|\$7@7|$7.00@7
$7/hour@7|7 miles/hour@7|7 km/h@7|7/week@7|7 per hour@7|7-inch@7|7 - as said@7|**7**@7|*7*@7|_7_@7|`7`@7
**Answer:** 7@7|**Answer: 7**@7|Answer: **$7**@7|**7 apples**@7|<b>7</b>@7|\boxed{7}@7|\text{7}@7|7\text{ cm}@7
\(7\)@7|$$7$$@7|\[7\]@7|x = 7@7|x=7@7|\(x = 7\)@7|= 7@7|≈ 7@7|~7@7|\approx 7@7|=> 7@7|-> 7@7|→ 7@7
\Rightarrow 7@7|#7@7|No. 7@7|(7)@7|[7]@7|{7}@7|"7"@7|7.@7|7!!! Great@7|It is 7!@7|7?@7|7,@7|7;@7|7:@7|7th@7
the 7th day@7|7 (seven)@7|7 times@7|7 times as many@7|+7@7|The answer is 7@7|about 7@7|He has 7 left.@7
7 a day@7|7 I think@7|答案是7@7|7个@7|Ответ: 7@7|minus 7@-7|negative 7@-7|Negative $7@-7|It is -7@-7
7 more than Bob@7|7 square feet@7|7 dozen@7|7 quarters@7|7 mm@7|7 pm@7|at least 7@7|7 in.@7|7 ft.@7
7 and that is all@7
"""
CHANGED = r"""
e50@50|50e@50|/28@28|/ 28@28|28/@28|28 /@28|7!@7|!7@7|√7@7|√ 7@7|7√@7|2π@2|2 π@2|2\pi@2|\pi 2@2|π2@2|2pi@2
2 pi@2|7k@7|7K@7|$7k@7|7 k@7|7M@7|7 M dollars@7|7B@7|7bn@7|7 lakh@7|*7@7|7*@7|**7@7|7^@7|^7@7|×7@7|7×@7|7 ×@7
÷7@7|7÷@7|<7@7|> 7@7|≥7@7|>=7@7|7>@7|7<@7|±7@7|7±@7|∞7@7|7%7@7|%7@7|7‰@7|½7@7|½ 7@7|²7@7|7_@7|_7@7|x_7@7|7=@7
7-@7|7 -@7|7+@7|7 +@7|x + 7@7|x+7@7|x - 7@7|-+7@7|+-7@-7|--7@-7|7x@7|7 x@7|7x + y@7|7xy@7|x7@7|a7@7|7a@7|7 x^y@7
7-x@7|7(x+1)@7|7/x@7|,7@7|7&@7|&7@7|@7@7|7\@7|\sqrt{7}@7|\sqrt7@7|sqrt(7)@7|log(7)@7|log 7@7
the square root of 7@7|half of 7@7|twice 7@7|double 7@7|one third of 7@7|not 7@7|isn't 7@7|isn’t 7@7
more than 7@7|less than 7@7|fewer than 7@7|minus -7@7|minus -7@-7|minus 7@7|negative 7@7|7 squared@7|7 cubed@7
7 factorial@7|7 halves@7|7 thirds@7|7 and a half@7|7 and one half@7|7 and a quarter@7|7 and two thirds@7
7 or more@7|7 or less@7|7 point five@7|7 plus two@7|7 to the third power@7|7 \times x@7|7\cdot x@7|7 mod x@7
e3/4@0.75|3/4x@0.75|3/4e@0.75|/3/4@0.75|√3/4@0.75|3/4π@0.75|half of 3/4@0.75|3/4 and a half@0.75|5*3=15e@15
5*3=15k@15|1.8e1x@18|18 cm^2!@18k
"""


def _cases(table: str) -> list[list[str]]:
    return [case.rsplit("@", 1) for line in table.strip().split("\n") for case in line.split("|")]


def test_other_forms_of_a_number_are_read() -> None:
    assert [case for case in _cases(RIGHT + PLAIN.lstrip()) if not same_number(*case)] == []


def test_other_numbers_and_several_are_not_right() -> None:
    assert [case for case in _cases(WRONG) if same_number(*case)] == []
    assert [case for case in _cases(CHANGED) if same_number(*case)] == []
    assert same_number("|7|", "7") and not same_number("|7", "7") and not same_number("7|", "7")
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


def test_one_sign_too_many_is_paid_only_where_the_number_stays_the_same() -> None:
    before, number, after = (
        r"""[\s"'#$(){}\[\]:;?`~=+0]*""",
        r"[0-9]{1,3}(?:[, ]?[0-9]{3})*",
        r"""[\s"'#$%(){}\[\]:;?`~,.]*""",
    )
    harmless = f"^{before}{number}[CFLcdghmlpst]?{after}$"
    paid = []
    for gold in ("0", "7", "28", "50", "104", "300", "1000", "57500", "1430000"):
        for sign in string.printable + "√π²½×÷±∞≤≥‰":
            for at in range(len(gold) + 1):
                text = gold[:at] + sign + gold[at:]
                if same_number(text, gold) and not (re.match(harmless, text) or text in ("-0", ".0")):
                    paid.append((text, gold))
    assert paid == []
