"""One visit to the shop: which page is shown, as text, what can be clicked there, and what a click does.

The rules are those of WebShop's text environment (princeton-nlp/WebShop, `WebAgentTextEnv`), read off its behaviour,
including what one would not expect:

- `search[...]` works on every page. What is neither a search nor a click on something that is there does nothing.
- "Next >" never ends: behind the last page of results are empty ones.
- Options stay chosen on the pages below a product, and are lost with the next page of results.
- "Back to Search" forgets everything but the instruction.
- Which page one is on is read off its address, in which the keywords of the search stand: who searches for
  "search_results" is sent to a page of results by "< Prev" on a product.

Upstream renders pages as HTML and takes them apart again. The text depends on the pieces alone, so that here a page is
a list of pieces from the start. `text` joins them by " [SEP] "; `text_rich` gives each its own line and marks what can
be clicked, and what was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from agent_gym.envs.webshop.products import Product
from agent_gym.envs.webshop.scoring import Nouns, reward
from agent_gym.envs.webshop.store import Shop

PER_PAGE = 10
BUY, BACK, NEXT, PREVIOUS, SEARCH = "buy now", "back to search", "next >", "< prev", "search"
DETAILS = ("description", "features", "reviews")


class Clickable(NamedTuple):
    """Something to click: a "button", a "link" to the product `target`, or an "option" of the kind `target`."""

    kind: str
    target: str


_BUTTONS = {name: Clickable("button", name) for name in (BUY, BACK, NEXT, PREVIOUS, SEARCH, *DETAILS)}


class Session:
    """One visit.

    Attributes:
        page: "index", "search", "item", one of `DETAILS`, or "done".
        number: page of the results, from 1.
        product: the product that is shown, if any.
        chosen: name of an option to the value that was clicked.
        visited: ids of the products that were looked at since the last "Back to Search".
        address: where the browser is.
        score: the reward, once something was bought.
        parts: of the reward (scoring.py).
    """

    def __init__(self, shop: Shop, goal: Mapping[str, Any], nouns: Nouns, per_page: int = PER_PAGE) -> None:
        self.shop, self.goal, self._nouns, self.per_page = shop, goal, nouns, per_page
        self.product: Product | None
        self.chosen: dict[str, str]
        self.visited: set[str]
        self._keywords: list[str]
        self.score: float | None = None
        self.parts: dict[str, Any] = {}
        self._clickables: Mapping[str, Clickable] | None  # of the page that is shown, once they were asked for
        self._enter()

    @property
    def results(self) -> tuple[str, ...]:
        """Ids of all products that the last search found."""
        return self.shop.search(self.keywords)

    @property
    def keywords(self) -> str:
        """What was searched for last."""
        return " ".join(self._keywords)

    @property
    def listed(self) -> list[Product]:
        """The products on the page of results that is shown."""
        found = self.results[(self.number - 1) * self.per_page : self.number * self.per_page]
        return [self.shop.product(asin) for asin in found]

    def clickables(self) -> Mapping[str, Clickable]:
        """Return what can be clicked, by its lower-case text, in upstream's order: buttons, products, options."""
        if self._clickables is None:
            self._clickables = self._find_clickables()
        return self._clickables

    def _find_clickables(self) -> dict[str, Clickable]:
        if self.page == "index":
            return {SEARCH: _BUTTONS[SEARCH]}
        if self.page == "done":
            return {}
        names = [BACK]
        if self.page == "search":
            names += [PREVIOUS, NEXT] if self.number > 1 else [NEXT]
            links = {product.asin.lower(): Clickable("link", product.asin) for product in self.listed}
            return {name: _BUTTONS[name] for name in names} | links
        names += [PREVIOUS, *DETAILS, BUY] if self.page == "item" else [PREVIOUS]
        found = {name: _BUTTONS[name] for name in names}
        if self.page == "item" and self.product is not None:
            for name, values in self.product.options.items():
                found |= dict.fromkeys(values, Clickable("option", name))
        return found

    def act(self, name: str, argument: str) -> bool:
        """Search or click; return whether there was something to do."""
        if name == "search" and argument:
            self._keywords = argument.split(" ")
            self._show_results(1)
            return True
        target = self.clickables().get(argument) if name == "click" and argument != SEARCH else None
        if target is None:
            return False
        self._click(argument, target)
        return True

    def _click(self, name: str, target: Clickable) -> None:
        place = self._place()
        if name == BUY:
            self._buy()
        elif name == BACK:
            self._enter()
        elif name == NEXT and place == "search_results":
            self._show_results(self.number + 1)
        elif name == PREVIOUS and place == "search_results":
            self._show_results(self.number - 1)
        elif name == PREVIOUS and place == "item_page":
            self._show_results(self.number)
        elif name in DETAILS:
            self._show(name, "item_sub_page")
        else:
            if target.kind == "link":
                self.product = self.shop.product(target.target)
                self.visited.add(self.product.asin)
            elif target.kind == "option":
                self.chosen[target.target] = name
            self._show("item", "item_page")

    def _enter(self) -> None:
        self.page, self.number, self.product, self.address = "index", 0, None, ""
        self.chosen, self.visited, self._keywords = {}, set(), []
        self._clickables = None

    def _show_results(self, number: int) -> None:
        self.page, self.number, self.product, self.chosen = "search", number, None, {}
        self.address = f"search_results/{'+'.join(self._keywords)}/{number}"
        self._clickables = None

    def _show(self, page: str, place: str) -> None:
        self.page, self._clickables = page, None
        asin = self.product.asin if self.product else ""
        self.address = f"{place}/{asin}/{'+'.join(self._keywords)}/{self.number}/{json.dumps(self.chosen)}"

    def _place(self) -> str:
        """Return the kind of page that the address seems to be of; an address without keywords is always right."""
        places = ("search_results", "item_page", "item_sub_page")
        return next((place for place in places if place in self.address), "")

    def _buy(self) -> None:
        if self.product is not None:
            self.score, self.parts = reward(self.product, self.goal, self.chosen, self._nouns)
            self.page, self._clickables = "done", None


