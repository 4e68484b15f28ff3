"""Read the request by its words, look everything up, keep the four rules, and answer with the number asked for."""

import json
import re
from collections.abc import Generator

ENV_ID = "AgentR1/Support-v0"
REACHES = 1.0


def call(tool: str, **arguments: str) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


def attack(opening: str) -> Generator[str, str, None]:
    request, orders = opening, dict[str, str]()
    while True:
        number, item = re.search(r"W\d+", request), re.search(r"the (\w+) (\w+)", request)
        if number:
            orders = {number[0]: (yield call("get_order", order=number[0]))}
        elif not orders:
            said = yield "What is your name and zip code?"
            name, zip_code = re.findall(r"is (.+?)\.", said)
            numbers = re.findall(r"W\d+", (yield call("find_customer", name=name, zip=zip_code)))
            found = yield "\n".join(call("get_order", order=one) for one in numbers)
            orders = dict(zip(numbers, found.split("\n"), strict=True))
        wanted = f"{item[2]}, {item[1]}, " if item else ""
        order = next((one for one in orders if wanted in orders[one]), next(iter(orders)))
        row, days = orders[order], re.match(r"delivered (\d+)", orders[order])
        prices = [int(one) for one in re.findall(r"(\d+) dollars", row)]
        key, price = re.findall(rf"(i\d) {wanted}(\d+)", row)[0] if item else ("", str(sum(prices)))
        sent, new_zip = (
            re.search("return|take back|send it|exchange|another", request),
            re.search(r"code (\d+)", request),
        )
        possible = row.startswith("pending")
        told = f"You get {price if sent else sum(prices)} dollars back."
        write = call("change_zip", order=order, zip=new_zip[1]) if new_zip else call("cancel_order", order=order)
        if sent:
            possible = days is not None and int(days[1]) <= (60 if "gold" in row else 30)
            write = call("return_item", order=order, item=key)
        new = re.search(r": (\w+)\.|for the (\w+) one", request)
        why = f"It came {days[1]} days ago." if sent and days else f"It is {row.split()[0].strip(',')}."
        if new and item and possible:
            variant = new[1] or new[2]
            shop = yield call("get_product", product=item[2])
            other, stock = re.findall(rf"{variant}, (\d+) dollars, (in|out)", shop)[0]
            possible, told = stock == "in", f"The difference is {abs(int(other) - int(price))} dollars."
            write = call("exchange_item", order=order, item=key, variant=variant)
        if possible:
            yield write
        request = yield f"Done. {'' if new_zip else told}" if possible else f"Not possible. {why}"
