"""A simulated customer of tau2-bench, without a model: it says the sentences of the task's scenario.

The original's customer is a language model that reads the scenario. This one is free and the same for everybody. It
opens with its request, in the first person. It answers a question with the sentences that share most words with it, and
with the way to pay, the reason and the like of the gold calls, which a customer knows. Sentences under a condition on
the agent ("If the agent asks you to confirm, ...") wait for it. It agrees when it is asked to confirm, in telecom
uses its phone as it is asked to, and ends when all is said. Messages without a meaning to it cost patience.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent_gym.envs.tau2.data import WORDS, Patterns
from agent_gym.envs.tau2.phone import follow
from agent_gym.envs.tau2.world import DomainWorld

PATIENCE = 8
_IS = Patterns(WORDS["customer"])
_FIRST = {"you are": "I am", "you were": "I was", "you're": "I'm", "yourself": "myself", "yours": "mine", "your": "my"}
_TRIES = {  # by a word of the request: a tool, and its result when all is well
    "mms": ("can_send_mms", r"can send"),
    "no service": ("check_status_bar", r"Poor|Fair|Good|Excellent"),
    "": ("run_speed_test", r"Excellent"),
}


class ScriptedCustomer:
    """One customer in one episode: by the texts and the gold calls of a task, and in telecom with a phone."""

    def __init__(self, scenario: Mapping[str, str], gold: Sequence[Mapping[str, Any]], world: DomainWorld) -> None:
        self.world, self.patience = world, PATIENCE
        self.gone = self.left = False  # whether the conversation is over, and whether for want of patience
        self._asked = False  # whether the customer has just asked if all is done
        reason, self._known, self._unknown, manner = (
            _sentences(scenario[key]) for key in ("reason_for_call", "known_info", "unknown_info", "task_instructions")
        )
        self._request = [one for one in reason if not _IS.found("condition", one)] or reason
        self._held = [one for one in [*reason, *manner] if _IS.found("condition", one) and one not in self._request]
        rest = [one for one in manner if one not in self._held and not _IS.found("manner", one)]
        self._wishes = [one for one in rest if _IS.found("wish", one)]
        if world.user_tools:  # its instructions are about tools; few are about the customer
            rest, self._held, self._wishes = [one for one in rest if "willing" in one], [], []
        self._facts = [*self._known, *rest, *self._request, *self._held]
        calls = [call["arguments"] for call in reversed(gold) if call["by"] == "assistant"]
        self._slots = {key: value for arguments in calls for key, value in arguments.items()}

    def opening(self) -> str:
        """Say the request."""
        return " ".join(["Hello.", *map(first_person, self._request)])

    def hear(self, text: str) -> str:
        """Answer a message."""
        text = text.lower().replace("’", "'")
        if transferred(self.world) and _IS.found("transfers", text):
            return self._leave("All right, I will hold on.")
        if self.world.user_tools and (results := follow(self.world, text)):
            return "\n".join(results)
        sentences = [one for one in re.split(r"(?<=[.?!])\s+|\n+", text) if one.strip()]
        asking = [one for one in sentences if _IS.found("asks", one) and not _IS.found("more", one)]
        if any(_IS.found("confirms", one) for one in asking):
            return self._release("confirm") or "Yes, please go ahead."
        if asking:
            return self._answer(" ".join(asking))
        if _IS.found("refuses", text) and (words := self._release("")):
            return words
        if _IS.found("waits", text) and not _IS.found("more", text):
            return self._lose_patience("All right, I will wait.")
        reported = any(
            _IS.found(one, text) for one in ("more", "reports", "refuses", *(["yes"] if self._asked else []))
        )
        return self._next(text) if reported else self._lose_patience("I do not understand. What do you need from me?")

    def _answer(self, question: str) -> str:
        """Give one's name and the like, or the facts about a question."""
        words, best = _stems(question), list[str]()
        if _IS.found("identity", question):
            lacks = "mail" in question and not any("@" in one for one in self._known)
            best = [*self._known, *(self._unknown if lacks else [])]
            if re.search(r"order|reservation|confirmation", question):
                best += [one for one in self._facts if _IS.found("code", one)]
        if not best:
            ranked = sorted(self._facts, key=lambda one: -len(words & _stems(one)))
            best = [one for n, one in enumerate(ranked[:2]) if len(words & _stems(one)) > n]
        self._said(best)
        said = [first_person(_IS["head"].sub("", one)) for one in dict.fromkeys(best)]
        for pattern, (before, *keys) in WORDS["slots"].items():
            if re.search(pattern, question) and (found := [self._slots[one] for one in keys if one in self._slots]):
                said.append(f"{before} {found[0]}.")
        return " ".join(said) or self._lose_patience("I do not know. Please do what you think is right.")

    def _release(self, word: str) -> str:
        """Say a sentence that waited for a confirmation, or for a refusal; "" if there is none."""
        for one in self._held:
            if ("confirm" in one.lower()) == bool(word):
                self._said([one])
                return first_person(_IS["head"].sub("", one))
        return ""

    def _said(self, told: Sequence[str]) -> None:
        self._held, self._wishes = ([one for one in some if one not in told] for some in (self._held, self._wishes))

    def _next(self, text: str) -> str:
        """Tell the next wish, ask whether all is done, or say goodbye."""
        if self._wishes:
            return first_person(self._wishes.pop(0))
        if self.world.user_tools:
            request = " ".join(self._request).lower()
            name, works = next(found for word, found in _TRIES.items() if word in request)
            result = self.world.call(name, {}, "user")[0]
            if re.search(works, result):
                return self._leave(f"{result}\nIt works now. Thank you. Goodbye.")
            return self._lose_patience(f"It does not work yet.\n{result}")
        if self._asked or _IS.found("more", text):
            return self._leave("No, that is all. Thank you. Goodbye.")
        self._asked = True
        return "Thank you. Is everything done that I asked for?"

    def _leave(self, words: str) -> str:
        self.gone = True
        return words

    def _lose_patience(self, words: str) -> str:
        self.patience -= 1
        self.left = self.patience < 0
        return self._leave("I have had enough. Goodbye.") if self.left else words


def transferred(world: DomainWorld) -> bool:
    """Whether the policy has called a person to take over."""
    return any(name == "transfer_to_human_agents" for name, _ in world.calls)


def _sentences(text: str) -> list[str]:
    parts = re.split(r"(?<=[.!?;])\s+|\n+", re.sub(r"(?<=[a-z,])\n+(?=[a-z])", " ", text))
    return [one.strip() for one in parts if re.search(r"\w", one)]


def _stems(text: str) -> set[str]:
    return {word[:5] for word in re.findall(r"[a-z0-9_]{3,}", text.lower()) if not _IS.found("stops", word)}


def first_person(text: str) -> str:
    """Say "You want your order" as "I want my order"."""
    text = _IS["last"].sub("me", _IS["me"].sub(r"\1 me", _IS["my"].sub("my ", text)))
    text = _IS["second"].sub(lambda match: _FIRST.get(match[0].lower(), "I"), text)
    text = re.sub(r"([.!?] )([a-z])", lambda match: match[1] + match[2].upper(), text)
    return text[:1].upper() + text[1:]
