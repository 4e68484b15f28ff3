"""Type what is quoted, choose and click what the instruction names, then the last button; else the next element."""

import json
import re
from collections.abc import Generator

ENV_ID = "AgentR1/MiniWoB-v0"
REACHES = 0.54
LINE = re.compile(r'\[(\d+)\] (\w+)(?: "((?:[^"\\]|\\.)*)")?(.*)')


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def turn(asked: str, lines: list[tuple[str, str, str, str]], place: int) -> str:
    quoted = re.findall(r'"(.*?)"', asked)
    texts, calls, last = iter(quoted), [], ""
    for number, role, name, rest in lines:
        named = bool(name) and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", asked) is not None
        if role in ("textbox", "textarea") and (text := next(texts, "")):
            calls.append(call("type", element=int(number), text=text))
        elif role == "combobox":
            for option in re.findall(r'"(.*?)"', rest.partition("options")[2]):
                if option and option in asked:
                    calls.append(call("select", element=int(number), option=option))
        elif named and role not in ("button", "text") and rest.strip() != "checked":
            calls.append(call("click", element=int(number)))
        elif role == "button" and (name in quoted or name == "Submit" or not last):
            last = call("click", element=int(number))
    if calls or last:
        return "".join([*calls[:7], last])
    return call("click", element=int(lines[place % len(lines)][0])) if lines else call("press", key="Tab")


def attack(opening: str) -> Generator[str, str, None]:
    asked, _, page = opening.partition("Instruction: ")[2].partition("\n\n")
    for place in range(6):
        lines = [found.groups(default="") for line in page.splitlines() if (found := LINE.fullmatch(line))]
        page = yield turn(asked, lines, place)
