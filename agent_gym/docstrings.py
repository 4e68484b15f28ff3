"""Descriptions of a function and its arguments, from its docstring, whichever of the usual styles it is written in.

Google (`Args:`), NumPy, reST (`:param x:`) and Epydoc (`@param x:`) are read by `docstring_parser`. An argument that it
does not find is looked for line by line: people write lists (`- x (int): ...`) and Markdown, too.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

_FIELD = re.compile(r"^\s*(?:[:@]\w+[^:\n]*:|@\w+\s|\\param)", re.MULTILINE)
_LAST = r"(?:returns?|raises|yields?|examples?|notes?|see also|references)"
_HEADING = r"(?:args|arguments|params|parameters|returns?|raises|yields?|examples?|notes?|attributes|keyword args)"
# A heading on a separate line, plain, with a colon, in bold, or as Markdown; or one that is underlined.
_SECTION = re.compile(
    rf"^[ \t]*(?:[#*]+[ \t]*)?{_HEADING}(?:[ \t]*:[*]*|[*]+:?|(?=[ \t]*\n[ \t]*[-=~]{{3,}}))[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
_AFTER = re.compile(
    rf"^[ \t]*(?:[#*]+[ \t]*)?{_LAST}\b[ \t]*(?::?[*]*[ \t]*$|:[ \t])",
    re.IGNORECASE | re.MULTILINE,
)
_CHOICES = re.compile(r"\s*\(choices:\s*(\[.*?\]|\(.*?\)|\{.*?\}|[^()\[\]]*?)\s*\)", re.IGNORECASE | re.DOTALL)

_ARGUMENT = ("param", "parameter", "arg", "argument", "key", "keyword")


class Described(NamedTuple):
    """The first paragraph of a docstring, and the description of each argument that has one."""

    summary: str
    arguments: dict[str, str]


def read_docstring(text: str, names: Iterable[str]) -> Described:
    """Read a docstring of any style; only arguments of these names are looked for. Texts are one line each."""
    text, names = inspect.cleandoc(text), [*names]
    found: dict[str, str] = {}
    for described in _by_style(text):
        found |= {name: about for name, about in described.items() if name in names and name not in found}
    for name in names:
        if name not in found and (about := _by_line(text, name)):
            found[name] = about
    return Described(_summary(text), found)


def _summary(text: str) -> str:
    """Return the first paragraph, which ends where a section or a field begins."""
    ends = [match.start() for pattern in (_FIELD, _SECTION) if (match := pattern.search(text))]
    head = text[: min(ends, default=len(text))].strip()
    return _one_line(re.split(r"\n\s*\n", head)[0])


def _by_style(text: str) -> list[dict[str, str]]:
    """Return the reading of a docstring in each style; the one that reads the most first."""
    from docstring_parser import DocstringStyle, ParseError, parse

    read: list[dict[str, str]] = []
    for style in (DocstringStyle.GOOGLE, DocstringStyle.NUMPYDOC, DocstringStyle.REST, DocstringStyle.EPYDOC):
        try:
            parameters = parse(text, style).params
        except (ParseError, ValueError, IndexError):  # the text is of another style, or of none
            continue
        read.append(
            {
                name.strip().lstrip("*"): _one_line(one.description)
                for one in parameters
                if one.args[0] in _ARGUMENT and one.description
                for name in one.arg_name.split(",")  # NumPy describes "x, y : int" together
            }
        )
    return sorted(read, key=len, reverse=True)


def _by_line(text: str, name: str) -> str:
    """Return the description of an argument on a separate line, with the lines that are indented further."""
    if behind := _AFTER.search(text):
        text = text[: behind.start()]
    word = rf"[`*]{{0,3}}\*{{0,2}}{re.escape(name)}[`*]{{0,3}}"
    kind = r"(?:[ \t]*[\[(<`][^\n]*?[\])>`])?"
    forms = (
        rf"^(?P<space>[ \t]*)(?:[-*+•][ \t]+)?{word}{kind}[ \t]*(?::[*]*|--?|–|—|=)[ \t]+(?P<about>\S.*)",
        rf"^(?P<space>[ \t]*)[@:\\]param[ \t]+(?:\{{[^}}\n]*\}}[ \t]*)?{word}[ \t]+[-–—:]?[ \t]*(?P<about>\S.*)",
    )
    for form in forms:
        if match := re.search(form, text, re.MULTILINE):
            further = re.match(rf"(?:\n{match['space']}[ \t]+\S.*)*", text[match.end() :])
            return _one_line(match["about"] + (further[0] if further else ""))
    return ""


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def choices(about: str) -> tuple[str, list[Any]]:
    """Split "(choices: [...])", as Hugging Face writes it, off a description: the rest, and the values, if any."""
    match = _CHOICES.search(about)
    if match is None:
        return about, []
    values: Any = None
    for read in (json.loads, ast.literal_eval):
        try:
            values = read(match[1])
            break
        except (ValueError, SyntaxError):
            continue
    if not isinstance(values, list | tuple | set):  # words without quotation marks
        values = [word.strip().strip("'\"`") for word in match[1].strip("[](){}").split(",")]
    values = sorted(values, key=str) if isinstance(values, set) else [*values]
    rest = (about[: match.start()] + about[match.end() :]).strip()
    scalar = values and all(isinstance(one, str | int | float | bool) and one != "" for one in values)
    return (rest, values) if scalar else (about, [])
