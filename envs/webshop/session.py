"""One visit to the shop: the page as text, its buttons, and the effect of a click.

The rules are the ones of WebShop's text environment (princeton-nlp/WebShop, `WebAgentTextEnv`), read off its behaviour,
including surprising ones:

- `search[...]` works on every page. A turn that is neither a search nor a click on something present does nothing.
- "Next >" never ends: after the last page of results come empty ones.
- Options stay chosen on the pages below a product, and are lost with the next page of results.
- "Back to Search" forgets everything but the instruction.
- Which page one is on is read off its address, which contains the keywords of the search: a search for "search_results"
  makes "< Prev" on a product lead to a page of results.

Upstream renders HTML and takes it apart again; here a page is a list of pieces from the start. `text` joins them by "
[SEP] "; `text_rich` gives each its own line and marks buttons, and clicked ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from agent_gym.envs.webshop.products import Product
from agent_gym.envs.webshop.scoring import Nouns, reward
from agent_gym.envs.webshop.store import Shop

PER_PAGE = 10
BUY, BACK, NEXT, PREVIOUS, SEARCH = "buy now", "back to search", "next >", "< prev", "search"
DETAILS = ("description", "features", "reviews")
MODES = ("text", "text_rich")
_RATING = "N.A."  # the official files come without reviews
_HTML_SPACE = " \n\t\f\r"
_PLACES = ("search_results", "item_page", "item_sub_page")


class PagePiece(NamedTuple):
    """A piece of a page."""

    kind: str  # "text", "button", "link" or "option"
    text: str
    target: str = ""  # of a link the product, of an option its kind


class ShopVisit:
    """One visit."""

    def __init__(self, shop: Shop, goal: Mapping[str, Any], nouns: Nouns, per_page: int = PER_PAGE) -> None:
        self.shop, self.goal, self._nouns, self.per_page = shop, goal, nouns, per_page
        self.score: float | None = None  # the reward, once something was bought
        self.parts: dict[str, Any] = {}  # of it (scoring.py)
        self._enter()

    def _enter(self) -> None:
        self.page = "index"  # or "search", "item", one of `DETAILS`, "done"
        self.number = 0  # of the page of results, from 1
        self.address = self.keywords = ""
        self.product: Product | None = None
        self.chosen: dict[str, str] = {}  # name of an option to the value that was clicked
        self.visited: set[str] = set()  # products that were looked at since the last "Back to Search"

    @property
    def listed(self) -> list[Product]:
        found = self.shop.search(self.keywords)[(self.number - 1) * self.per_page : self.number * self.per_page]
        return [self.shop.product(asin) for asin in found]

    def clickables(self) -> dict[str, PagePiece]:
        """Return the buttons, by their lower-case text, in upstream's order: buttons, products, options."""
        page = self._page()
        found = {one.text.lower(): one for kind in ("button", "link") for one in page if one.kind == kind}
        return found | {one.text: one for one in page if one.kind == "option"}

    def pieces(self) -> list[PagePiece]:
        # A parser of HTML drops empty texts, and makes one line break of white space with line breaks.
        return [one for one in self._page() if one.text and ("\n" not in one.text or one.text.strip(_HTML_SPACE))]

    def act(self, name: str, argument: str) -> bool:
        """Search or click; return whether there was something to do."""
        if name == "search" and argument:
            self.keywords = argument
            self._show_results(1)
            return True
        piece = self.clickables().get(argument)
        if name != "click" or argument == SEARCH or piece is None:
            return False
        # An address without keywords names its place first.
        place = next((place for place in _PLACES if place in self.address), "")
        if argument == BUY and self.product is not None:
            self.score, self.parts = reward(self.product, self.goal, self.chosen, self._nouns)
            self.page = "done"
        elif argument == BACK:
            self._enter()
        elif argument == NEXT and place == "search_results":
            self._show_results(self.number + 1)
        elif argument == PREVIOUS and place == "search_results":
            self._show_results(self.number - 1)
        elif argument == PREVIOUS and place == "item_page":
            self._show_results(self.number)
        elif argument in DETAILS:
            self._show(argument, "item_sub_page")
        else:
            if piece.kind == "link":
                self.product = self.shop.product(piece.target)
                self.visited.add(piece.target)
            elif piece.kind == "option":
                self.chosen[piece.target] = argument
            self._show("item", "item_page")
        return True

    def _show_results(self, number: int) -> None:
        self.page, self.number, self.product, self.chosen = "search", number, None, {}
        self.address = f"search_results/{self.keywords.replace(' ', '+')}/{number}"

    def _show(self, page: str, place: str) -> None:
        self.page, asin = page, self.product.asin if self.product else ""
        self.address = f"{place}/{asin}/{self.keywords.replace(' ', '+')}/{self.number}/{json.dumps(self.chosen)}"

    def _page(self) -> list[PagePiece]:
        instruction, product = self.goal["instruction_text"], self.product
        if self.page == "index":
            return [*_texts("WebShop", "Instruction: ", instruction), *_buttons("Search")]
        found = [*_texts("Instruction:", instruction), *_buttons("Back to Search")]
        if self.page == "search":
            found += _texts(f"Page {self.number} (Total results: {len(self.shop.search(self.keywords))})")
            found += _buttons("< Prev", "Next >") if self.number > 1 else _buttons("Next >")
            for one in self.listed:
                found += [PagePiece("link", one.asin, one.asin), *_texts(one.title, one.price_tag)]
            return found
        assert product is not None, "the other pages are reached with a product only"
        if self.page == "done":
            return _texts(*_receipt(product.asin, self.chosen, self.score))
        found += _buttons("< Prev")
        if self.page == "description":
            return found + _texts(product.description)
        if self.page == "features":
            return found + _texts(*(f" {bullet}" for bullet in product.bullets))
        if self.page == "reviews":
            return found
        for name, values in product.options.items():
            found += [*_texts(name), *(PagePiece("option", value, name) for value in values)]
        found += _texts(product.title, f"Price: {product.price_tag}", f"Rating: {_RATING}")
        return found + _buttons("Description", "Features", "Reviews", "Buy Now")


