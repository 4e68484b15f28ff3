"""Porter's stemmer ("An algorithm for suffix stripping", 1980) as Lucene has it.

WebShop's ranking depends on it to the letter, and the stemmers of other packages differ: Snowball's "english" is a
later algorithm, and its "porter" leaves out the two departures that Porter's own C program makes and Lucene kept:
`bli` becomes `ble` (not `abli` `able`), and `logi` becomes `log`.
"""

from __future__ import annotations

from functools import lru_cache

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


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Cut a lower-case word to its stem; words of one or two letters stay as they are."""
    if len(word) < 3:
        return word
    word = _plural(word)
    word = _past(word)
    if word.endswith("y") and "v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    word = _exchange(_exchange(word, _STEP_2), _STEP_3)
    word = _drop_suffix(word)
    return _tidy(word)


def _shape(word: str) -> str:
    """Return a letter for each letter of a word, v for a vowel and c for a consonant; y is a vowel behind one."""
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


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and word[-2] != "s" else word


def _past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    suffix = next((suffix for suffix in ("ed", "ing") if word.endswith(suffix)), "")
    start = word.removesuffix(suffix)
    if not suffix or "v" not in _shape(start):
        return word
    if start.endswith(("at", "bl", "iz")):
        return start + "e"
    if len(start) > 1 and start[-1] == start[-2] and _shape(start).endswith("c"):
        return start if start[-1] in "lsz" else start[:-1]
    return start + "e" if _measure(start) == 1 and _ends_short(start) else start


def _exchange(word: str, table: dict[str, str]) -> str:
    """Exchange the longest suffix that is in the table, if something with a measure is left in front of it."""
    for length in range(min(7, len(word)), 2, -1):
        suffix = word[-length:]
        if suffix in table:
            return word[:-length] + table[suffix] if _measure(word[:-length]) > 0 else word
    return word


def _drop_suffix(word: str) -> str:
    suffix = max((suffix for suffix in _STEP_4 if word.endswith(suffix)), key=len, default="")
    start = word.removesuffix(suffix)
    if not suffix or _measure(start) < 2 or (suffix == "ion" and not start.endswith(("s", "t"))):
        return word
    return start


def _tidy(word: str) -> str:
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _ends_short(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word
