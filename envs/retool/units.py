"""Names of units: which words are one, and which are the same.

A unit may be left out of an answer, as the graders of MATH (arXiv:2103.03874) do it; one that is stated must be that
of the gold answer, if that states one.
"""

from __future__ import annotations

import re

_FORMS = {
    "cm": "centimeter centimetre", "mm": "millimeter millimetre", "m": "meter metre", "km": "kilometer kilometre",
    "in": "inch inche", "ft": "foot feet", "yd": "yard", "mi": "mile", "mg": "milligram", "g": "gram gm",
    "kg": "kilogram", "lb": "pound", "oz": "ounce", "t": "ton tonne", "l": "L liter litre", "ml": "mL milliliter",
    "gal": "gallon", "s": "sec second", "min": "minute", "h": "hr hour", "d": "day", "week": "", "month": "",
    "yr": "year", "degree": "deg", "rad": "radian", "%": "percent percentage pct", "dollar": "usd buck", "cent": "",
    "euro": "eur", "mph": "", "kph": "kmph", "unit": "", "square": "sq", "cubic": "cu", "per": "",
    "C": "Celsius", "F": "Fahrenheit", "N": "newton", "J": "joule", "W": "watt", "V": "volt", "A": "ampere",
    "K": "kelvin", "Hz": "hertz",
}  # fmt: skip
_CANONICAL = {form: name for name, forms in _FORMS.items() for form in (name, *forms.split())}


def known(word: str) -> bool:
    """Whether a single word is a unit by itself, and no ordinary word."""
    return _one(word) in _FORMS


def unit_name(text: str) -> str:
    """Return the same name for the same unit: "square inches" and "in^2" are "in^2"; other words are themselves."""
    text = text.replace("²", "^2").replace("³", "^3").replace("/", " per ")
    powers = {"square": "2", "cubic": "3"}
    names: list[str] = []
    power = ""
    for word in re.findall(r"[a-zA-Z%]+(?:\s*\^\s*\{?\s*\d\s*\}?)?", text.replace(".", "")):
        bare, _, exponent = re.sub(r"[\s{}]", "", word).partition("^")
        name = _one(bare)
        if name in powers and not exponent:
            power = powers[name]
            continue
        exponent = exponent or power
        power = ""
        names.append(f"{name}^{exponent}" if exponent else name)
    return " ".join(names + ([f"unit^{power}"] if power else []))


def _one(word: str) -> str:
    for form in (word, word.removesuffix("s"), word.lower(), word.lower().removesuffix("s")):
        if len(form) > 1 or form == word:  # a letter by itself has its case
            if form in _CANONICAL and (len(form) > 2 or form == word or word == form + "s"):
                return _CANONICAL[form]
    return word.lower().removesuffix("s") if len(word) > 3 else word