MODES = ("text", "text_rich")
_RATING = "N.A."  # the official files come without reviews
_HTML_SPACE = " \n\t\f\r"


class Piece(NamedTuple):
    """A piece of a page: its kind ("text", "button", "link", "option") and what it says."""

    kind: str
    text: str


def pieces(session: Session) -> list[Piece]:
    """Return what the page that is shown consists of."""
    if session.page == "index":
        found = [*_texts("WebShop", "Instruction: ", session.goal["instruction_text"]), Piece("button", "Search")]
    elif session.page == "done":
        found = _receipt(session)
    else:
        head = [*_texts("Instruction:", session.goal["instruction_text"]), Piece("button", "Back to Search")]
        found = head + _BODIES[session.page](session)
    # A parser of HTML drops empty texts, and makes one line break of white space with line breaks.
    return [piece for piece in found if piece.text and ("\n" not in piece.text or piece.text.strip(_HTML_SPACE))]


def observe(session: Session, mode: str) -> str:
    """Return the observation in one of `MODES`."""
    if mode == "text":
        return " [SEP] ".join([piece.text.strip() for piece in pieces(session)])
    lines, clicked = "", ""
    for piece in pieces(session):
        lines += _line(piece, session) + "\n"
        if _is_chosen(piece, session):
            clicked = f"You have clicked {piece.text}.\n" + clicked
    return clicked + lines


def _line(piece: Piece, session: Session) -> str:
    if piece.kind == "text":
        return piece.text
    if piece.kind == "button":
        return f"[button] {piece.text} [button_]"
    seen = piece.text in session.visited if piece.kind == "link" else _is_chosen(piece, session)
    mark = "clicked button" if seen else "button"
    return f"{'  ' if piece.kind == 'option' else chr(10)}[{mark}] {piece.text} [{mark}_]"


def _is_chosen(piece: Piece, session: Session) -> bool:
    # Upstream looks for the value in quotation marks in the address, where options and keywords stand.
    return piece.kind == "option" and f'"{piece.text}"' in session.address


def _results(session: Session) -> list[Piece]:
    total = len(session.results)
    found = [Piece("text", f"Page {session.number} (Total results: {total})")]
    if session.number > 1:
        found.append(Piece("button", "< Prev"))
    found.append(Piece("button", "Next >"))
    for product in session.listed:
        found += [Piece("link", product.asin), *_texts(product.title, product.price_tag)]
    return found


def _item(session: Session) -> list[Piece]:
    product = _shown(session)
    found = [Piece("button", "< Prev")]
    for name, values in product.options.items():
        found += [Piece("text", name), *(Piece("option", value) for value in values)]
    found += _texts(product.title, f"Price: {product.price_tag}", f"Rating: {_RATING}")
    return found + [Piece("button", name) for name in ("Description", "Features", "Reviews", "Buy Now")]


def _description(session: Session) -> list[Piece]:
    return [Piece("button", "< Prev"), Piece("text", _shown(session).description)]


def _features(session: Session) -> list[Piece]:
    return [Piece("button", "< Prev"), *_texts(*(f" {bullet}" for bullet in _shown(session).bullets))]


def _reviews(session: Session) -> list[Piece]:
    return [Piece("button", "< Prev")]


_BODIES: dict[str, Callable[[Session], list[Piece]]] = {
    "search": _results,
    "item": _item,
    "description": _description,
    "features": _features,
    "reviews": _reviews,
}


def _receipt(session: Session) -> list[Piece]:
    """Return the last page. Upstream's template has places for the goal, which its text environment leaves empty."""
    options = json.dumps(session.chosen, sort_keys=True)
    for sign in "<>&'":
        options = options.replace(sign, f"\\u{ord(sign):04x}")
    return _texts(
        *(
            "Thank you for shopping with us!",
            "Your code: ",
            "None",
            " (Paste it in your MTurk interface.)",
            "Purchased",
        ),
        *("asin", _shown(session).asin, "options", options, "attrs", "None", "category", "None", "query", "None"),
        *("product category", "None", "Target", "asin", "options", "attrs", "price upper", "instuction text"),
        *("category", "product category", "query", "Goal ", "None", "Reward", "Your score (min 0.0, max 1.0)"),
        *(str(session.score), "Reward Details ", "None"),
    )


def _shown(session: Session) -> Product:
    if session.product is None:
        raise AssertionError(f"the page {session.page!r} is only reached with a product")
    return session.product


def _texts(*texts: str) -> list[Piece]:
    return [Piece("text", text) for text in texts]
