"""Protocols of questions and a search engine: Search-R1, Agent-R1, ReAct, RAGEN-2.

The numbers are exact match in percent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from agent_gym.formats import ragen
from agent_gym.formats.react import Action, ReActParser
from agent_gym.formats.tags import TagParser
from agent_gym.protocols import PaperPreset, prompt_file
from agent_gym.search import Hit
from agent_gym.tools import FirstCallParser, TextTool, ToolCall, ToolResult, same_text

Find = Callable[[Sequence[str], int], list[list[Hit]]]  # queries and k to the hits of each query
Write = Callable[[Sequence[Hit]], str]

_IDS = ("AgentR1/HotpotQA-v0", "AgentR1/HotpotQA-FullWiki-v0", "AgentR1/MultiHopQA-v0")
_ACTION = re.compile(r"^[ \t]*action[ \t]*\d*[ \t]*:", re.IGNORECASE | re.MULTILINE)
_CHOICE = "Available actions: search[<query>], finish[<answer>]"
_FORM = {"tools": ("search",), "calls": "hermes", "system_prompt": ""}


@dataclass(frozen=True, kw_only=True)
class SearchProtocol(PaperPreset):
    """A protocol of a search engine."""

    prompt: str  # the user's first message, around {question}
    marked: bool = False  # whether a question without a question mark gets one
    passages: Callable[[Sequence[Hit]], str]  # the text of a search
    results: str = "{}"  # around that; {query} is the query
    max_chars: int | None = None  # of it; the rest is cut off
    frame: str | None = None  # around an answer inside the policy's own turn, which {turn} numbers; None for messages
    message: Callable[[Sequence[str], str], str] | None = None  # of the turns so far, and of the last shown text
    invalid: str = ""  # the answer to a turn without an action; "" if such a turn is the answer to the question
    refusal: Callable[[ToolCall], str] | None = None  # the answer to a call that cannot run
    browses: bool = False  # whether `search` opens an article and `lookup` reads on in it (`Browser`)


class SearchR1Parser(TagParser):
    """`<search>query</search>` or `<answer>...</answer>`, whichever is first."""

    def parse(self, text: str) -> list[ToolCall]:
        starts = {name: text.find(f"<{name}>") for name in ("search", "answer")}
        stops = {name: text.find(f"</{name}>", start) for name, start in starts.items() if start >= 0}
        closed = [name for name, stop in stops.items() if stop >= 0]
        if not closed or min(closed, key=starts.__getitem__) == "answer":
            return []
        return super().parse(text[starts["search"] : stops["search"] + len("</search>")])


class NumberedReActParser(ReActParser):
    """ReAct's first action of a turn; the turn ends where the next observation begins."""

    stop = ("\nObservation",)

    def parse(self, text: str) -> list[ToolCall]:
        calls = super().parse(text)
        for call in calls:
            if call.error or call.name not in self.arguments:
                written = _ACTION.split(text.partition("\nObservation")[0], maxsplit=1)[-1].strip()
                call.error = f"Invalid action: {written[:1].lower()}{written[1:]}"
        return calls

    def _actions(self, text: str) -> Iterator[Action]:
        return islice(super()._actions(text), 1)

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        return super().render(name, arguments).removeprefix("Action: ")

    def render_answer(self, text: str) -> str:
        return super().render_answer(text).removeprefix("Action: ")


