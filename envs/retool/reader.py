r"""Reads an answer in TeX completely, or not at all: a tree of JSON that leaves no token out.

A reader that skips unknown text calls `n \text{ even}` and `n \text{ odd}` equal. So a text that this grammar does not
cover is a sequence: its words, dots, moduli and unknown commands as they are, and between them the parts that are
expressions. Two sequences are equal only if the former are the same and the latter have the same values (comparing.py).

| node | meaning |
|---|---|
| `["n", "2.5"]`, `["based", "664", "7"]` | a number, and one in a base that is not ten |
| `["c", "pi"]` | pi, e, i, inf |
| `["v", "x_1"]` | a variable or a point, with all its letters, primes, subscripts and arrows |
| `["+", a, b]`, `*`, `/`, `^`, `["neg", a]`, `["pm", a, sign]` | operations; +1 for \pm and -1 for \mp |
| `["f", "\\sin", a]`, `["ap", "f'", a]` | a known function and an unknown one |
| `["unit", "cm^2", a]` | a quantity; degrees, percent and currencies, too |
| `["list", separators, items]` | `1, 2`, `1 or 2` |
| `["round", items]`, `square`, `curly`, `angle`, `["interval", "(]", a, b]` | content of brackets |
| `["matrix", kind, rows]`, `["set", name]`, `["cup", parts]` | matrices, the empty set and the reals, unions |
| `["rel", operators, sides]` | `a = b`, `a < b < c`, `x \in A` |
| `["word", "odd"]`, `["seq", parts]` | a word, and uncovered text |
"""

from __future__ import annotations

import re
from typing import Any

from agent_gym.envs.retool.tokens import FUNCTIONS, GREEK, Token, tokenize
from agent_gym.envs.retool.units import known, unit_name

Node = list[Any]


class Unread(Exception):
    """The grammar does not cover this text."""


_INVERSE = {"\\sin": "\\arcsin", "\\cos": "\\arccos", "\\tan": "\\arctan"}
_MARKS = {
    **dict.fromkeys("overline bar conj".split(), "bar"),
    **dict.fromkeys("vec overrightarrow".split(), "vec"),
    **dict.fromkeys("hat widehat".split(), "hat"),
    **dict.fromkeys("mathbf boldsymbol bm".split(), "bold"),
    **dict.fromkeys("tilde widetilde".split(), "tilde"),
    **{name: name for name in "mathcal mathbb mathfrak dot ddot underline overarc overset widehat".split()},
}
_RELATIONS = {
    "=": "=", "<": "<", ">": ">", "\\le": "<=", "\\leq": "<=", "\\leqslant": "<=", "\\ge": ">=", "\\geq": ">=",
    "\\geqslant": ">=", "\\ne": "!=", "\\neq": "!=", "\\lt": "<", "\\gt": ">", "\\in": "in", "\\approx": "~",
}  # fmt: skip
_CLOSERS = {"(": (")", "]"), "[": ("]", ")"), "\\{": ("\\}",), "\\langle": ("\\rangle",), "{": ("}",)}
_BARS = {"\\lfloor": "\\rfloor", "\\lceil": "\\rceil", "\\lvert": "\\rvert", "|": "|", "\\vert": "\\vert"}
_TIMES = frozenset(("\\cdot", "\\times", "*"))
_SCALAR = frozenset("n c v + * / ^ neg pm f ap unit".split())
_MAX_DEPTH = 25
_MAX_TOKENS = 300  # of an answer that is more than a text


def read(text: str) -> Node:
    """Return the tree of a text in TeX, as a "seq" where the grammar does not cover it. Never raises."""
    tokens = tokenize(text)
    if len(tokens) > _MAX_TOKENS:
        return ["seq", [["token", *token] for token in tokens]]
    try:
        return _TexReader(tokens).whole()
    except (Unread, RecursionError):  # the latter in a caller that is deep itself
        return ["seq", _sequence(tokens)]


def _sequence(tokens: list[Token]) -> list[Node]:
    """Cut tokens into expressions and other text: each expression as long as it can be."""
    parts: list[Node] = []
    start = 0
    budget = 200  # attempts: an answer is short, or it is compared token by token
    while start < len(tokens):
        for stop in range(len(tokens), start, -1) if budget > 0 else ():
            if tokens[stop - 1][0] in ("sep", "word") or tokens[stop - 1][1] in (",", ";"):
                continue
            budget -= 1
            try:
                parts.append(_TexReader(tokens[start:stop]).expression())
            except (Unread, RecursionError):
                continue
            start = stop
            break
        else:
            parts.append(["token", *tokens[start]])
            start += 1
    return parts


