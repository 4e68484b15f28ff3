"""The shop's database and its tools: the lookups, the changes, and the comparison at the end.

The tools do as they are asked, like a shop's: whether the rules allow it is for the policy to know. So a rule that is
broken shows in the state of the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_gym.chat import copied
from agent_gym.tools import FunctionTool, ToolResult

Content = dict[str, Any]
"""users: {id: {name, zip, member}}; orders: {id: {user, status, days, zip, items: {id: {product, variant, price}}}};
products: {name: {variant: {price, stock}}}. `days` is how long ago an order was delivered."""


class Database:
    """The content of one episode, which its methods read and change. Each method is a tool of the policy."""

    def __init__(self) -> None:
        self.content: Content = {"users": {}, "orders": {}, "products": {}}

    def load(self, content: Mapping[str, Any]) -> None:
        """Begin with a copy of some content."""
        self.content = copied(dict(content))

    @property
    def tools(self) -> list[FunctionTool]:
        """Three that read, four that write."""
        reading: list[Any] = [self.find_customer, self.get_order, self.get_product]
        writing: list[Any] = [self.cancel_order, self.return_item, self.exchange_item, self.change_zip]
        return [FunctionTool(one) for one in (*reading, *writing)]

    def find_customer(self, name: str, zip: str) -> ToolResult:
        """Find a customer and the numbers of all orders.

        Args:
            name: first and last name.
            zip: the zip code of the customer.
        """
        for number, user in self.content["users"].items():
            if (user["name"].casefold(), user["zip"]) == (" ".join(name.split()).casefold(), zip.strip()):
                orders = [key for key, order in self.content["orders"].items() if order["user"] == number]
                return ToolResult(f"{user['member']} member, orders {', '.join(orders)}")
        return _error("no customer has this name and zip code")

    def get_order(self, order: str) -> ToolResult:
        """Look up an order.

        Args:
            order: its number.
        """
        found = self.content["orders"].get(order.strip())
        if found is None:
            return _error(f"there is no order {order[:20]!r}")
        status = found["status"] + (f" {found['days']} days ago" if found["status"] == "delivered" else "")
        items = "; ".join(
            f"{key} {one['product']}, {one['variant']}, {one['price']} dollars{one.get('state', '')}"
            for key, one in found["items"].items()
        )
        member = self.content["users"][found["user"]]["member"]
        return ToolResult(f"{status}, to {found['zip']}, {member} member: {items}")

    def get_product(self, product: str) -> ToolResult:
        """List the variants of a product.

        Args:
            product: its name.
        """
        found = self.content["products"].get(" ".join(product.split()).casefold())
        if found is None:
            return _error(f"there is no product {product[:40]!r}")
        return ToolResult(
            "; ".join(
                f"{variant}, {one['price']} dollars, {'in stock' if one['stock'] else 'out of stock'}"
                for variant, one in found.items()
            )
        )

    def cancel_order(self, order: str) -> ToolResult:
        """Cancel an order and pay all of it back.

        Args:
            order: its number.
        """
        return self._write(order, None, {"status": "cancelled"})

    def return_item(self, order: str, item: str) -> ToolResult:
        """Take an item back and pay its price back.

        Args:
            order: the number of the order.
            item: the number of the item.
        """
        return self._write(order, item, {"state": ", returned"})

    def exchange_item(self, order: str, item: str, variant: str) -> ToolResult:
        """Exchange an item for another variant of the same product.

        Args:
            order: the number of the order.
            item: the number of the item.
            variant: the new variant.
        """
        return self._write(order, item, {"state": f", exchanged for {variant.strip()}"}, variant)

    def change_zip(self, order: str, zip: str) -> ToolResult:
        """Send an order to another zip code.

        Args:
            order: its number.
            zip: the new zip code.
        """
        return self._write(order, None, {"zip": zip.strip()[:20]})

    def _write(self, order: str, item: str | None, change: Mapping[str, str], variant: str | None = None) -> ToolResult:
        target = self.content["orders"].get(order.strip())
        if target is None:
            return _error(f"there is no order {order[:20]!r}")
        if item is not None and (target := target["items"].get(item.strip())) is None:
            return _error(f"order {order.strip()} has no item {item[:20]!r}")
        if variant is not None and variant.strip() not in self.content["products"].get(target["product"], {}):
            return _error(f"{target['product']} has no variant {variant[:20]!r}")
        # The events of an item add up: an exchange that is returned afterwards is still one.
        target.update({**change, "state": target.get("state", "") + change["state"]} if item is not None else change)
        return ToolResult("done")


def _error(text: str) -> ToolResult:
    return ToolResult(f"Error: {text}", error=True)


def after(content: Mapping[str, Any], writes: list[tuple[str, dict[str, str]]]) -> Content:
    """Return the content of a database after some calls of its tools."""
    database = Database()
    database.load(content)
    for name, arguments in writes:
        assert not getattr(database, name)(**arguments).error, (name, arguments)
    return database.content