class Browser:
    """The article that is open in an episode of ReAct (`wikienv.py`); `tools` read and change it.

    `search[entity]` opens one, `lookup[keyword]` reads on. An article here is a paragraph of the corpus; ReAct's is a
    page of Wikipedia. The first five sentences of it are shown.
    """

    def __init__(self, find: Find, write: Write) -> None:
        self._find, self._write = find, write
        self.tools: dict[str, TextTool] = {
            "search": TextTool("search", "Open the article about an entity.", "entity", "the entity", self.open),
            "lookup": TextTool(
                "lookup", "Find the next sentence with a keyword.", "keyword", "the keyword", self.read_on
            ),
        }
        self.begin()

    def begin(self) -> None:
        self.text, self.keyword, self.results = "", "", list[str]()

    def open(self, entity: str) -> ToolResult:
        found = self._find([entity], 10)[0]
        exact = [hit for hit in found if same_text(hit.document.title) == same_text(entity)]
        if not exact:
            return ToolResult(f"Could not find {entity}. Similar: {[hit.document.title for hit in found[:5]]}.")
        self.begin()
        self.text = exact[0].document.text
        return ToolResult(self._write(exact[:1]))

    def read_on(self, keyword: str) -> ToolResult:
        if keyword != self.keyword:
            hits = [sentence for sentence in sentences_of(self.text) if keyword.lower() in sentence.lower()]
            self.keyword = keyword
            self.results = [f"(Result {n} / {len(hits)}) {hit}" for n, hit in enumerate(hits, 1)]
        return ToolResult(self.results.pop(0) if self.results else "No more results.\n")


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a text, as ReAct's environment parts them: the last one gets a second full stop."""
    paragraphs = [line.strip() for line in text.split("\n") if line.strip()]
    return [part.strip() + "." for line in paragraphs for part in line.split(". ") if part.strip()]


class RagenParser(TagParser):
    """`<answer>search[query]</answer>`, or `<answer>finish[...]</answer>`; another action states itself."""

    def __init__(self) -> None:
        super().__init__({"search": "query"}, stop=())

    def parse(self, text: str) -> list[ToolCall]:
        query = _between(ragen.action_of(text), "search[")
        return [] if query is None else [ToolCall("search", {"query": query})]

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"<answer>{name}[{arguments['query']}]</answer>"

    def render_answer(self, text: str) -> str:
        return f"<answer>finish[{text}]</answer>"

    def tagged(self, text: str) -> str:
        """Return a turn as nothing but the tagged answer that it states, if it states one."""
        action = ragen.action_of(text)
        stated = _between(action, "finish[")
        return f"<answer>{action if stated is None else stated}</answer>" if action else ""


def _between(action: str, start: str) -> str | None:
    return action[len(start) : -1] if action.startswith(start) and action.endswith("]") else None


def _docs(hits: Sequence[Hit]) -> str:
    found = [hit.document for hit in hits]
    return "\n".join(f'Doc {n}(Title: "{one.title}") {one.text}' for n, one in enumerate(found, 1)).strip()


def _json(hits: Sequence[Hit]) -> str:
    return json.dumps({"results": [f"{document.title} {document.text}" for document, _ in hits]})


def _article(hits: Sequence[Hit]) -> str:
    return " ".join(sentences_of(hits[0].document.text)[:5])


def _scored(hits: Sequence[Hit]) -> str:
    if not hits:
        return "No relevant documents found for the query."
    # The contents of its corpus, wiki-18, are a title in quotes, and the text on the next line.
    found = [(f'"{document.title}"\n{document.text}', score) for document, score in hits]
    return "\n\n".join(
        f"[Document {n}] (ID: doc_{n}, Score: {score:.3f})\n{first_characters(text, 800)}"
        for n, (text, score) in enumerate(found, 1)
    )


def first_characters(text: str, limit: int) -> str:
    """Return the text, or its first `limit` characters and "..."."""
    return text if len(text) <= limit else text[:limit] + "..."


def _react_refusal(call: ToolCall) -> str:
    text = call.error or call.answer
    return "Nice thought." if text.startswith("Invalid action: think[") and text.endswith("]") else text


def _agent_r1_refusal(call: ToolCall) -> str:
    if call.error is None:
        return "Error: Invalid tool arguments" if call.name == "search" else "Error: ToolNotFoundError"
    return "Error: JSONDecodeError" if "not valid JSON" in call.error else "Error: No tool name"


