r"""Answers as people and interpreters write them are right; what differs in a sign that counts is wrong."""

from __future__ import annotations

import pytest

from agent_gym.envs.retool.reader import read
from agent_gym.envs.retool.scoring import math_equal
from agent_gym.envs.retool.typed import to_tex

pytest.importorskip("math_verify")

# One pair a line: answer, gold answer.
RIGHT = r"""
pi*R*H @ \pi RH
H*R*pi @ \pi RH
2*pi*R*H @ 2\pi RH
5\% @ 0.05
2**0.5 @ \sqrt{2}
(-oo, -2) U (2, oo) @ (-\infty,-2)\cup(2,\infty)
x in (0, 1) @ (0,1)
-2 <= x <= 7 @ x\in[-2,7]
set([1, 2, 3]) @ \{1,2,3\}
frozenset({1, 2}) @ \{1,2\}
x_1=3, x_2=-3 @ 3, -3
5cm @ 5\text{ cm}
1_000 @ 1000
(1, 2, 3) @ \begin{pmatrix} 1 \\ 2 \\ 3 \end{pmatrix}
x=1, y=2 @ (1,2)
(x, y) = (1, 2) @ (1,2)
(-7)/2 @ -\frac{7}{2}
7/(-2) @ -\frac{7}{2}
"Evelyn" @ \text{Evelyn}
'Evelyn' @ \text{Evelyn}
empty set @ \emptyset
no solution @ \emptyset
664 (base 7) @ 664_7
664 base 7 @ 664_7
664_{\text{seven}} @ 664_7
x ≡ 3 (mod 7) @ x \equiv 3 \pmod 7
[1, 2, 3] @ 1,2,3
[2, 1] @ 1,2
2^{1/2} @ \sqrt{2}
2**(1/2) @ \sqrt2
sqrt(2) @ \sqrt{2}
x**(1/2) @ \sqrt{x}
\frac{\sqrt{2}}{2} @ \frac{1}{\sqrt 2}
sqrt(2)/2 @ \frac{\sqrt{2}}{2}
oo @ \infty
-oo @ -\infty
∞ @ \infty
Matrix([[1, 2], [3, 4]]) @ \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
[[1, 2], [3, 4]] @ \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
Matrix([[-4], [-3]]) @ \begin{pmatrix} -4\\-3 \end{pmatrix}
Matrix([-4, -3]) @ \begin{pmatrix} -4\\-3 \end{pmatrix}
\begin{bmatrix} 1/2 \\ 3 \end{bmatrix} @ \begin{pmatrix} \frac12 \\ 3 \end{pmatrix}
Interval(0, 5) @ [0,5]
Interval.open(0, 5) @ (0,5)
Interval(0, oo) @ [0,\infty)
Interval.Ropen(0, 1) @ [0,1)
Union(Interval.open(-oo, -2), Interval.open(2, oo)) @ (-\infty,-2)\cup(2,\infty)
{1, 2} @ \{1,2\}
{2, 1} @ \{1,2\}
FiniteSet(1, 2) @ \{1, 2\}
Rational(3, 4) @ \frac34
3.0 @ 3
½ @ \frac12
½ @ 0.5
3½ @ \frac72
3 1/2 @ 3.5
π/2 @ \frac{\pi}{2}
2×10³ @ 2000
2·√3 @ 2\sqrt3
−5 @ -5
x≤2 @ (-\infty,2]
x ≥ 0 @ [0, \infty)
2 < x @ (2,\infty)
-3 <= x < 5 @ [-3,5)
x > 2 or x < -2 @ (-\infty,-2)\cup(2,\infty)
x \ne 3 @ (-\infty,3)\cup(3,\infty)
\mathbb{R} \setminus \{3\} @ (-\infty,3)\cup(3,\infty)
x \in (2, \infty) @ (2,\infty)
(2, oo) @ (2,\infty)
(-oo, 3] @ (-\infty,3]
**73** @ 73
`73` @ 73
$73$ @ 73
\(73\) @ 73
$$\frac{1}{2}$$ @ 0.5
**x = 5** @ 5
**$\frac{3}{4}$** @ \frac34
$\sqrt{2}$. @ \sqrt{2}
\[ \sqrt{2} \] @ \sqrt{2}
\frac\pi3 @ \frac{\pi}{3}
0.\overline{3} @ \frac13
0.\overline{36} @ \frac{4}{11}
\frac{1}{3} @ 0.\overline{3}
0.1\overline{6} @ \frac16
0.(3) @ \frac13
\emptyset @ \varnothing
\{\} @ \emptyset
∅ @ \emptyset
EmptySet @ \emptyset
set() @ \emptyset
{} @ \emptyset
1,000,000 @ 1000000
10{,}000 @ 10000
1 000 @ 1000
\dfrac{\pi}{4} @ \frac{\pi}{4}
\tfrac{8\pi}5 @ \frac{8\pi}{5}
\left( 3, \frac{\pi}{2} \right) @ (3,\pi/2)
(3, pi/2) @ \left( 3, \frac{\pi}{2} \right)
60 @ 60^\circ
60^\circ @ 60
60° @ 60
60 degrees @ 60^{\circ}
5 cm @ 5\text{ cm}
5 centimeters @ 5\text{ cm}
\$5 @ 5
$5 @ \$5
5 dollars @ \$5
36 square inches @ 36\text{ in}^2
99π @ 99\pi \text{ square inches}
99*pi @ 99\pi \text{ square inches}
99\pi\text{ in}^2 @ 99\pi \text{ square inches}
x = 5 @ 5
Evelyn @ \text{Evelyn}
evelyn @ \text{Evelyn}
\textbf{Evelyn} @ \text{Evelyn}
**Evelyn** @ \text{Evelyn}
A @ \text{(A)}
(A) @ \text{A}
**(A)** @ A
odd @ \text{odd}
Odd @ \text{odd}
B, C @ C, B
A, D @ \text{A,D}
y = 2x + 3 @ y=2x+3
2*x + 3 @ y = 2x + 3
y - 2x = 3 @ y = 2x+3
4x - 5y + 50 = 0 @ 4x-5y=-50
x^2+2x+1 @ (x+1)^2
(x + 1)**2 @ x^2+2x+1
3*x**2 - 7*x + 4 @ 3x^2 - 7x + 4
1 + sqrt(19), 1 - sqrt(19) @ 1 \pm \sqrt{19}
1 ± √19 @ 1 \pm \sqrt{19}
\pm 3 @ 3, -3
x = \pm 3 @ -3, 3
x = 1, x = 2 @ 1,2
x=1 or x=-2 @ -2, 1
1 and 2 @ 1,2
12 and 13 @ 12\text{ and }13
-1/2 + sqrt(3)*I/2 @ -\frac{1}{2}+\frac{\sqrt3}{2}i
(1+2j) @ 1+2i
6 + 9*I @ 6+9i
exp(2) @ e^2
E**2 @ e^2
log(2) @ \ln 2
log(2) @ \log 2
ln(2) @ \ln 2
sin(3*x) @ \sin 3x
2*tan(x) @ 2 \tan x
cos(13°) @ \cos 13^\circ
\cos(13^\circ) @ \cos 13^\circ
sqrt(6)/3 + 2 @ 2+\frac{\sqrt6}{3}
2516_8 @ 2516_{8}
2516₈ @ 2516_8
1 : 2 @ 1:2
4:30 PM @ \text{4:30 p.m.}
\text{June 20} @ June 20
f(2) < f(1) < f(4) @ f(2) < f(1) < f(4)
f(4) > f(1) > f(2) @ f(2) < f(1) < f(4)
\overline{CD} @ \overline{CD}
3 - 2*f(x) @ 3 - 2f(x)
x \equiv 3 (mod 7) @ x \equiv 3 (mod 7)
x≡3 \pmod 7 @ x \equiv 3 \pmod{7}
2^{2005} @ 2^{2005}
2**2005 @ 2^{2005}
\sqrt[3]{2} @ 2^{1/3}
∛2 @ \sqrt[3]{2}
cbrt(2) @ \sqrt[3]{2}
x^{10} @ x^10
x¹⁰ @ x^{10}
1.5e-3 @ 0.0015
1,-1,-3i @ -3i,-1,1
{-1} ∪ [0,7) @ \{-1\} \cup [0,7)
\{x | x > 2\} @ (2,\infty)
θ = π/4 @ \frac{\pi}{4}
x₁ + x₂ @ x_1+x_2
a_1 + 2 @ a_{1} + 2
\frac{x+2}{7} @ \frac17(x+2)
(x+2)/7 @ \frac{x+2}{7}
7*z**96*(4*z + 1) @ 7z^{96}(4z+1)
4*x*(8*x**2 - x + 5) @ 4x(8x^2-x+5)
6.283185307179586 @ 2\pi
(2.5, 3.0) @ (\frac52, 3)
(1, 2) @ (1,2)
Tuple(1, 2) @ (1,2)
(1; 2) @ (1,2)
50% @ 50\%
50 percent @ 50\%
\boxed{5\pi} @ 5\pi
\mathrm{even} @ \text{even}
yes @ \text{Yes}
2\pi r @ 2*pi*r
2πr @ 2\pi r
\text{VW} @ VW
\frac{3}{2}\sqrt{2} @ 3*sqrt(2)/2
{1, 3/2} @ 1,\frac32
1/2, 3 @ 3, \frac{1}{2}
-√2 @ -\sqrt 2
k = 3 + 2√2 @ 3 + 2 \sqrt{2}
(x - 5)(x² - 4x + 7) @ (x-5)(x^2-4x+7)
1/x @ \frac{1}{x}
x^-1 @ \frac{1}{x}
x**-1 @ \frac1x
sqrt(x + 1) @ \sqrt{x+1}
\sqrt{x+1} @ (x+1)^{1/2}
−128 − 128√3 i @ -128 - 128 \sqrt{3} i
√x @ \sqrt{x}
3 - sqrt(x - 3) @ -\sqrt{x-3}+3
1:03pm @ \text{1:03 PM}
{\text{odd}} @ \text{odd}
√(x) @ \sqrt x
2x√5 @ 2x\sqrt5
99π cm² @ 99\pi\text{ cm}^2
atan(x) @ \tan^{-1} x
\exp(x) @ e^x
e^x @ \exp(x)
\operatorname{arctan}(x) @ \arctan x
12\,\mathrm{cm^2} @ 12\text{ cm}^2
B, \text{C} @ B, C
\frac{\sqrt3}{2}\text{ m} @ \frac{\sqrt{3}}{2}
2\pi\text{ sq. units} @ 2\pi\text{ square units}
3.141592653589793 @ \pi
5 \text{ or } 6 @ 5, 6
0, 1, or 2 @ 0,1,2
\mathrm{ln}(2) @ \ln 2
x \le 3 @ (-\infty,3]
"""

