"""A language model as the customer of tau2-bench, by the original's instructions, on an OpenAI-compatible server."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_gym.envs.tau2.data import read
from agent_gym.envs.tau2.world import DomainWorld, load_domain
from agent_gym.players import ServedModel

_GREETING = "Hi! How can I help you today?"  # the original's agent begins with it
_END = re.compile("###(STOP|TRANSFER|OUT-OF-SCOPE)###")
_MOST_CALLS = 20  # of one turn
_TOKENS = 1024


class ServedCustomer:
    """One customer in one episode, in the place of `customer.ScriptedCustomer`; its model calls the tools of the phone.

    Raises:
        EnvFailure: if the server does not answer.
    """

    def __init__(self, address: str, folder: Path, scenario: Mapping[str, str], world: DomainWorld) -> None:
        self.gone = self.left = False
        self._world, self._model = world, ServedModel(address, "the customer")
        name = f"data/tau2/user_simulator/simulation_guidelines{'_tools' if world.user_tools else ''}.md"
        told = "\n".join(f"{key}: {text}" for key, text in scenario.items() if text)
        system = f"{read(folder, name)}\n\n<scenario>\n{told}\n</scenario>"
        self._talk: list[Any] = [{"role": "system", "content": system}]
        schemas = [*load_domain(folder, "telecom").user_schemas] if world.user_tools else []
        self._more: dict[str, Any] = {"tools": schemas} if schemas else {}

    def opening(self) -> str:
        """Say the request."""
        return self.hear(_GREETING)

    def hear(self, text: str) -> str:
        """Answer a message; calls of the phone's tools come before the words."""
        self._talk.append({"role": "user", "content": text})
        for _ in range(_MOST_CALLS):
            answer = self._model.answer(self._talk, max_tokens=_TOKENS, **self._more)
            calls = answer.tool_calls or []
            made = {"tool_calls": [one.model_dump() for one in calls]} if calls else {}
            self._talk.append({"role": "assistant", "content": answer.content or "", **made})
            if not calls:
                break
            for one in calls:
                result = self._called(one.function.name, one.function.arguments)
                self._talk.append({"role": "tool", "tool_call_id": one.id, "content": result})
        words = str(self._talk[-1]["content"])
        self.gone = bool(_END.search(words))
        return _END.sub("", words).strip()

    def _called(self, name: str, text: str) -> str:
        try:
            arguments = json.loads(text or "{}")
        except ValueError as error:
            return f"Error: the arguments are no JSON: {error}"
        return self._world.call(name, arguments if isinstance(arguments, dict) else {"": arguments}, "user")[0]
