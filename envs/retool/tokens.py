r"""Cuts a text in TeX into tokens.

Words, also the ones of a `\text{...}`, times of day, numbers in bases are one each.
"""

from __future__ import annotations

import re

Token = tuple[str, str]
"""Kind and text. Kinds: time, based, num, cmd, word, name, letter, sep, sign."""

_TOKEN = re.compile(
    r"""(?P<time>\d+(?:\s*:\s*\d+)+) | (?P<based>\d[\dA-Z]*(?:\.[\dA-Z]+)?_(?:\{\s*\d+\s*\}|\d))
    | (?P<num>(?:\d+\.?\d*|\.\d+)[eE][-+]\d+|\d+\.?\d*|\.\d+)
    | (?P<cmd>\\[a-zA-Z]+|\\.|\\) | (?P<word>[a-zA-Z]{4,}|(?<![a-zA-Z])(?:and|or|yes|odd)(?![a-zA-Z])
        |(?<![a-zA-Z])(?:cm|mm|km|kg|mg|ft|mph)(?![a-zA-Z]))
    | (?P<name>[A-Z]{2,}) | (?P<letter>[a-zA-Z])
    | (?P<space>\s+) | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_TEXT = frozenset(f"\\{name}" for name in "text textrm textbf textit textsf texttt textnormal mbox hbox".split())
_TEXT_TOKEN = re.compile(
    r"(?P<time>\d+(?::\d+)+)|(?P<word>[a-zA-Z]+)|(?P<num>\d+(?:\.\d+)?)|(?P<space>\s+)|(?P<sign>.)",
    re.DOTALL | re.ASCII,
)
_GROUP = re.compile(r"\s*\{([^{}]*)\}")
_CLOCK = re.compile(r"([aApP])\.?\s?[mM](?![a-zA-Z])\.?")
_SHORT_WORDS = frozenset("yes no odd am pm".split())
_VALUES = ("num", "letter", "name", "cmd")  # the tokens that a unit may follow
_UNIT_LETTERS = frozenset("mgshlLNJWVAKCF")

GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau "
    "upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell".split()
)
FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log lg exp min max gcd lcm det".split()
)


def tokenize(text: str) -> list[Token]:
    r"""Return the tokens of a text in TeX; the words of a `\text{...}` are separate tokens."""
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None and match.lastgroup is not None  # the last alternative takes any character
        kind, at = match.lastgroup, match.end()
        if kind == "cmd" and match[0] in _TEXT and (group := _GROUP.match(text, at)):
            follows = bool(found) and (found[-1][0] in _VALUES or found[-1][1] in (")", "}"))
            found += _text_tokens(group[1], follows)
            at = group.end()
        elif found and found[-1][0] == "time" and (clock := _CLOCK.match(text, match.start())):
            found.append(("word", clock[1].lower() + "m"))
            at = clock.end()
        elif kind == "word":
            found.append(word_of(match[0]))
        elif kind != "space":
            found.append((kind, re.sub(r"[\s{}]", "", match[0]) if kind in ("time", "based") else match[0]))
    return found


def word_of(text: str) -> Token:
    """Return the token of a word: without its case, unless it may be a name such as ABC."""
    if text.lower() in ("and", "or"):
        return "sep", text.lower()
    folds = len(text) > 3 or not text.isupper() or text.lower() in _SHORT_WORDS
    return ("name", text) if text.isupper() and not folds else ("word", text.lower() if folds else text)


def _text_tokens(text: str, follows: bool) -> list[Token]:
    text = re.sub(r"(?<=\b[a-zA-Z])\.(?=\s?[a-zA-Z]\b)|(?<=[a-zA-Z])\.(?=\s|$)", "", text)  # a.m., sq. in.
    found: list[Token] = []
    for match in _TEXT_TOKEN.finditer(text):
        kind = match.lastgroup or "sign"
        if kind == "word" and len(match[0]) == 1:
            found.append(("word" if follows and match[0] in _UNIT_LETTERS else "letter", match[0]))
        elif kind == "word":
            found.append(word_of(match[0]))
        elif kind != "space":
            found.append((kind, match[0]))
    return found
