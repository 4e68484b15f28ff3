r"""Writes the texts of people and Python in TeX: Unicode, Markdown, and the text of sympy's objects.

`2√3`, `**73**`, `x**2`, `pi/4`, `Matrix([[1, 2], [3, 4]])`, `Interval(0, oo)`. TeX stays as it is, without its layout
(`\left`, `\dfrac`, `\,`, dollar signs). The gold answer decides where one text has two meanings: `I` and `E` are i and
e only where the gold answer has these and not the letters, and Python's `log` is \log only where it has \log.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from agent_gym.envs.retool.tokens import FUNCTIONS, GREEK

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱˣ", "0123456789+-()nix", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₙᵢₓₖₐ", "0123456789+-()nixka", strict=True))
_SIGNS = {
    "−": "-", "–": "-", "—": "-", "‑": "-", "‐": "-", "π": "\\pi ", "∞": "\\infty ", "×": "\\times ", "·": "\\cdot ",
    "⋅": "\\cdot ", "∙": "\\cdot ", "÷": "\\div ", "≤": "\\le ", "⩽": "\\le ", "≥": "\\ge ", "⩾": "\\ge ",
    "≠": "\\ne ", "≈": "\\approx ", "≡": "\\equiv ", "∪": "\\cup ", "∩": "\\cap ", "∈": "\\in ", "∉": "\\notin ",
    "∅": "\\emptyset ", "⌀": "\\emptyset ", "°": "^{\\circ}", "±": "\\pm ", "∓": "\\mp ", "∠": "\\angle ",
    "△": "\\triangle ", "′": "'", "’": "'", "″": "''", "…": "\\ldots ", "⟨": "\\langle ", "⟩": "\\rangle ",
    "∖": "\\setminus ", "ℝ": "\\mathbb{R}", "ℤ": "\\mathbb{Z}", "ℕ": "\\mathbb{N}", "ℚ": "\\mathbb{Q}",
    "ℂ": "\\mathbb{C}", "⌊": "\\lfloor ", "⌋": "\\rfloor ", "⌈": "\\lceil ", "⌉": "\\rceil ", "∣": "|", "⁄": "/",
    "∕": "/", "ℓ": "\\ell ", "→": "\\to ", "∥": "\\parallel ", "⊥": "\\perp ", "∧": " and ", "∨": " or ",
    "\u200b": "", "\u2060": "", "\ufeff": "", "\u2061": "", "\u2062": "\\cdot ",
}  # fmt: skip
_LETTERS = {chr(code): f"\\{name} " for name in GREEK for code in (
    [ord(unicodedata.lookup(f"GREEK {'CAPITAL' if name[0].isupper() else 'SMALL'} LETTER {name.upper()}"))]
    if not name.startswith("var") and name not in ("ell", "lambda", "Lambda", "sigma")
    else []
)} | {"λ": "\\lambda ", "Λ": "\\Lambda ", "σ": "\\sigma ", "ϕ": "\\phi ", "ϑ": "\\theta "}  # fmt: skip
_BASES = {
    word: str(at) for at, word in enumerate("two three four five six seven eight nine ten eleven twelve".split(), 2)
}
_SPOKEN: list[tuple[re.Pattern[str], str]] = [  # as a person writes them
    (re.compile(pattern), into)
    for pattern, into in (
        (r"(?<=[)\]}])\s*U\s*(?=[(\[{\\])", r"\\cup "),
        (r"(?<![a-zA-Z\\])([a-zA-Z])\s+in\s+(?=[(\[{\\])", r"\1 \\in "),
        (r"(?<![\\a-zA-Z.])sqrt\s+(\d+)", r"\\sqrt{\1}"),
        (r"(?<=\d)(?=(?:[cmk]m|[mk]g|ft|lbs?|oz|mph|ml|min)(?![a-zA-Z]))", " "),
        (r"\(\s*mod\s+(\w+)\s*\)", r"\\pmod{\1}"),
        (r"(?i)\A(?:the\s+)?(?:empty|null)\s+set\Z|\Ano\s+(?:real\s+)?solutions?\Z", r"\\emptyset "),
    )
]
_BASE = re.compile(
    r"([0-9A-Z]+)(?:_([0-9])|_\{\s*(?:\\text\s*\{\s*([a-z]+)\s*\}|([0-9]+|[a-z]+))\s*\}"
    r"|\s*\(\s*(?:in\s+)?base[\s-]*([0-9]+|[a-z]+)\s*\)|\s*(?:in\s+)?base[\s-]*([0-9]+|[a-z]+))"
)
_TABLE = str.maketrans(_SIGNS | _LETTERS)
_SPELLED = "|".join(sorted(FUNCTIONS - {"min", "sec"}))  # which are units, too
_LAYOUT: list[tuple[re.Pattern[str], str]] = [
    (re.compile(pattern), into)
    for pattern, into in (
        (r"\\(?:left|right|big|Big|bigg|Bigg|bigl|bigr|Bigl|Bigr)(?![a-zA-Z])\s*\.?(?=[^a-zA-Z]|$)", ""),
        (r"\\(?:displaystyle|textstyle|limits|nolimits|!)(?![a-zA-Z])", ""),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (rf"\\(?:mathrm|operatorname\*?|text)\s*\{{\s*({_SPELLED})\s*\}}", r"\\\1 "),
        (r"\\(?:mathrm|operatorname\*?|rm|mathit|mathsf)\s*(?=\{)", r"\\text"),
        (r"\\(sin|cos|tan)\s*\^\s*(?:\{\s*-1\s*\}|-1)", r"\\arc\1 "),
        (r"\\exp(?=\s*\()", "exp"),
        (r"(?<=\d)(?:\{,\}|,\\!|\\,|,\\ )\s*(?=\d{3}(?!\d))", ""),
        (r"(?<!\\)\\(?:[,;:> ]|q?quad(?![a-zA-Z]))|~|\\phantom\{[^{}]*\}", " "),
        (r"\\lbrace(?![a-zA-Z])", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])", r"\\}"),
        (r"\\(?:lbrack|mleft\[)(?![a-zA-Z])", "["),
        (r"\\rbrack(?![a-zA-Z])", "]"),
        (r"\\infin(?![a-zA-Z])", r"\\infty "),
        (r"\\dots[cbm]?(?![a-zA-Z])|\\cdots(?![a-zA-Z])|\.\.\.", r"\\ldots "),
        (r"\\(?:lor|vee)(?![a-zA-Z])", " or "),
        (r"\\(?:land|wedge)(?![a-zA-Z])", " and "),
        (r"\{\\(?:rm|bf|it)\s+([^{}]*)\}", r"\\text{\1}"),
    )
]
_WRAPPERS = re.compile(
    r"\*\*(?!\*)(.+)\*\*|__(.+)__|```(?:\w*\n)?(.+)```|`([^`]+)`|\$\$(.+)\$\$|\$([^$]+)\$|\\\((.+)\\\)|\\\[(.+)\\\]"
    r"|<(?:b|strong|code)>(.+)</(?:b|strong|code)>|\\(?:mathbf|boldsymbol|bm|textbf|boxed|fbox|mathrm|bold)\s*\{(.+)\}"
    r"|\\displaystyle(?![a-zA-Z])(.+)|(.*[^.])\.|\*([^*]+)\*|\"([^\"]+)\"|'([^']+)'|\u201c([^\u201d]+)\u201d",
    re.DOTALL,
)
_RECURRING = re.compile(
    r"(?<![\d.])(\d*)\.(\d*)(?:\\(?:overline|bar|dot)\s*(?:\{\s*(\d+)\s*\}|(\d))|\((\d+)\)(?=$))", re.ASCII
)
_MAX_DEPTH = 25  # of brackets in Python's text
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_CONSTANTS = {"pi": "\\pi ", "oo": "\\infty ", "inf": "\\infty ", "infinity": "\\infty ", "zoo": "\\infty "}
_FUNCTION_NAMES = {
    **{name: f"\\{name} " for name in FUNCTIONS - {"exp", "log", "lg", "det", "min", "max", "gcd", "lcm"}},
    **{short: f"\\arc{short[1:]} " for short in ("asin", "acos", "atan")},
}
_NAMES = re.compile(r"(?<![\\a-zA-Z_])(?:[a-zA-Z]+\.)*([a-zA-Z]+\d*)(\s*\()?")
_MODULES = re.compile(r"(?<![\\a-zA-Z_])(?:sympy|sp|math|np|numpy|S)\.(?=[a-zA-Z])")


def to_tex(text: str, gold: str = "") -> str:
    """Return a text in TeX without layout; `gold` is the answer that it is compared with."""
    text = _spoken(unwrap(_unicode(text)), gold)
    if inner := re.fullmatch(r"\\?\{\s*(?:\\?[a-z]+)\s*(?:\||\\mid|:)(?![a-zA-Z])(.+?)\\?\}", text, re.DOTALL):
        text = inner[1].strip()  # {x | x > 2}
    for pattern, into in _LAYOUT:
        text = pattern.sub(into, text)
    text = _RECURRING.sub(_recurring, text)
    text = _thousands(text.replace("$", " ") if not re.search(r"\\\$", text) else text)
    if _depth(text) > _MAX_DEPTH:
        return text
    pieces = re.split(r"(\\(?:text|mbox|hbox|textrm|begin|end|mathbb|mathcal)\s*\{[^{}]*\})", text)
    plain = "".join(piece if at % 2 else _python(piece, gold) for at, piece in enumerate(pieces))
    plain = unwrap(plain)
    if plain.startswith("{") and _close(plain, 0) == len(plain) - 1:  # a set of Python's, or a group of TeX's
        plain = f"\\{{{plain[1:-1]}\\}}" if not plain[1:-1].strip() or "," in plain else plain[1:-1].strip()
    return plain


def _spoken(text: str, gold: str) -> str:
    """Write in TeX the words and signs of a person: `(0, 1) U (2, 3)`, `664 base 7`, `1_000`."""
    for pattern, into in _SPOKEN:
        text = pattern.sub(into, text)
    base = _BASE.fullmatch(text)
    word = next(filter(None, base.groups()[1:])) if base else ""
    digits = word if word.isdigit() else _BASES.get(word, "")
    if base and len(digits) < 3 and 1 < int(digits or 0) < 37:
        return f"{base[1]}_{{{digits}}}"
    return text if "_" in gold else re.sub(r"(?<=\d)_(?=\d{3}(?!\d))", "", text)


def unwrap(text: str) -> str:
    r"""Take off the enclosure of a whole text: dollar signs, Markdown, \boxed, bold type, a full stop."""
    text = text.strip()
    while match := _WRAPPERS.fullmatch(text):
        inner = next(group for group in match.groups() if group is not None)
        if text[-1] == "}" and not _balanced(inner):
            break  # \textbf{a} and \textbf{b}
        if text.startswith(("**", "__", "\\(", "\\[")) and text[:2] in inner:
            break
        text = inner.strip()
    return text


def _depth(text: str) -> int:
    """Return how many brackets are open at once, at most."""
    depth = deepest = 0
    for sign in text:
        depth = max(0, depth + (sign in "([{") - (sign in ")]}"))
        deepest = max(deepest, depth)
    return deepest


def _balanced(text: str) -> bool:
    depth = 0
    for sign in re.findall(r"\\.|[{}]", text):
        depth += (sign == "{") - (sign == "}")
        if depth < 0:
            return False
    return not depth


def _unicode(text: str) -> str:
    text = re.sub("([\uff01-\uff5e])", lambda match: chr(ord(match[1]) - 0xFEE0), text)
    text = re.sub(r"(?<=\d)[\u2009\u202f\xa0](?=\d{3}(?!\d))", "", text)
    text = re.sub(r"[\u2000-\u200a\u202f\xa0\u3000]", " ", text)
    text = re.sub(r"((?:\d\u0305|\d\u0304)+)", lambda match: f"\\overline{{{re.sub('[^0-9]', '', match[1])}}}", text)
    for table, mark in ((_SUPERSCRIPTS, "^"), (_SUBSCRIPTS, "_")):
        signs = "".join(table)
        text = re.sub(
            f"[{signs}]+",
            lambda match, table=table, mark=mark: f"{mark}{{{''.join(table[sign] for sign in match[0])}}}",  # type: ignore[misc]
            text,
        )
    for sign in set(text):
        if unicodedata.category(sign) == "No" and "⁄" in (parts := unicodedata.normalize("NFKC", sign)):
            top, _, bottom = parts.partition("⁄")
            text = text.replace(sign, f"\\frac{{{top}}}{{{bottom}}}")
    text = re.sub(r"([√∛∜])\s*", _radical, text)
    text = re.sub(r"(\\sqrt(?:\[\d\])?)\s*\(", lambda match: match[1] + "(", text)
    return text.translate(_TABLE)


def _recurring(match: re.Match[str]) -> str:
    r"""Write `0.1\overline{6}` and `0.1(6)` as a fraction: 0.1666... is (16 - 1) / 90."""
    whole, fixed = match[1] or "0", match[2]
    digits = match[3] or match[4] or match[5]
    top = int(whole + fixed + digits) - int(whole + fixed)
    return f"\\frac{{{top}}}{{{10 ** len(fixed) * (10 ** len(digits) - 1)}}}"


def _radical(match: re.Match[str]) -> str:
    degree = {"√": "", "∛": "[3]", "∜": "[4]"}[match[1]]
    rest = match.string[match.end() :]
    number = re.match(r"\d+(?:\.\d+)?|[a-zA-Z]", rest)
    return f"\\sqrt{degree} " if not number or len(number[0]) == 1 else f"\\sqrt{degree}\0"


def _thousands(text: str) -> str:
    """Take the commas out of numbers, outside of brackets: inside, `(1,234)` is a pair."""
    depth, kept = 0, []
    for at, sign in enumerate(text):
        depth += (sign in "([") - (sign in ")]") + (text.startswith("\\{", at)) - (text.startswith("\\}", at))
        if sign == "," and depth <= 0 and re.match(r",\d{3}(?!\d)", text[at : at + 5]):
            if re.search(r"(?<![\d.])\d{1,3}(?:,\d{3})*$", text[max(0, at - 20) : at]):
                continue
        kept.append(sign)
    return "".join(kept)


def _python(text: str, gold: str) -> str:
    """Write the Python of a text in TeX: names, calls and operators."""
    text = _MODULES.sub("", text)
    text = re.sub("(\\\\sqrt(?:\\[\\d\\])?)\0(\\d+(?:\\.\\d+)?)", r"\1{\2}", text)
    text = re.sub(r"\*\*\s*(-?\d+(?:\.\d+)?|[a-zA-Z]\w*(?!\s*\())", r"^{\1}", text).replace("**", "^")
    if not re.search("[jJ]", gold):
        text = re.sub(r"(?<=[\d.])[jJ]\b", "i", text)
    text = text.replace("*", "\\cdot ")
    text = re.sub(r"(\\sqrt(?:\[\d\])?)\s*(?=\()", lambda match: match[1] + "\1", text)
    out: list[str] = []
    at = 0
    while match := _NAMES.search(text, at):
        out.append(text[at : match.start()])
        written, at = _name(match, text, gold)
        out.append(written)
    plain = "".join(out) + text[at:]
    while "\1" in plain:
        start = plain.rindex("\1")
        stop = _close(plain, start + 1)
        if stop < 0:
            return plain.replace("\1", "")
        plain = f"{plain[:start]}{{{plain[start + 2 : stop]}}}{plain[stop + 1 :]}"
    plain = _exponents(plain)
    plain = re.sub(r"(?<![\\\w^_}\])])\{([^{}]*)\}(?=\s*\\cup)|(?<=\\cup)\s*\{([^{}]*)\}", r"\\{\1\2\\}", plain)
    return re.sub(r"(?<=\))\s*&\s*(?=\()", " and ", re.sub(r"(?<=\))\s*\|\s*(?=\()", " or ", plain))


def _exponents(text: str) -> str:
    """Write `^(a)` as `^{a}`: a bracket after a power is the whole exponent."""
    while match := re.search(r"\^\s*\(", text):
        start = match.end() - 1
        stop = _close(text, start)
        if stop < 0:
            break
        text = f"{text[: match.start()]}^{{{text[start + 1 : stop]}}}{text[stop + 1 :]}"
    return text


def _close(text: str, start: int) -> int:
    """Return where the bracket that opens at `start` closes, or -1."""
    open_brackets: list[str] = []
    for at in range(start, len(text)):
        if text[at] in _CLOSERS:
            open_brackets.append(_CLOSERS[text[at]])
        elif text[at] in ")]}" and (not open_brackets or open_brackets.pop() != text[at]):
            return -1
        if not open_brackets:
            return at
    return -1


def _name(match: re.Match[str], text: str, gold: str) -> tuple[str, int]:
    """Return the TeX of a name of Python, and the place where the text continues."""
    name, called = match[1], match[2] is not None
    stop = match.end(1)
    if called and (call := _CALLS.get(name)):
        opened = match.end() - 1
        closed = _close(text, opened)
        if closed >= 0:
            inner = text[opened + 1 : closed]
            written = call([_python(part, gold) for part in _arguments(inner)] if name not in _RAW else [inner], gold)
            if written is not None:
                return written, closed + 1
    if name in _CONSTANTS:
        return _CONSTANTS[name], stop
    if name in _FUNCTION_NAMES:
        return _FUNCTION_NAMES[name], stop
    if name == "log":
        return ("\\log " if "\\log" in gold else "\\ln "), stop
    if name in ("I", "E") and not called:
        letters = re.sub(r"\\(?:text|mbox)\{[^{}]*\}", " \\\\text ", gold)
        bare = set(re.findall(r"(?<![\\a-zA-Z])[a-zA-Z]", letters))
        if name.lower() in bare and name not in bare:
            return name.lower(), stop
    if name in GREEK:
        return f"\\{name} ", stop
    if name in ("EmptySet", "Reals"):
        return ("\\emptyset " if name == "EmptySet" else "\\mathbb{R}"), stop
    if name[:2] == "pi" and len(name) <= 3 and not called and name[2:].isalpha():
        return f"\\pi {name[2:]}", stop
    return text[match.start() : stop], stop


def _arguments(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for at, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and not depth:
            parts.append(text[start:at])
            start = at + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def _matrix(parts: list[str], gold: str) -> str | None:
    rows = re.fullmatch(r"\s*\[(.*)\]\s*", parts[0], re.DOTALL)
    if not rows:
        return None
    cells = [
        [_python(cell, gold) for cell in _arguments(row.strip()[1:-1] if row.strip().startswith("[") else row)]
        for row in _arguments(rows[1])
    ]
    lines = "\\\\".join(" & ".join(row) for row in cells)
    return f"\\begin{{pmatrix}}{lines}\\end{{pmatrix}}"


def _interval(opener: str, closer: str) -> Callable[[list[str], str], str | None]:
    def write(parts: list[str], gold: str) -> str | None:
        if len(parts) == 4 and opener + closer == "[]":  # Interval(0, 1, True, False)
            flags = {"True": 1, "False": 0, "true": 1, "false": 0}
            if parts[2] not in flags or parts[3] not in flags:
                return None
            left, right = "[("[flags[parts[2]]], "])"[flags[parts[3]]]
        else:
            left, right = opener, closer
        if len(parts) < 2:
            return None
        left = "(" if "\\infty" in parts[0] else left  # sympy writes Interval(0, oo), which is open there
        right = ")" if "\\infty" in parts[1] else right
        return f"{left}{parts[0]}, {parts[1]}{right}"

    return write


def _form(pattern: str, count: int) -> Callable[[list[str], str], str | None]:
    return lambda parts, gold: pattern.format(*parts) if len(parts) == count else None


_CALLS: dict[str, Callable[[list[str], str], str | None]] = {
    "sqrt": _form("\\sqrt{{{}}}", 1),
    "cbrt": _form("\\sqrt[3]{{{}}}", 1),
    "root": _form("\\sqrt[{1}]{{{0}}}", 2),
    "exp": _form("e^{{{}}}", 1),
    "Rational": _form("\\frac{{{}}}{{{}}}", 2),
    "Fraction": _form("\\frac{{{}}}{{{}}}", 2),
    "Integer": _form("{}", 1),
    "Float": _form("{}", 1),
    "Abs": _form("|{}|", 1),
    "abs": _form("|{}|", 1),
    "factorial": _form("({})!", 1),
    "binomial": _form("\\binom{{{}}}{{{}}}", 2),
    "floor": _form("\\lfloor {} \\rfloor", 1),
    "ceiling": _form("\\lceil {} \\rceil", 1),
    "log": lambda parts, gold: (
        None
        if len(parts) != 2
        else f"\\ln ({parts[0]})"
        if parts[1].strip() in ("e", "E")
        else f"\\log_{{{parts[1]}}}({parts[0]})"
    ),
    "log2": _form("\\log_{{2}}({})", 1),
    "log10": _form("\\log_{{10}}({})", 1),
    "Eq": _form("{} = {}", 2),
    "Ne": _form("{} \\ne {}", 2),
    "conjugate": _form("\\overline{{{}}}", 1),
    "Matrix": _matrix,
    "ImmutableDenseMatrix": _matrix,
    "array": _matrix,
    "Interval": _interval("[", "]"),
    "open": _interval("(", ")"),
    "Lopen": _interval("(", "]"),
    "Ropen": _interval("[", ")"),
    "Union": lambda parts, gold: " \\cup ".join(parts),
    "FiniteSet": lambda parts, gold: f"\\{{{', '.join(parts)}\\}}",
    "Tuple": lambda parts, gold: f"({', '.join(parts)})",
    "Point2D": lambda parts, gold: f"({', '.join(parts)})",
    "Point": lambda parts, gold: f"({', '.join(parts)})",
    "set": lambda parts, gold: _set_of(parts, gold) if parts else "\\emptyset ",
    "frozenset": lambda parts, gold: _set_of(parts, gold) if parts else "\\emptyset ",
}
_RAW = ("Matrix", "ImmutableDenseMatrix", "array", "set", "frozenset")


def _set_of(parts: list[str], gold: str) -> str | None:
    """Write `set([1, 2])` as a set."""
    inner = parts[0].strip()
    if inner[:1] + inner[-1:] not in ("[]", "()", "{}"):
        return None if inner else "\\emptyset "
    return f"\\{{{', '.join(_python(part, gold) for part in _arguments(inner[1:-1]))}\\}}"