class _TexReader:
    """A recursive descent over tokens; `Unread` where it cannot take one."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.at, self.depth = tokens, 0, 0

    def whole(self) -> Node:
        separators, items = self.items()
        self.end()
        return items[0] if len(items) == 1 else ["list", separators, items]

    def expression(self) -> Node:
        node = self.sum()
        self.end()
        if node[0] not in _SCALAR:
            raise Unread
        return node

    def end(self) -> None:
        if self.at < len(self.tokens):
            raise Unread

    @property
    def kind(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    @property
    def next(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, *texts: str) -> str:
        text = self.next
        if not text or (texts and text not in texts):
            raise Unread
        self.at += 1
        return text

    def items(self) -> tuple[list[str], list[Node]]:
        """Read `item, item and item`; return the separators and the items."""
        items, separators = [self.item()], []
        while self.next in (",", ";") or self.kind == "sep":
            separator = self.take()
            if separator == "," and self.kind == "sep":
                separator = self.take()
            separators.append(separator)
            items.append(self.item())
        return separators, items

    def item(self) -> Node:
        sides, operators = [self.union()], []
        while self.next in _RELATIONS and self.kind in ("sign", "cmd"):
            operator = _RELATIONS[self.take()]
            if operator in "<>" and self.next == "=":
                operator += self.take()
            operators.append(operator)
            sides.append(self.union())
        return ["rel", operators, sides] if operators else sides[0]

    def union(self) -> Node:
        parts = [self.quantity()]
        while self.next == "\\cup":
            self.take()
            parts.append(self.quantity())
        if self.next in ("\\setminus", "\\backslash"):
            self.take()
            return ["minus", parts[0] if len(parts) == 1 else ["cup", parts], self.quantity()]
        return parts[0] if len(parts) == 1 else ["cup", parts]

    def quantity(self) -> Node:
        """Read a value and the unit after it, or a single word."""
        if self.kind == "word":
            words = []
            while self.kind == "word":
                words.append(self.take())
            return ["word", " ".join(words)]
        node, names = self.sum(), []
        while self.kind == "word" and known(self.next):
            names.append(self.take())
            if self.next == "^":
                self.take()
                names[-1] += "^" + self.braced("2", "3")
        return ["unit", unit_name(" ".join(names)), node] if names else node

    def braced(self, *texts: str) -> str:
        if self.next != "{":
            return self.take(*texts)
        self.take()
        text = self.take(*texts)
        self.take("}")
        return text

    def sum(self) -> Node:
        node = self.signed()
        while self.next in ("+", "-", "\\pm", "\\mp") and self.kind in ("sign", "cmd"):
            operator = self.take()
            right = self.product()
            if operator in ("\\pm", "\\mp"):
                right = ["pm", right, 1 if operator == "\\pm" else -1]
            node = self.scalar("+", node, ["neg", right] if operator == "-" else right)
        return node

    def signed(self) -> Node:
        if self.next in ("+", "-", "\\pm", "\\mp") and self.kind in ("sign", "cmd"):
            operator, node = self.take(), self.product()
            if operator == "+":
                return self.fail() if node[0] == "v" else self.scalar("+", node)
            return self.scalar("neg", node) if operator == "-" else ["pm", node, 1 if operator == "\\pm" else -1]
        return self.product()

    def scalar(self, operator: str, *parts: Node) -> Node:
        if any(part[0] not in _SCALAR for part in parts):
            raise Unread
        return parts[0] if operator == "+" and len(parts) == 1 else [operator, *parts]

    def product(self) -> Node:
        node, divided = self.factor(), False
        while True:
            if self.next in _TIMES:
                self.take()
                node = self.scalar("*", node, self.sign_factor())
            elif self.next in ("/", "\\div"):
                slash = self.take()
                node, divided = self.scalar("/", node, self.sign_factor()), slash == "/"
            elif self.begins_factor():
                if divided or self.kind in ("num", "based") or node in (["n", "0"], ["neg", ["n", "0"]]):
                    raise Unread  # is 1/2x half of x or 1 over 2x? And what are 2 3, x2 and 0x?
                right = self.factor()
                both = _are_points(node, right)
                node = ["v", node[1] + right[1]] if both else self.scalar("*", node, right)
            else:
                return node

    def sign_factor(self) -> Node:
        if self.next == "-":
            self.take()
            return self.scalar("neg", self.factor())
        return self.factor()

    def begins_factor(self) -> bool:
        if self.kind in ("num", "based", "letter", "name") or self.next in ("(", "{", "[", "\\$"):
            return True
        name = self.next[1:]
        known = name in GREEK or name in FUNCTIONS or name in _MARKS
        return self.kind == "cmd" and (known or self.next in _PRIMARIES or self.next in ("\\lfloor", "\\lceil"))

    def factor(self) -> Node:
        """Read a primary with its suffixes: powers, factorials, degrees, percent."""
        node = self.primary()
        powers = 0
        while True:
            if self.next == "!":
                self.take()
                node = ["f", "!", self.scalar("+", node)]
            elif self.next in ("\\%", "%"):
                self.take()
                node = ["unit", "%", self.scalar("+", node)]
            elif self.next in ("^", "\\degree"):
                if self.take() == "\\degree" or self.next_is_circle():
                    node = ["unit", "degree", self.scalar("+", node)]
                    if self.kind == "letter" and self.next in "CF":
                        node[1] = self.take()
                    continue
                powers += 1
                if powers > 1:
                    raise Unread
                node = self.scalar("^", node, self.exponent())
            else:
                return node

    def next_is_circle(self) -> bool:
        at = self.at + (self.next == "{")
        if at < len(self.tokens) and self.tokens[at][1] == "\\circ":
            self.braced("\\circ")
            return True
        return False

    def exponent(self) -> Node:
        if self.next == "{":
            return self.group()
        if self.next == "-":
            self.take()
            return ["neg", self.group() if self.next == "{" else self.primary()]
        if self.next == "(" or self.kind in ("num", "letter") or self.next in _PRIMARIES or self.next[1:] in GREEK:
            return self.primary()
        raise Unread

    def group(self) -> Node:
        """Read `{...}`, one expression."""
        self.take("{")
        separators, items = self.items()
        self.take("}")
        return self.fail() if separators or items[0][0] not in _SCALAR else items[0]

    def argument(self) -> Node:
        r"""Read the argument of a command such as \frac: a group, a digit or a letter, as TeX does."""
        if self.next == "{":
            return self.group()
        if self.kind == "num":
            digits = self.take()
            if len(digits) > 1:  # \frac12 has the arguments 1 and 2
                self.at -= 1
                self.tokens = [*self.tokens[: self.at], ("num", digits[1:]), *self.tokens[self.at + 1 :]]
            return ["n", digits[0]] if digits[0] != "." else self.fail()
        if self.kind == "letter" or self.next in ("\\pi", "\\sqrt", "\\frac") or self.next[1:] in GREEK:
            return self.primary()
        return self.fail()

    def fail(self) -> Node:
        raise Unread

    def primary(self) -> Node:
        self.depth += 1  # all that is inside of something else comes through here
        if self.depth > _MAX_DEPTH:
            raise Unread
        node = self.bare_primary()
        self.depth -= 1
        return node

    def bare_primary(self) -> Node:
        kind, text = self.kind, self.next
        if kind == "num":
            return self.number()
        if kind == "based":
            self.take()
            digits, _, base = text.rpartition("_")
            return ["based", digits, base]
        if kind in ("letter", "name"):
            return self.variable(self.take())
        if text in _CLOSERS:
            return self.bracket()
        if text in _BARS:
            self.take()
            separators, items = self.items()
            self.take(_BARS[text])
            if separators:
                raise Unread
            name = "|" if "v" in text or text == "|" else text
            return ["f", name, self.scalar("+", items[0])]
        return self.command() if kind == "cmd" else self.fail()

    def number(self) -> Node:
        digits = self.take()
        ahead = self.tokens[self.at : self.at + 8]
        if digits.isdecimal() and [text for _, text in ahead[:1]] == ["\\frac"]:
            fraction = self.primary()  # a mixed number, if it is one
            if [part[0] for part in fraction[1:]] == ["n", "n"] and all(p[1].isdecimal() for p in fraction[1:]):
                if not int(digits) or not 0 < int(fraction[1][1]) < int(fraction[2][1]):
                    raise Unread
                return ["+", ["n", digits], fraction]
            return ["*", ["n", digits], fraction]
        if [kind for kind, _ in ahead[:3]] == ["num", "sign", "num"] and ahead[1][1] == "/":
            top, bottom = ahead[0][1], ahead[2][1]
            if not (
                digits.isdecimal() and top.isdecimal() and bottom.isdecimal() and 0 < int(top) < int(bottom)
            ) or not int(digits):
                raise Unread
            self.at += 3
            return ["+", ["n", digits], ["/", ["n", top], ["n", bottom]]]
        return ["n", digits]

    def variable(self, name: str) -> Node:
        """Read the suffixes of a letter: subscript, primes, and the argument where it is a function's name."""
        bare = name
        if self.next == "_":
            self.take()
            name += "_" + self.raw()
        while self.next == "'" or (self.next == "^" and self.tokens[self.at + 1 : self.at + 2] == [("cmd", "\\prime")]):
            self.at += 1 if self.next == "'" else 2
            name += "'"
        if bare in ("f", "g", "h", "F", "G", "H"):
            if [text for _, text in self.tokens[self.at : self.at + 5]] == ["^", "{", "-", "1", "}"]:
                self.at += 5
                name += "^-1"
            if self.next == "(":
                self.take()
                _, items = self.items()
                self.take(")")
                return ["ap", name, *items]
            if name.endswith("^-1"):
                return ["v", name]
        if name in ("e", "i"):
            return ["c", name]
        return ["v", name]

    def raw(self) -> str:
        """Read a subscript as it is."""
        if self.next != "{":
            return self.take()
        text, depth = "", 0
        while True:
            token = self.take()
            depth += (token == "{") - (token == "}")
            if not depth:
                return text
            text += token if token != "{" else ""

    def bracket(self) -> Node:
        opener = self.take()
        if opener == "{":
            self.at -= 1
            return self.group()
        if opener == "\\{" and self.next == "\\}":
            self.take()
            return ["set", "empty"]
        separators, items = self.items()
        closer = self.take(*_CLOSERS[opener])
        if "and" in separators or "or" in separators:
            raise Unread
        if opener + closer in ("(]", "[)"):
            return ["interval", opener + closer, *items] if len(items) == 2 else self.fail()
        if opener == "(" and len(items) == 1:
            return items[0]
        names = {"(": "round", "[": "square", "\\{": "curly", "\\langle": "angle"}
        return [names[opener], items]

    def command(self) -> Node:
        text = self.take()
        name = text[1:]
        if text == "\\frac":
            return ["/", self.argument(), self.argument()]
        if text in ("\\binom", "\\dbinom"):
            return ["f", "\\binom", self.argument(), self.argument()]
        if text == "\\sqrt":
            degree: Node = ["n", "2"]
            if self.next == "[":
                self.take()
                degree = self.sum()
                self.take("]")
            return ["f", "\\sqrt", self.argument(), degree]
        if text in ("\\pi", "\\infty"):
            return ["c", "pi" if text == "\\pi" else "inf"]
        if text == "\\$":
            return ["unit", "dollar", self.scalar("+", self.factor())]
        if text in ("\\emptyset", "\\varnothing"):
            return ["set", "empty"]
        if text == "\\mathbb" and (mark := self.raw()) and mark in "RZQNC":
            return ["set", mark]
        if text == "\\begin":
            return self.matrix()
        if name in FUNCTIONS:
            return self.function(text)
        if name in GREEK:
            return self.variable(name)
        if name in _MARKS and text != "\\mathbb":
            inner = self.raw()
            if not re.fullmatch(r"[a-zA-Z]+(?:_?\d+)?'?", inner):
                raise Unread
            return self.variable(f"{_MARKS[name]} {inner}")
        return self.fail()

    def matrix(self) -> Node:
        kind = self.raw()
        if kind not in ("pmatrix", "bmatrix", "matrix", "vmatrix", "Bmatrix"):
            raise Unread
        rows = [[self.scalar("+", self.sum())]]
        while self.next in ("&", "\\\\"):
            separator = self.take()
            if separator == "\\\\" and self.next == "\\end":
                break
            cell = self.scalar("+", self.sum())
            if separator == "&":
                rows[-1].append(cell)
            else:
                rows.append([cell])
        self.take("\\end")
        if self.raw() != kind or len({len(row) for row in rows}) > 1:
            raise Unread
        return ["matrix", "vmatrix" if kind == "vmatrix" else "matrix", rows]

    def function(self, name: str) -> Node:
        base: list[Node] = []
        power: Node | None = None
        if self.next == "_":
            self.take()
            base = [self.argument()]
        if self.next == "^":
            self.take()
            power = self.exponent()
            if power == ["neg", ["n", "1"]] and name in _INVERSE:
                name, power = _INVERSE[name], None
        if self.next == "(":
            self.take()
            _, items = self.items()
            self.take(")")
        else:
            items = [self.bare_argument()]
        node: Node = ["f", name, *(self.scalar("+", item) for item in items), *([["base", *base]] if base else [])]
        return ["^", node, power] if power else node

    def bare_argument(self) -> Node:
        r"""Read the argument of a function without brackets: `\sin 2x`, up to the next operator or function."""
        node = self.factor()
        while self.begins_factor() and self.kind != "num" and self.next[1:] not in FUNCTIONS and self.next != "(":
            node = self.scalar("*", node, self.factor())
        if self.next in ("/", "(", *_TIMES):  # is \sin x/2 half of a sine or the sine of a half?
            raise Unread
        return node


def _are_points(one: Node, other: Node) -> bool:
    """Whether two names, such as A' and B_1, are one of a line or an angle, whose order counts, and no product."""
    names = [node[1] for node in (one, other) if node[0] == "v" and node[1][0].isupper()]
    return len(names) == 2 and not all(name.isalpha() for name in names)


_PRIMARIES = frozenset(
    ("\\frac", "\\sqrt", "\\pi", "\\infty", "\\binom", "\\dbinom", "\\begin", "\\{", "\\langle", "\\emptyset")
)
