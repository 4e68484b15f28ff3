"""Traces of a call that cannot be read: a mark that is whole, that lost or changed a character, or that was cut off.

A call that was meant must never be taken for a final answer, however it is broken. A turn without a call is searched
for the marks of its family, closing ones too, in any case and spacing, for one with a wrong character, and for a
beginning of one at its end.
A mark with one wrong character has a half that is whole, so that the search is one for words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

_SHORTEST = 5  # of a mark that may have a wrong character
_BEGINNING = 4  # characters of a mark at the end of a turn that show it
_MARKUP = re.compile(r"[<\[|/>]")
_KEYS = ("arguments", "parameters")
# {"name": ..., "arguments": {...}} of any family, in which one quote may be missing, or as Python writes it.
_QUOTE = "[\"'\u201c\u201d\u201e]"
_BODY = re.compile(
    rf"(?:{_QUOTE}(?:{'|'.join(_KEYS)}){_QUOTE}?|(?:{'|'.join(_KEYS)}){_QUOTE})\s*:\s*{_QUOTE}?\{{", re.IGNORECASE
)


def marks_of(pieces: Iterable[str]) -> tuple[str, ...]:
    """Return the pieces of a family's calls that look like markup, each once."""
    stripped = (piece.strip() for piece in pieces)
    return tuple(dict.fromkeys(one for one in stripped if len(one) >= _SHORTEST and _MARKUP.search(one)))


def trace(text: str, marks: Sequence[str], opening: Sequence[str]) -> int:
    """Return where a text has a trace of a call; -1 if it has none.

    Args:
        text: a turn without its thoughts.
        marks: what `marks_of` returned.
        opening: those that open calls: a text may end in the middle of one.
    """
    places = [found.start() for mark in marks if (found := _loose(mark).search(text))]
    if places:
        return min(places)
    if body := _BODY.search(text):
        return body.start()
    places = [place for mark in marks for place in _nearly(text, mark)]
    if places:
        return min(places)
    end = text.rstrip()
    for mark in opening:
        for size in range(min(len(mark) - 1, len(end)), _BEGINNING - 1, -1):
            if end.endswith(mark[:size]) and _MARKUP.search(mark[:size]):
                return len(end) - size
    return -1


@lru_cache(maxsize=1024)
def _loose(mark: str) -> re.Pattern[str]:
    """Return the pattern of a mark in any case, with white space anywhere or nowhere."""
    return re.compile(r"\s*".join(map(re.escape, "".join(mark.split()))), re.IGNORECASE)


def _nearly(text: str, mark: str) -> Iterator[int]:
    """Yield where a mark begins in which one character is missing or another one; the first of each kind."""
    half = len(mark) // 2
    head, tail = mark[:half], mark[half:]
    place = text.find(head)
    while place >= 0:
        if _one_wrong(text[place + half : place + len(mark)], tail):
            yield place
            break
        place = text.find(head, place + 1)
    place = text.find(tail)
    while place >= 0:
        before = text[max(place - half, 0) : place]
        if _one_wrong(before[::-1], head[::-1]):
            yield max(place - half, 0)
            break
        place = text.find(tail, place + 1)


def _one_wrong(text: str, word: str) -> bool:
    """Whether a text begins as the word does without one of its characters, or with another one in its place."""
    same = next((i for i, (a, b) in enumerate(zip(text, word, strict=False)) if a != b), min(len(text), len(word)))
    rest = word[same + 1 :]
    return text.startswith(rest, same) or (len(text) > same and text.startswith(rest, same + 1))


def is_cut(rest: str) -> bool:
    """Whether a text ends with closing brackets that it has not opened: the rest of a call."""
    end = "".join(rest.split()).rstrip("`")
    braces = end.endswith(("}", "}]", "})")) and end.count("}") > end.count("{")
    return braces or (end.endswith(")]") and end.count("]") > end.count("["))
