"""The expert: a rule for each page that it solves. It reads the page as a policy does and keeps no state.

A rule returns the calls of one turn. It is a row of `EXPERTS` or a method of `PageRules` with the name of its page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

Call = tuple[str, dict[str, Any]]
_FIELDS = ("textbox", "textarea", "spinbutton", "date", "time", "color")
_SHAPES = {"circle": "circle", "rect": "rectangle", "polygon": "triangle"}
_WAYS = {"up": (0, -25), "down": (0, 25), "left": (-25, 0), "right": (25, 0)}


class Element(SimpleNamespace):
    """A numbered line of a page, with the fields that `describe` of page.js gives it."""


def _shape(one: Element) -> set[str]:
    """Return the words that an instruction may use for a shape."""
    kind = _SHAPES.get(one.role, "letter" if one.name.isalpha() else "digit")
    size = "large" if one.box[3] > (16 if one.role == "text" else 14) else "small"
    return {"shape" if one.role in _SHAPES else kind, kind, size, "item", one.color, one.name}


def _click(*elements: Element) -> list[Call]:
    return [("click", {"element": one.number}) for one in elements]


def _type(element: Element, text: str) -> list[Call]:
    return [("type", {"element": element.number, "text": text})]


def _press(key: str, times: int) -> list[Call]:
    return [("press", {"key": key})] * times


class PageRules:
    """A page as it is shown (`look` of page.js), in turn `turn`, and the rules."""

    def __init__(self, look: Mapping[str, Any], turn: int) -> None:
        self.asked, self.turn, lines = str(look["asked"]), turn, look["lines"]
        self.lines: list[str | Element] = [one if isinstance(one, str) else Element(**one) for one in lines]
        self.elements = [one for one in self.lines if isinstance(one, Element)]
        self.texts = [one for one in self.lines if isinstance(one, str)]
        self.quoted = re.findall(r'"(.*?)"', self.asked)
        self.fields = self.of(*_FIELDS)
        self.shapes = self.of(*_SHAPES, "text")

    def of(self, *roles: str) -> list[Element]:
        """Return the elements of some roles."""
        return [one for one in self.elements if one.role in roles]

    def named(self, name: str) -> list[Element]:
        """Return the elements of a name."""
        return [one for one in self.elements if one.name == name]

    def has(self, word: str) -> list[Element]:
        """Return the elements with a state or a class."""
        return [one for one in self.elements if word in one.words]

    def asks(self, pattern: str) -> str:
        """Return the first group of a pattern in the instruction."""
        return re.findall(pattern, self.asked)[0]

    def index(self, noun: str) -> int:
        """Return the index that the ordinal number before a noun means: 1 for "2nd textbox"."""
        return int(self.asks(rf"(\d+)\w\w {noun}")) - 1

    def button(self, *names: str) -> Element:
        """Return the button with one of these names."""
        return next(one for one in self.of("button") if one.name in names)

    def submit(self) -> list[Call]:
        """Press the button Submit."""
        return _click(self.button("Submit"))

    def fill(self, *texts: str) -> list[Call]:
        """Type into the fields in their order, and press the last element."""
        calls = [call for field, text in zip(self.fields, texts, strict=False) for call in _type(field, text)]
        return calls + _click(self.elements[-1])

    def slide(self) -> list[Call]:
        """Move the first slider whose value, which is shown after it, differs: by keys, some steps in a turn."""
        wanted = map(int, re.findall(r"-?\d+", self.asks(r"(?:Select|combination) (.*?)(?: with|,? and submit)")))
        shown = [int(one) for one in self.texts if re.fullmatch(r"-?\d+", one)]
        for handle, now, goal in zip(self.has("ui-slider-handle"), shown, wanted, strict=False):
            if now != goal:
                return _click(handle) + _press("ArrowRight" if goal > now else "ArrowLeft", min(abs(goal - now), 7))
        return []

    def check_boxes(self) -> list[Call]:
        names = self.asks(r"Select (.*) and click Submit").split(", ")
        return _click(*(one for one in self.has("unchecked") if one.name in names))[:7] + self.submit()

    def choose(self) -> list[Call]:
        asked, box = self.asks(r"Select (.*) from the (?:scroll )?list and click"), self.of("combobox")[0]
        names = [one for one in box.options if one in (asked, *asked.split(", "))]
        return [("select", {"element": box.number, "option": one}) for one in names] + self.submit()

    def open_until_found(self) -> list[Call]:
        found = [one for one in self.of("element") if one.name == self.quoted[-1]]
        tabs = self.of("tab") or [one for one in self.of("link") if re.fullmatch(r"(Tab #)?\d+", one.name)]
        return _click(found[0] if found else tabs[self.turn % len(tabs)])

    def copy(self) -> list[Call]:
        areas = [str(one.value) for one in self.fields if one.value]
        place = self.index("text area") if "text area below" in self.asked else 0
        return _type(next(one for one in self.fields if not one.value), areas[place]) + self.submit()

    def complete(self) -> list[Call]:
        (start, *end), typed = self.quoted, str(self.fields[0].value)
        fits = [one for one in self.elements if one.name.startswith(start) and one.name.endswith(end[0] if end else "")]
        if len(typed) > len(start) or (self.turn > 1 and not fits):  # nothing is left to choose from
            return self.submit()
        return _click(fits[0]) if fits else _type(self.fields[0], start)

    def drag_shape(self) -> list[Call]:
        one, (dx, dy) = self.elements[0], _WAYS[self.asks(r"Drag the \w+ (\w+)")]
        return [("drag", {"element": one.number, "x": one.box[0] + dx, "y": one.box[1] + dy}), *self.submit()]

    def use_mail(self) -> list[Call]:
        lines = self.lines[self.lines.index(self.named(self.asks(r"email by (\w+)"))[0]) :]
        word = "trash" if "trash" in self.asked else "star"
        return _click(next(one for one in lines if isinstance(one, Element) and word in one.words))

    def button_delay(self) -> list[Call]:
        waits = _press("Escape", int(self.asks(r"wait (\d+) second")) - 1)
        return [*_click(*self.named("ONE")), *waits, *_click(*self.named("TWO"))]

    def enter_time(self) -> list[Call]:
        hour, minute, half = re.findall(r"(\d+):(\d+) ([AP])M", self.asked)[0]
        return self.fill(f"{int(hour) % 12 + 12 * (half == 'P'):02}:{minute}")

    def simple_arithmetic(self) -> list[Call]:
        left, sign, right = re.findall(r"(-?\d+) ([-+x]) (-?\d+)", " ".join(self.texts))[0]
        a, b = int(left), int(right)
        return self.fill(str({"+": a + b, "-": a - b, "x": a * b}[sign]))

    def guess_number(self) -> list[Call]:
        step, value = -1 if "lower" in " ".join(self.texts) else 1, self.fields[0].value
        return _type(self.fields[0], str(int(value) + step if value else 5)) + self.submit()

    def odd_or_even(self) -> list[Call]:
        marks = self.of("button")
        return _click(*(marks[2 * n + 1 - int(one) % 2] for n, one in enumerate(self.texts))) + self.submit()

    def count_shape(self) -> list[Call]:
        words = {*self.asks(r"How many (.*)s are there").split()}
        return _click(self.button(str(sum(words <= _shape(one) for one in self.shapes))))

    def identify_shape(self) -> list[Call]:
        return _click(self.button(*(word.replace("digit", "number").capitalize() for word in _shape(self.shapes[0]))))

    def grid_coordinate(self) -> list[Call]:
        x, y = map(int, re.findall(r"-?\d+", self.asked))
        return _click(next(one for one in self.of("circle") if one.box[:2] == [79 + 30 * x, 129 - 30 * y]))

    def use_spinner(self) -> list[Call]:
        steps = int(self.asks(r"Select (-?\d+)")) - int(self.of("spinbutton")[0].value or 0)
        button = self.has("ui-spinner-up" if steps > 0 else "ui-spinner-down")
        return _click(*button * min(abs(steps), 8)) or self.submit()


_ROWS: Mapping[str, Callable[[PageRules], list[Call]]] = {
    "ascending-numbers": lambda page: _click(*page.named("1") or page.of("rect")),  # squares cover the others
    "choose-list click-scroll-list": PageRules.choose,
    "click-button click-link unicode-test": lambda page: _click(page.named(page.quoted[-1])[0]),
    "click-button-sequence": lambda page: _click(*page.named("ONE"), *page.named("TWO")),
    "click-checkboxes click-checkboxes-transfer click-option": PageRules.check_boxes,
    "click-collapsible click-collapsible-nodelay": lambda page: _click(*page.has("collapsed")) or page.submit(),
    "click-collapsible-2 click-collapsible-2-nodelay": PageRules.open_until_found,
    "click-color": lambda page: _click(
        next(one for one in page.elements if one.color == page.asks(r"the \W?(\w+)\W? colored box"))
    ),
    "click-dialog": lambda page: _click(page.named("Close")[0]),
    "click-dialog-2": lambda page: _click(page.named(page.quoted[0].replace("x", "Close"))[0]),
    "click-shape": lambda page: _click(
        next(one for one in page.shapes if {*page.asks(r"Click on an? (.*)").split()} <= _shape(one))
    ),
    "click-tab": lambda page: _click(page.named(page.asks(r"Click on (Tab #\d)"))[0]),
    "click-tab-2 click-tab-2-easy click-tab-2-medium click-tab-2-hard": PageRules.open_until_found,
    "click-test focus-text": lambda page: _click(page.elements[0]),
    "click-test-2 click-test-transfer": lambda page: _click(page.named("ONE")[0]),
    "click-widget": lambda page: _click(page.of({"text": "textbox"}.get(page.quoted[0], page.quoted[0]))[0]),
    "copy-paste copy-paste-2": PageRules.copy,
    "drag-circle drag-single-shape": PageRules.drag_shape,
    "email-inbox-delete email-inbox-important": PageRules.use_mail,
    "enter-date": lambda page: page.fill(re.sub(r".*?(\d+)/(\d+)/(\d+).*", r"\3-\1-\2", page.asked)),
    "enter-password login-user": lambda page: page.fill(page.quoted[0], page.quoted[-1]),
    "enter-text enter-text-dynamic": lambda page: page.fill(page.quoted[0]),
    "enter-text-2": lambda page: page.fill(page.quoted[0].upper() if "upper" in page.asked else page.quoted[0].lower()),
    "find-greatest": lambda page: _click(max(page.of("element"), key=lambda one: int(one.name))) + page.submit(),
    "find-word": lambda page: page.fill(" ".join(page.texts).split()[page.index("word")].strip(".,")),
    "focus-text-2": lambda page: _click(page.fields[page.index("input")]),
    "form-sequence": lambda page: page.slide() or _click(page.of("checkbox")[page.index("checkbox")]) + page.submit(),
    "navigate-tree": lambda page: _click((page.named(page.quoted[0]) or page.has("expandable-hitarea"))[0]),
    "read-table": lambda page: page.fill(page.texts[page.texts.index(page.asks(r"value of (.*) into the")) + 1]),
    "read-table-2": lambda page: page.fill(
        *(page.texts[page.texts.index(one[:-1]) + 1] for one in page.texts if one.endswith(":"))
    ),
    "scroll-text": lambda page: _type(page.fields[1], str(page.fields[0].value).split()[-1][:-1]) + page.submit(),
    "simple-arithmetic": PageRules.simple_arithmetic,
    "text-transform": lambda page: page.fill(page.texts[0]),
    "use-autocomplete use-autocomplete-nodelay": PageRules.complete,
    "use-slider use-slider-2": lambda page: page.slide() or page.submit(),
}
_METHODS = "button_delay count_shape enter_time grid_coordinate guess_number identify_shape odd_or_even use_spinner"
EXPERTS: Mapping[str, Callable[[PageRules], list[Call]]] = {
    **{name: rule for names, rule in _ROWS.items() for name in names.split()},
    **{name.replace("_", "-"): getattr(PageRules, name) for name in _METHODS.split()},
}
"""The rules by the names of their pages."""