def _budgets(passage: int, observation: int, **others: Any) -> dict[str, Any]:
    return {"max_turns": 5, "max_passage_tokens": passage, "max_observation_tokens": observation, **others}


PROTOCOLS: Mapping[str, SearchProtocol] = {
    "search-r1": SearchProtocol(
        source="Search-R1 (arXiv:2503.09516v5; PeterGriffinJin/Search-R1 of 2025: generation.py, nq_search.py)",
        ids=_IDS,
        fixed={**_FORM, "parser": SearchR1Parser({"search": "query"}, stop=("</search>", "</answer>"))},
        budgets=_budgets(500, 500, top_k=3, reward="search_r1"),  # the last of five turns has to answer
        rollout={"max_turn_tokens": 500, "max_tokens": 4096 + 500},  # of the text that a turn reads, and of the turn
        turn="<think>I go on step by step.</think>\n{}",
        prompt=prompt_file(__file__, "search-r1.txt"),
        marked=True,
        passages=_docs,
        frame="\n\n<information>{}</information>\n\n",
        invalid=(
            "\nMy previous action is invalid. If I want to search, I should put the query between <search> and "
            "</search>. If I want to give the final answer, I should put the answer between <answer> and </answer>. "
            "Let me try again.\n"
        ),
    ),
    "agent-r1": SearchProtocol(
        source="Agent-R1 (arXiv:2511.14460v1; AgentR1/Agent-R1, branch legacy of 2025: hotpotqa.py, nous.py)",
        ids=_IDS,
        fixed={**_FORM, "parser": FirstCallParser(stop=("</tool_call>",))},
        budgets=_budgets(4096, 4096, top_k=5, reward="agent_r1"),
        rollout={"max_turn_tokens": 1024, "max_tokens": 16384},
        turn="<think>I go on step by step.</think>\n{}",
        about=("Search for information on the internet using Wikipedia as a knowledge source.", "Search query"),
        prompt=prompt_file(__file__, "agent-r1.txt"),
        passages=_json,
        max_chars=2048,
        refusal=_agent_r1_refusal,
    ),
    "react": SearchProtocol(
        source="ReAct (arXiv:2210.03629; ysymyth/ReAct of 2023: hotpotqa.ipynb, wikienv.py, prompts_naive.json)",
        ids=_IDS,
        fixed={
            **_FORM,
            "tools": ("search", "lookup"),
            "parser": NumberedReActParser({"search": "entity", "lookup": "keyword"}),
        },
        budgets={"max_turns": 7, "max_passage_tokens": 4096, "max_observation_tokens": 4096, "reward": "em"},
        rollout={"max_turn_tokens": 100},
        turn="Thought {turn}: I go on step by step.\nAction {turn}: {}",
        prompt=prompt_file(__file__, "react.txt"),
        passages=_article,
        frame="\nObservation {turn}: {}\n",
        invalid="\nObservation {turn}: Invalid action: \n",
        refusal=_react_refusal,
        browses=True,
    ),
    "ragen": SearchProtocol(
        source="RAGEN-2 (arXiv:2604.06268; mll-lab-nu/RAGEN of 2026: envs.yaml, search/env.py, ctx_manager.py)",
        ids=_IDS,
        fixed={**_FORM, "parser": RagenParser(), "system_prompt": ragen.PERSONA + prompt_file(__file__, "ragen.txt")},
        budgets=_budgets(4096, 8192, top_k=5, reward="ragen"),
        rollout={"max_turn_tokens": 400, "max_tokens": 5000},
        turn="<think>I go on step by step.</think>{}",
        prompt=f"Question: {{question}}\n{_CHOICE}",
        passages=_scored,
        max_chars=4000,
        results=f"Search results for '{{query}}':\n{{}}\n\n{_CHOICE}",
        message=partial(ragen.message, actions=10, words=300),
        invalid="No action.",
    ),
}
