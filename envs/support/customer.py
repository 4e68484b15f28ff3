"""A simulated customer, without a model: goals, a mood, and rules for the reading of messages.

The customer asks for one thing after the other. A message of the policy may ask (for the name, the zip code, the order,
the item, the variant, or whether to continue), wait, or report. A goal is judged by a report: whether it was done or
refused, and, where the customer asks for a number or a state, this one. A message that names two numbers where one was
asked for answers nothing, so that to list all that a database holds does not pay. The first answer counts.

The customer knows no more than customers do: no refund, no state, no rule. The meaning of a message is found by words,
since the customer must be free and the same for everybody; so unusual words are met with a question, which costs
patience, and without patience the customer leaves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

PATIENCE = {"calm": 4, "chatty": 4, "hurried": 2}
STATES = ("pending", "shipped", "delivered", "cancelled")
_LINES: Mapping[str, Mapping[str, str]] = {
    "calm": {"hello": "Hello.", "thanks": "Thank you.", "lost": "I do not understand. Did it work?", "bye": "Goodbye."},
    "chatty": {
        "hello": "Hi there, I hope you are well!",
        "thanks": "Oh, that is very kind of you, thank you.",
        "lost": "Sorry, I was talking to my neighbour. Did it work?",
        "bye": "Have a lovely day, goodbye.",
    },
    "hurried": {"hello": "Listen:", "thanks": "Good.", "lost": "What do you mean? Did it work?", "bye": "Bye."},
}
# Rules, tried sentence by sentence. A sentence that asks is a question or a request; "Anything else?" asks for the next
# goal.
_ASKS = re.compile(r"\?|\b(please|tell me|give me|send me|provide|i need|may i|can i|could (you|i)|share|verify)\b")
_SLOTS = {
    "name": re.compile(r"\b(name|who (you are|am i)|identity)\b"),
    "zip": re.compile(r"\b(zip|postal|post ?code|identity)\b"),
    "new zip": re.compile(r"\bnew (zip|address|postal|post ?code)|\b(where|which (zip|address)) .*\b(to|send|sent)\b"),
    "order": re.compile(r"\border('s)? (number|no|id)\b|\b(which|what) order\b|\bnumber of (the|your) order\b"),
    "item": re.compile(r"\b(which|what) (item|product|article|thing)\b|\bwhat .*\b(return|exchange|cancel|send back)"),
    "variant": re.compile(r"\b(which|what) (colou?r|variant|one|size|other)\b|\bexchange .*\bfor what\b"),
}
_CONFIRM = re.compile(
    r"\b((shall|should|may|can) i|is (that|this) (ok|okay|right|correct|fine)|confirm|proceed|agree|do you want|"
    r"would you like)\b"
)
_MORE = re.compile(r"\b(anything|something) (else|more)\b|\bhelp (you|with)\b|\bwhat can i do\b|\bhow can i\b")
_WAIT = re.compile(r"\b(one moment|a moment|hold on|please wait|let me(?! know)|(i will|i'll) (check|look)|checking)\b")
# The words about a request. Each word is read once: in the match that begins further left, and else in the first of
# these.
_NOT = r"((is |will )?not|never|\w+n't)( \w+)?( be| been)?"
_ACTS = (
    "done|cancell?ed|returned|refunded|exchanged|changed|updated|processed|completed|arranged|paid back|initiated|"
    "submitted|credited|replaced|switched|swapped|modified|corrected|redirected|approved|successful|set (to|as)"
)
_WORDS = {
    "nothing": r"(can ?not|can't) be (undone|reversed)|(isn't|is not) an? (problem|issue)|refund would|get back to|"
    r"processed and (already )?(shipped|delivered|on its way)|"  # the order, not the request
    r"((can|could|may|might|must|would|(?<!going )to)( (?!not|only)\w+)? be( \w+)?|(to have|get|like|want)( \w+){1,5}) "
    rf"({_ACTS})",  # possible, or wished for
    "refused": r"can ?not|can't|could not|couldn't|unable|impossible|can no longer|too late|out of stock|refuse[ds]?|"
    rf"declined?|denied|nothing ((i|we) )?can|ineligible|"
    rf"{_NOT} (possible|allowed|permitted|available|eligible|able|qualify)",
    "not_done": rf"{_NOT} ({_ACTS}|accept|allow|cancel|return|exchange|refund)|"
    r"no (refund|return|exchange|cancellation)s?",
    "regretted": r"unfortunately|afraid|won't|will not|isn't|is not|no longer|expired|(can|may) only( be \w+)?|"
    r"must be (pending|delivered)|only (orders?|items?|pending|delivered|possible|for|if|within|while|when)",
    "done": rf"{_ACTS}|taken care|(was|were) able to",
    "pays": r"refund|get back|is on its way|will (now )?(be (sent|shipped|delivered)|go) to",
    "sorry": "sorry",
}
_SAID = re.compile("|".join(rf"\b(?P<{name}>{words})\b" for name, words in _WORDS.items()))
# The kinds that outweigh the rest first, and whether it was done then: a refusal names the refused action ("cannot be
# cancelled"), who has done it may regret something else, who regrets may name the amount of a refund, and one is sorry
# for trouble.
_REPORTS = {"refused": False, "done": True, "not_done": False, "regretted": False, "pays": True, "sorry": False}
_YES_OR_NO = re.compile(r"\W*(?:(yes|yep|yeah)|no|nope)\b")  # to "Did it work?"
_NUMBER = re.compile(r"(?<![\w.#-])\$?(\d+(?:\.\d{1,2})?)\b(?![-\w])")
_STATE = re.compile(rf"\b({'|'.join(STATES)}|canceled)\b")
# States of a rule, or such that the order is not in: "only pending orders", "cannot be cancelled", "not delivered".
_NO_STATE = re.compile(
    rf"\b(be|been(?= cancel)|no longer|{_NOT}|(orders?|items?) that (are|were|have been)|"
    rf"(if|when|once|until|after)( it)?( is| was| has been)?) {_STATE.pattern}|{_STATE.pattern} (orders|items|ones)\b"
)
_ID_DIGITS = 4  # a number of so many digits is an order, an item or a zip code


class Customer:
    """One customer in one episode.

    Args:
        person: `name`, `zip`, `mood`.
        goals: dicts with `request` (the words), `slots` (answers by slot), `allowed` (whether the rules allow it),
            `asks` (the questions when it is done, and when it is refused; each the words, the kind "number", "state" or
            "", and the answer).
        introduces: whether the customer begins with their name, which customers do who know no number of an order.
    """

    def __init__(self, person: Mapping[str, Any], goals: list[Mapping[str, Any]], introduces: bool = False) -> None:
        self.person, self.goals, self.introduces = person, goals, introduces
        self.words = _LINES[person["mood"]]
        self.patience = PATIENCE[person["mood"]]
        self.place = 0  # of the present goal
        self.right: list[bool] = []  # of each goal that is over, whether it was reported as it is
        self.gone = False
        self._reported: bool | None = None  # whether the present goal was done, once that was reported
        self._asked = False  # whether the customer asked for the missing part of a report
        self._unsure = False  # whether the customer has just asked whether it worked

    @property
    def goal(self) -> Mapping[str, Any]:
        return self.goals[self.place]

    def opening(self) -> str:
        """Say the first request."""
        who = f" I am {self.person['name']}." if self.introduces else ""
        return f"{self.words['hello']}{who} {self.goal['request']}"

    def hear(self, text: str) -> str:
        """Answer a message, and move to the next goal."""
        text, unsure, self._unsure = text.lower().replace("’", "'"), self._unsure, False
        sentences = [one for one in re.split(r"(?<=[.?!])\s+|\n+", text) if one.strip()]
        asking = [one for one in sentences if _ASKS.search(one)]
        slots = [slot for slot, rule in _SLOTS.items() if any(rule.search(one) for one in asking)]
        if slots:
            return self._give(slots)
        questions = [one for one in sentences if "?" in one and not _MORE.search(one)]
        if any(_CONFIRM.search(one) for one in questions):
            return "Yes, please."
        statements = [one for one in sentences if "?" not in one]
        if self._reported is None:
            self._reported = _report(statements)
        if self._reported is None and unsure and (plain := _YES_OR_NO.match(text)):
            self._reported = bool(plain[1])
        if self._reported is None:
            if any(map(_WAIT.search, statements)):
                return self._lose_patience("I am waiting.")
            more = any(map(_MORE.search, sentences))
            self._unsure = not more
            return self._lose_patience(self.goal["request"] if more else self.words["lost"])
        return self._judge(" ".join(statements))

    def _give(self, slots: list[str]) -> str:
        known = {"name": f"My name is {self.person['name']}.", "zip": f"My zip code is {self.person['zip']}."}
        known |= self.goal["slots"]
        if "new zip" in slots:
            slots = [slot for slot in slots if slot != "zip"]
        return " ".join(known.get(slot, f"I do not know the {slot}.") for slot in slots)

    def _judge(self, stated: str) -> str:
        """Take a report, or ask for its missing part."""
        right = self._reported == self.goal["allowed"]
        words, kind, answer = self.goal["asks"][0 if self._reported else 1]
        # Of a report that is wrong nothing more is asked: it has no right answer.
        if not (kind and right):
            return self._next(right)
        found = _numbers(stated) if kind == "number" else _states(stated)
        if len(found) == 1:
            return self._next(found == {answer})
        first, self._asked = not self._asked, True
        if first and not found:
            return words
        return self._lose_patience(f"{words} Tell me one {kind}, please.")

    def _next(self, right: bool) -> str:
        self.right.append(right)
        self._reported, self._asked = None, False
        self.place += 1
        if self.place == len(self.goals):
            self.gone = True
            return f"{self.words['thanks']} {self.words['bye']}"
        return f"{self.words['thanks']} {self.goal['request']}"

    def _lose_patience(self, words: str) -> str:
        self.patience -= 1
        if self.patience < 0:
            self.gone = True
            return f"I have had enough. {self.words['bye']}"
        return words


def _report(statements: list[str]) -> bool | None:
    """Whether statements report that a request was done, or was refused; None if they report nothing."""
    said: set[str | None] = set()
    for one in statements:
        found = {match.lastgroup for match in _SAID.finditer(one)}
        said |= found - {"done", "pays"} if _WAIT.search(one) else found
    if any(map(_WAIT.search, statements)):  # something is still looked up
        said -= {"regretted", "sorry"}
    return next((done for what, done in _REPORTS.items() if what in said), None)


def _numbers(text: str) -> set[str]:
    """Return the numbers of a text that are not ids, in one form: 12, 12.00 and $12 are the same."""
    found = (match[1] for match in _NUMBER.finditer(text.replace(",", "")))
    return {f"{float(one):g}" for one in found if len(one.partition(".")[0]) < _ID_DIGITS}


def _states(text: str) -> set[str]:
    return {one.replace("canceled", "cancelled") for one in _STATE.findall(_NO_STATE.sub("", text))}
