"""The customer's phone in telecom: requests in a message become calls of the customer's tools.

A message is read clause by clause. A clause names a thing (airplane mode, the SIM card, ...), and a wish: to
check it, to switch it, or to do something with it. The name of a tool is understood, too. words.toml has the words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agent_gym.envs.tau2.data import WORDS, Patterns
from agent_gym.envs.tau2.world import DomainWorld

_IS = Patterns(WORDS["phone"])
_MODE = Patterns(WORDS["modes"])
_THINGS = [(Patterns(one), one) for one in WORDS["things"]]
_SWITCHES = [(Patterns(one), one) for one in WORDS["switches"]]


def follow(world: DomainWorld, text: str) -> list[str]:
    """Follow the requests of a message (in lower case); return the results of the tools, if any."""
    asked: list[Any] = []
    for one in _asked(world, text):
        asked += [one] if one not in asked else []
    return [one if isinstance(one, str) else world.call(one[0], one[1], "user")[0] for one in asked]


def asking_for(world: DomainWorld, name: str, arguments: Mapping[str, Any]) -> str:
    """Return a message of the expert that makes the customer call a tool."""
    for _, switch in _SWITCHES:
        if name == switch["does"]:
            state = getattr(world.user_tools.db.device, switch["state"])
            return f"Please turn {switch['name']} {'off' if state else 'on'}."
    return str(WORDS["asking"].get(name, f"Please use {name}.")).format(**arguments)


def _asked(world: DomainWorld, text: str) -> Iterator[Any]:
    """Yield calls, or words where there is nothing to do."""
    verb = ""
    for sentence in re.split(r"(?<=[.?!])\s+|\n+", text):
        asks = _IS.found("asks", sentence)
        if not asks and (not _IS.found("imperative", sentence) or _IS.found("reports", sentence)):
            continue
        names = [one for one in world.user_tools.tools if re.search(rf"\b{one}\b", sentence)]
        permissions = _IS["permission"].findall(sentence) if _IS.found("grants", sentence) else []
        if names:
            yield from ((one, _arguments(one, sentence)) for one in names)
        elif permissions:
            yield from (
                ("grant_app_permission", {"app_name": _app(sentence), "permission": one}) for one in permissions
            )
        else:
            for clause in _IS["clauses"].split(sentence):
                found = _IS["switched"].search(clause or "")
                verb = found[0] if found else "" if _IS.found("checks", clause or "") else verb
                yield from _clause(world, clause or "", verb)


def _clause(world: DomainWorld, clause: str, verb: str) -> Iterator[Any]:
    for words, thing in _THINGS:
        if words.found("words", clause):
            does = thing.get("does", "") if "wanted" not in words or words.found("wanted", f"{verb} {clause}") else ""
            if does == "make_payment":
                yield "check_payment_request", {}
            if name := does or thing.get("shows"):
                yield name, _arguments(name, clause)
            return
    for words, switch in _SWITCHES:
        if words.found("words", clause):
            whole, is_on = f"{verb} {clause}", bool(getattr(world.user_tools.db.device, switch["state"]))
            off, on = _IS.found("off", whole), _IS.found("on", whole)
            if not verb:
                yield switch["shows"], {}
            elif (off and not is_on) or (on and not off and is_on):
                yield f"{switch['name']} is already {'on' if is_on else 'off'}."
            else:
                yield switch["does"] or ("disconnect_vpn" if is_on else "connect_vpn"), {}
            return


def _app(text: str) -> str:
    return "browser" if "browser" in text else "messaging"


def _arguments(name: str, text: str) -> dict[str, Any]:
    if name == "set_network_mode_preference":
        return {"mode": next((mode for mode in WORDS["modes"] if _MODE.found(mode, text)), "4g_5g_preferred")}
    if name == "grant_app_permission":
        found = _IS["permission"].search(text)
        return {"app_name": _app(text), "permission": found[0] if found else "storage"}
    return {"app_name": _app(text)} if name in ("check_app_permissions", "check_app_status") else {}
