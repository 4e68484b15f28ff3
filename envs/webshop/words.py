"""Texts cut into search terms as Lucene's analyser for English does it, with Anserini's defaults.

Words by Unicode's rules (UAX 29), the possessive 's off, lower case, 33 stop words out, Porter's stems. Of UAX 29: runs
of letters and digits, with a dot, colon or apostrophe between two letters and a dot, comma, semicolon or apostrophe
between two digits; runs of Katakana, and of scripts of South-East Asia; ideographs one by one; emoji; marks with the
character that they follow. One difference: a narrow no-break space parts words here and joins them there.

The rules are applied once per piece between spaces, and nine of ten pieces were seen before: it makes an index fast.

The stems are the ones of Porter's algorithm ("An algorithm for suffix stripping", 1980) with his two departures C
program, `bli` to `ble` and `logi` to `log`, which Lucene has and Snowball's "porter" has not.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata

STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with".split()
)
_LONGEST = 255  # characters; Lucene cuts longer words into pieces
_KEPT = 1 << 18  # pieces to remember; of the words of a million products, the most frequent

_BETWEEN_LETTERS = ":\u00b7\u0387\u05f4\u2027\ufe13\ufe55\uff1a.'\u2018\u2019\u2024\ufe52\uff07\uff0e"
_BETWEEN_DIGITS = (
    ",;\u2044\u037e\u0589\u060c\u066c\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b.'\u2018\u2019\u2024\ufe52\uff07\uff0e"
)
_JOINERS = "_\u203f\u2040\u2054\ufe33\ufe34\ufe4d-\ufe4f\uff3f"
_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3040-\u309f"
_KATAKANA = "\u30a0-\u30ff\u31f0-\u31ff"
_SOUTH_EAST_ASIA = "\u0e01-\u0e3a\u0e40-\u0e4e\u0e80-\u0eff\u1000-\u109f\u1780-\u17ff"
_EMOJI = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9-\u21aa\u231a-\u231b\u2328\u2388\u23cf\u23e9-\u23f3"
    "\u23f8-\u23fa\u24c2\u25aa-\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705"
    "\u2708-\u2712\u2714\u2716\u271d\u2721\u2728\u2733-\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767"
    "\u2795-\u2797\u27a1\u27b0\u27bf\u2934-\u2935\u2b05-\u2b07\u2b1b-\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001f0ff\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f171\U0001f17e-\U0001f17f\U0001f18e"
    "\U0001f191-\U0001f19a\U0001f201-\U0001f20f\U0001f21a\U0001f22f\U0001f232-\U0001f23a\U0001f23c-\U0001f23f"
    "\U0001f249-\U0001f3fa\U0001f400-\U0001f53d\U0001f546-\U0001f64f\U0001f680-\U0001f6ff\U0001f774-\U0001f77f"
    "\U0001f7d5-\U0001f7ff\U0001f80c-\U0001faff"
)
_FLAG = "[\U0001f1e6-\U0001f1ff]"
_ASCII_WORD = re.compile(r"(?:[a-z0-9_](?:(?<=[a-z])[.':](?=[a-z])|(?<=[0-9])[.,;'](?=[0-9]))?)+")


def terms(text: str) -> list[str]:
    """Return the search terms of a text, in their order, each as often as it occurs."""
    found: list[str] = []
    for piece in text.lower().split():
        found += piece_terms(piece)
    return found


@functools.lru_cache(maxsize=_KEPT)
def piece_terms(piece: str) -> tuple[str, ...]:
    """Return the search terms of a piece of lower-case text that holds no white space."""
    pattern = _ASCII_WORD if piece.isascii() else _any_word()
    found = []
    for match in pattern.finditer(piece):
        whole = match[0]
        for start in range(0, len(whole), _LONGEST):
            word = whole[start : start + _LONGEST]
            if len(word) > 1 and word[-1] == "s" and word[-2] in "'\u2019\uff07":
                word = word[:-2]
            if word.strip("_") and word not in STOP_WORDS:
                found.append(stem(word))
    return tuple(found)


@functools.cache
def _any_word() -> re.Pattern[str]:
    """Compile the pattern for all of Unicode; few products need it, and it takes half a second."""
    # Accents and invisible marks go with the character before them; only the zero-width space parts words.
    marks = _ranges({"Mn", "Mc", "Me", "Cf"}, but="\u200b")
    after = f"[{marks}\uff9e\uff9f\U0001f3fb-\U0001f3ff]*"
    # Fractions, superscripts and circled numbers are digits to Python's \w and nothing to UAX 29.
    others = f"\uff9e\uff9f{_ranges({'No'})}{marks}{_IDEOGRAPHS}{_KATAKANA}{_SOUTH_EAST_ASIA}"
    letter, digit = rf"[^\W\d_{others}]", r"[\d\u066b]"
    letters = rf"{letter}{after}(?:[{_BETWEEN_LETTERS}]{after}(?={letter}))?"
    digits = rf"{digit}{after}(?:[{_BETWEEN_DIGITS}]{after}(?={digit}))?"
    run = rf"(?:(?:{letters}|{digits})+|(?:[{_KATAKANA}]{after})+)"
    joiners = rf"(?:[{_JOINERS}]{after})"
    word = rf"{joiners}*{run}(?:{joiners}+{run})*{joiners}*"
    emoji = rf"[{_EMOJI}](?:{after}[{_EMOJI}](?<=\u200d.))*{after}"
    single = rf"(?:[{_SOUTH_EAST_ASIA}]{after})+|[{_IDEOGRAPHS}]{after}|{_FLAG}{{2}}|{emoji}"
    return re.compile(rf"{word}|{single}")


def _ranges(categories: set[str], but: str = "") -> str:
    found: list[list[int]] = []
    for number in range(sys.maxunicode + 1):
        if unicodedata.category(chr(number)) in categories and chr(number) not in but:
            if found and found[-1][1] == number - 1:
                found[-1][1] = number
            else:
                found.append([number, number])
    return "".join(f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in found)


_STEP_2 = {
    **{"ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al"},
    **{"entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al"},
    **{"iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble"},
    **{"logi": "log"},
}
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_STEP_4 = (
    *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion"),
    *("ou", "ism", "ate", "iti", "ous", "ive", "ize"),
)


@functools.lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Cut a lower-case word to its stem; words of one or two letters stay as they are."""
    if len(word) < 3:
        return word
    # Step 1: plurals, past forms, a final y.
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and word[-2] != "s":
        word = word[:-1]
    if word.endswith("eed"):
        word = word[:-1] if _measure(word[:-3]) > 0 else word
    elif word.endswith(("ed", "ing")) and "v" in _shape(start := word[: -2 if word.endswith("ed") else -3]):
        word = start
        if word.endswith(("at", "bl", "iz")) or (_measure(word) == 1 and _ends_short(word)):
            word += "e"
        elif len(word) > 1 and word[-1] == word[-2] and _shape(word).endswith("c") and word[-1] not in "lsz":
            word = word[:-1]
    if word.endswith("y") and "v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    # Steps 2 and 3: the longest suffix that is in the table, if something with a measure is left in front of it.
    for table in (_STEP_2, _STEP_3):
        suffix = max(filter(word.endswith, table), key=len, default="")
        if suffix and _measure(word.removesuffix(suffix)) > 0:
            word = word.removesuffix(suffix) + table[suffix]
    # Step 4.
    suffix = max(filter(word.endswith, _STEP_4), key=len, default="")
    start = word.removesuffix(suffix)
    if suffix and _measure(start) > 1 and (suffix != "ion" or start.endswith(("s", "t"))):
        word = start
    # Step 5: a final e, and a double l.
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _ends_short(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word


def _shape(word: str) -> str:
    """Return a letter for each letter of a word, v for a vowel and c for a consonant; y is a vowel after one."""
    shape = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    """Return Porter's m: how often consonants follow on vowels."""
    return _shape(word).count("vc")


def _ends_short(word: str) -> bool:
    """Porter's *o: consonant, vowel, consonant at the end, the last not w, x or y, as in "hop"."""
    return len(word) > 2 and _shape(word).endswith("cvc") and word[-1] not in "wxy"