WRONG = r"""
[1, 2] @ 1,2
[-2, 2] @ -2,2
5\% @ 5
5\% @ 500
pi*R @ \pi RH
pi*(R+H) @ \pi RH
pi*R*H*H @ \pi RH
A*C @ AB
AC @ AB
(-oo, -2) U (3, oo) @ (-\infty,-2)\cup(2,\infty)
x in (0, 2) @ (0,1)
-2 <= x < 7 @ x\in[-2,7]
set([1, 2]) @ \{1,2,3\}
x_1=3, y_2=-3 @ 3, -3
5mm @ 5\text{ cm}
1_00 @ 100
1_000 @ 100
(3, 2, 1) @ \begin{pmatrix} 1 \\ 2 \\ 3 \end{pmatrix}
y=1, x=2 @ (1,2)
x=2, y=1 @ (1,2)
(x, y) = (2, 1) @ (1,2)
(-7)/(-2) @ -\frac{7}{2}
"Evelyn" or "Adam" @ \text{Evelyn}
no solution @ 0
664 (base 8) @ 664_7
664_{\text{eight}} @ 664_7
x ≡ 3 (mod 8) @ x \equiv 3 \pmod 7
frac{1}{2} @ \frac{1}{2}
2**-0.5 @ \sqrt{2}
n \text{ odd} @ n \text{ even}
664_7 @ 664_8
664 @ 664_7
664_7 @ 664
x \equiv 4 \pmod 7 @ x\equiv 3 \pmod 7
x \equiv 3 \pmod 5 @ x\equiv 3 \pmod 7
3 @ x\equiv 3 \pmod 7
\angle ACB @ \angle ABC
ACB @ ABC
BA @ AB
(2,1) @ (1,2)
\{1,2\} @ (1,2)
(1,2) @ \{1,2\}
[1,2] @ (1,2)
(1,2] @ [1,2)
[0,\infty) @ (0,\infty)
(-\infty,0) @ (0,\infty)
\infty @ -\infty
+\infty @ -\infty
e^{-50} @ e^{-60}
\frac{1}{2006!} @ \frac{1}{2004!}
10^{-60}x @ 10^{-50}x
1+e^{-500} @ 1+e^{-501}
\log_2 3 @ \log_3 2
\log_2 x @ \log_3 x
\ln 5 @ \log 5
\log_{10} x @ \ln x
1 \pm \sqrt{19} @ 1 + \sqrt{19}
1 + \sqrt{19} @ 1 \pm \sqrt{19}
1 @ 1,2
1,2 @ 1
1,1 @ 1,2
f'(x) @ f(x)
f(x) @ f'(x)
\vec{a} @ a
\overline{z} @ z
1-2i @ 1+2i
x^2 @ x^2 + C
x^2+1 @ x^2 + 2
\text{Evelyn} @ \text{Navin}
\text{evelin} @ \text{Evelyn}
B @ A
a @ A
(B) @ (A)
x=2,y=1 @ x=1,y=2
2,1 @ x=1,y=2
y=5x @ z=5x
CD = 5 @ AB = 5
5\text{ m} @ 5\text{ cm}
5\text{ cm}^3 @ 5\text{ cm}^2
€5 @ \$5
60^\circ C @ 60^\circ F
\text{parabola} @ \text{ellipse}
0.3 @ 0.\overline{3}
0.333 @ \frac13
1.414 @ \sqrt2
2x @ 2X
\frac{7}{5} + \frac{1}{5} i. @ \frac{0}{5} + \frac{1}{5} i.
1, 3, 5, \ldots, 2n-1 @ 2, 4, 6, \ldots, 2n
4, \ldots, 9 @ 9
9 @ 4, \ldots, 9
3:00 \text{ a.m.} @ 3:00 \text{ p.m.}
\text{1:03 PM} @ \text{1:03 AM}
x > 2 @ x \ge 2
x>2 @ [2,\infty)
x>2 @ (-\infty,2)
x < 2 @ x > 2
\begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix} @ \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
\begin{pmatrix} 1 & 2 & 3 & 4 \end{pmatrix} @ \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
\begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix} @ \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}
2\frac12x @ \frac{2}{2}x
x_1 @ x_2
x_1+x_2 @ x_1+x_3
a^{\prime} @ a
\hat{i} + j @ i + j
\sin x @ \sin y
\sin^{-1} x @ \frac{1}{\sin x}
\arcsin x @ \sin x
x! @ x
2^{2006} @ 2^{2005}
2^{2005}+1 @ 2^{2005}
(0,1)\cup(2,3) @ (0,1)\cup(2,4)
(0,1) @ (0,1)\cup(2,4)
\text{5 apples} @ \text{6 apples}
\sqrt{x^2} @ x
\text{C, F} @ \text{C, F, H}
\text{C, F, G} @ \text{C, F, H}
1:3 @ 1:2
\text{no} @ \text{yes}
\overline{AB} @ \overline{CD}
\overline{AB} @ \overrightarrow{AB}
\triangle ABC @ \triangle ABD
4^\circ, 20^\circ @ 4^\circ, 21^\circ
\cos 13 @ \cos 13^\circ
x=5 or 6 @ 5,7
1 000 000 @ 100000
-x @ x
x-1 @ 1-x
\frac{a}{b} @ \frac{b}{a}
AB \parallel CD @ AB \perp CD
x \notin A @ x \in A
p \to q @ q \to p
\{2,3\} @ \{1,2,3\}
\mathbb{Z} @ \mathbb{R}
x^2 @ x_2
2,3 @ 2.3
(1,2,3) @ (1,3,2)
152B_{11} @ 152A_{11}
5 \text{ or } 6 @ 5
6 @ 5 \text{ or } 6
y < 3 @ x < 3
y > 3 @ (3, \infty)x
\text{all } x > 0 @ \text{all } x < 0
\text{increasing} @ \text{decreasing}
\text{HHT} @ \text{HTH}
3x + 2y = 7 @ 3x + 2y = 8
(x-1)(x+2)=0 @ (x-1)(x+3)=0
99\pi \text{ cm}^2 @ 99\pi \text{ square inches}
[-\infty,3] @ (-\infty,3]
A'C'B' @ A'B'C'
B_1A_1 @ A_1B_1
3.1415927 @ \pi
99\pi\text{ cm} @ 99\pi\text{ cm}^2
cm @ mc
\sin^{-1}x @ \tan^{-1}x
5^{\circ}C @ 5^\circ F
x^2+y @ x^2+Y
\vec{a}\cdot\vec{b} @ \vec{a}\cdot\vec{c}
A\to B @ B\to A
1+2i @ 1+2j
\neg p @ p
9^{9^{9^9}}x @ x
10000000!x @ n!x
(1,1] @ (1,1)
(0b,1) @ (0,1)
\text{(1A)} @ \text{(A)}
\text{Frida.y} @ \text{Friday}
\text{+A} @ \text{A}
3i+2 @ 3j+2
"""


