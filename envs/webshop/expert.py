"""The expert of the shop: it knows which product was meant, and acts as if it did not.

It searches for the instruction's words and looks through the results; if the product is not on the first two pages, it
searches by other words of the goal, and only then by the product's title. Then it chooses the options and buys. The
direct style searches for the kind of thing alone, and buys the first product as it is. The hesitant style acts as the
default one, but on a product's page it often reads the description first, and more often if the product is expensive:
its turns may run out before it buys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agent_gym.envs.webshop.products import Product
from agent_gym.envs.webshop.scoring import asked_options, option_match
from agent_gym.envs.webshop.session import BACK, BUY, DETAILS, NEXT, PREVIOUS, ShopVisit
from agent_gym.errors import ConfigError

STYLES = ("default", "direct", "hesitant")
_EXPENSIVE = 30.0  # dollars
_DOUBT = {False: 0.45, True: 0.8}  # expensive or not, to how likely the hesitant style reads before it acts
_PATIENCE = 2  # pages of results that it looks through before it searches otherwise


def next_action(session: ShopVisit, style: str, rng: np.random.Generator) -> tuple[str, str]:
    """Return the next action in one of `STYLES`, "search" or "click", and its argument.

    `ConfigError` without such a product.

    Only the hesitant style draws from the generator.
    """
    if style == "direct":
        if session.page == "item":
            return "click", BUY
        if session.page == "search" and session.listed:
            return "click", session.listed[0].asin.lower()
        # The name of the kind may find nothing.
        return "search", session.goal["query"] if session.page == "index" else _instruction(session)
    wanted = session.shop.catalogue.find(session.goal.get("asin", ""))
    if wanted is None:
        raise ConfigError(f"the goal's asin is {session.goal.get('asin')!r}, which the shop does not have: no expert")
    if session.page in ("item", *DETAILS):
        if session.page != "item" or session.product != wanted:
            return "click", PREVIOUS
        if style == "hesitant" and rng.random() < _DOUBT[wanted.price > _EXPENSIVE]:
            return "click", DETAILS[0]
        missing = {name: one for name, one in _choices(wanted, session.goal).items() if session.chosen.get(name) != one}
        return "click", next(iter(missing.values()), BUY)
    query, page = _plan(session, wanted)
    if session.page != "search" or session.keywords != query:
        return "search", query
    if session.number == page:
        return "click", wanted.asin.lower()
    return "click", NEXT if session.number < page else PREVIOUS if session.number > page else BACK


def _plan(session: ShopVisit, wanted: Product) -> tuple[str, int]:
    """Return the query, and the page of the results that lists the product."""
    options = [str(one[1] if isinstance(one, tuple) else one) for one in asked_options(session.goal["goal_options"])]
    described = " ".join([session.goal["query"], *session.goal["attributes"], *options])
    best, page = wanted.title.lower(), 1
    for query in (_instruction(session), described.lower(), wanted.title.lower()):
        found = session.shop.search(query)
        if wanted.asin in found:
            best, page = query, found.index(wanted.asin) // session.per_page + 1
            if page <= _PATIENCE:
                break
    return best, page


def _instruction(session: ShopVisit) -> str:
    return session.goal["instruction_text"].partition(", and price lower than")[0].lower()


def _choices(product: Product, goal: Mapping[str, Any]) -> dict[str, str]:
    """Return the values to click, one per kind of option at most, such that all that was asked for is chosen."""
    found: dict[str, str] = {}
    for asked in asked_options(goal["goal_options"]):
        names = [asked[0]] if isinstance(asked, tuple) else list(product.options)
        text = asked[1] if isinstance(asked, tuple) else asked
        fitting = [
            (value == text, name, value)
            for name in names
            if name not in found
            for value in product.options.get(name, ())
            if value == text or option_match(asked, value)
        ]
        if fitting:
            _, name, value = max(fitting, key=lambda one: one[0])
            found[name] = value
    return found