def _texts(*texts: str) -> list[PagePiece]:
    return [PagePiece("text", text) for text in texts]


def _buttons(*texts: str) -> list[PagePiece]:
    return [PagePiece("button", text) for text in texts]


def _receipt(asin: str, chosen: Mapping[str, str], score: float | None) -> tuple[str, ...]:
    """Return the last page. Upstream's template has places for the goal, which its text environment leaves empty."""
    options = json.dumps(chosen, sort_keys=True)
    for sign in "<>&'":
        options = options.replace(sign, f"\\u{ord(sign):04x}")
    return (
        *("Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)"),
        *("Purchased", "asin", asin, "options", options, "attrs", "None", "category", "None", "query", "None"),
        *("product category", "None", "Target", "asin", "options", "attrs", "price upper", "instuction text"),
        *("category", "product category", "query", "Goal ", "None", "Reward", "Your score (min 0.0, max 1.0)"),
        *(str(score), "Reward Details ", "None"),
    )


def observe(session: ShopVisit, mode: str) -> str:
    """Return the observation in one of `MODES`."""
    if mode == "text":
        return " [SEP] ".join([piece.text.strip() for piece in session.pieces()])
    lines, clicked = "", ""
    for kind, text, _ in session.pieces():
        # Upstream looks for the value in quotation marks in the address, which contains options and keywords.
        chosen = kind == "option" and f'"{text}"' in session.address
        if chosen:
            clicked = f"You have clicked {text}.\n" + clicked
        if kind == "text":
            lines += f"{text}\n"
        elif kind == "button":
            lines += f"[button] {text} [button_]\n"
        else:
            mark = "clicked button" if chosen or (kind == "link" and text in session.visited) else "button"
            lines += f"{'  ' if kind == 'option' else chr(10)}[{mark}] {text} [{mark}_]\n"
    return clicked + lines