def _pairs(table: str) -> list[list[str]]:
    return [line.split(" @ ") for line in table.strip().split("\n")]


def test_other_forms_of_the_same_answer_are_right() -> None:
    assert [pair for pair in _pairs(RIGHT) if not math_equal(*pair)] == []


def test_what_differs_in_any_sign_that_counts_is_wrong() -> None:
    assert [pair for pair in _pairs(WRONG) if math_equal(*pair)] == []


def test_an_answer_is_itself() -> None:
    golds = [gold for table in (RIGHT, WRONG) for _, gold in _pairs(table)]
    assert [gold for gold in golds if not math_equal(gold, gold)] == []


BROKEN = ["", " ", "\\", "{", "}" * 9, "^", "_", "x_", "x^", "\\frac", "\\text{", "\0", "\ud800", "٥"]
LONG = [
    "(",
    "{",
    "[",
    "\\{",
    "|",
    "\\sqrt",
    "sqrt(",
    "**",
    "x^",
    "-",
    "f(",
    "\\text{",
    "1/",
    "$",
    "Matrix([",
    "x!",
    "x ",
    "1+",
]


@pytest.mark.parametrize("text", BROKEN)
@pytest.mark.parametrize("frame", ["{}", "x{}", "({}", "\\sqrt{}", "\\begin{{pmatrix}}{}", "Matrix([[{}", "1,{},"])
def test_broken_texts_are_read_as_what_they_are(text: str, frame: str) -> None:
    """Nothing raises, and a text that is not covered keeps all of its signs."""
    written = to_tex(frame.format(text), "x^2")
    assert read(written)
    assert not math_equal(frame.format(text), "x^2") and not math_equal(frame.format(text), "5")


@pytest.mark.parametrize("piece", LONG)
def test_a_long_text_takes_no_time(piece: str) -> None:
    for length in (150, 290, 1000):
        assert not math_equal((piece * length)[:length], "x^2")
    assert not math_equal(piece * 100_000, "x^2")


def test_a_sign_of_percent_counts_where_the_question_asks_for_percents() -> None:
    assert math_equal("5\\%", "5", "What percent of 20 is 1?") and not math_equal("5\\%", "5", "What is 2+3?")
    assert not math_equal("5\\%", "0.05", "What percent of 2000 is 1?")
