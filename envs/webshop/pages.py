"""Pages as text, character for character as WebShop's text environment writes them.

Upstream renders HTML and takes it apart again. What comes out depends on the texts alone, so that here a page is a list
of pieces from the start. `text` joins them by " [SEP] "; `text_rich` gives each its own line and marks what can be
clicked, and what was.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

from agent_gym.envs.webshop.product import Product
from agent_gym.envs.webshop.session import Session

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
    """Return the observation.

    Args:
        session: the visit.
        mode: one of `MODES`.
    """
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
