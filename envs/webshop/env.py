"""WebShop as an environment: an instruction, a shop to search and click through, and a reward for the purchase."""

from __future__ import annotations

import functools
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from agent_gym.chat import Message
from agent_gym.env import HISTORY_HEADING, Reply
from agent_gym.envs.webshop.data import EMBEDDED, check_goal, find_official, open_data, read_official
from agent_gym.envs.webshop.expert import STYLES, next_action
from agent_gym.envs.webshop.protocols import ARGUMENTS, PROTOCOLS
from agent_gym.envs.webshop.scoring import RULE, tagger
from agent_gym.envs.webshop.session import MODES, PER_PAGE, ShopVisit, observe
from agent_gym.envs.webshop.store import write_shop
from agent_gym.errors import one_of, quoted, whole_number
from agent_gym.formats.react import ReActParser
from agent_gym.protocols import takes_protocol
from agent_gym.tool_env import ToolEnv, random_words, words_of
from agent_gym.tools import HermesParser, Parser, TextTool, ToolCall, ToolResult, ToolSchema

if TYPE_CHECKING:
    from agent_gym.envs.webshop.page import ShopServer

_ABOUT = {
    "search": ("Search the shop.", "what to search for"),
    "click": ("Click on something on the page.", "the text of a button, a product's id, or an option's value"),
}
_RULES = (
    "You are shopping. Find the product that fits the instruction best in all that it asks for, choose the options "
    "that it asks for on the product's page, and buy it by Buy Now, which ends the task. "
)
PROMPTS = {
    "tool": _RULES + "Call exactly one tool per turn: search for keywords, or click on a button, product or option.",
    "text": _RULES + "Take exactly one action per turn: search[keywords], or click[a button, product or option].",
}
"""Form of actions to system prompt."""
_REACT = _RULES + "Think, then take exactly one action per turn."
_TAG = re.compile(r"</?(?:action|answer)>")


class WebShopEnv(ToolEnv):
    """Shopping by instruction in a shop with a search engine, product pages and options.

    ## Description
    Each episode is one instruction, such as "i am looking for a red dress in size small, with long sleeves, and price
    lower than 40.00 dollars". The policy searches, opens products, reads their pages, chooses options and buys one
    product. Nothing says whether it is the right one before it is bought.

    ## Observation
    The pages of WebShop's text environment, character for character. `observation="text"` (default) is the text of a
    page, joined by " [SEP] "; "text_rich" has a line for each piece and marks buttons, and clicked ones. `reset`
    returns the search page with the instruction (after the system prompt, if there is one). An action that is not
    possible shows the same page again, and `info["error"]` has the reason; a call that cannot be read, or a second one,
    is answered by a line that starts with "Error:". `info["available_actions"]` has upstream's `has_search_bar` and
    `clickables`.

    ## Action
    Free text with one action. `commands="tool"` (default) tells the policy to call tools in Hermes form:
    `<tool_call>{"name": "search", "arguments": {"keywords": "red dress"}}</tool_call>` and `{"name": "click",
    "arguments": {"element": "Buy Now"}}`; "text" to write `search[red dress]` and `click[Buy Now]` on a separate line.
    Both are read in either case. It is possible to search on every page.

    ## Reward
    - `score` (weight 1): WebShop's own reward of the purchase, 0 to 1 (scoring.py); 0 without one.
      `info["reward_parts"]` has its parts under upstream's names: `r_type`, `r_att`, `r_option`, `r_price`, their
      weights, and `query_match`, `category_match`, `title_score`.
    - `success` (0): 1 for a score of 1.
    - `invalid` (0): -1 for a turn that did nothing. A process term.

    ## Episode end
    `terminated` when something is bought, `truncated` after `max_turns` turns (15). `is_success` is a score of 1.
    `info["metrics"]` has `searches` and `invalid_actions` so far after each turn, and at the end `score`, `r_type`,
    `r_att`, `r_option` (if options were asked for) and `r_price`.

    ## Arguments
    - `data`: "embedded" (default) or "embedded-easy", a folder with the official files, their file of products
      (`items_shuffle.json` or `items_shuffle_1000.json`), or a folder that `agent-gym prepare webshop` made of them.
    - `protocol`: "verl-agent" or "ragen" plays as these do (docs/protocols.md): the answers to turns, form of actions,
      and, unless they are given, turns and weights of the reward. None by default.
    - `difficulty`: 1 to 5, of generated shops. 1: "embedded-easy"; 2: hardly any product is like another, and people
      use the catalogue's words; 3: "embedded"; 4, 5: up to 10 products that differ in one attribute, more options.
    - `goals`: "human" (default), "synthetic", the ones of upstream's program, or the rows of Agent-R1's recipe: a
      file, or a folder with one for each split.
    - `observation`, `commands`: see above; `parser` reads actions in another format, such as `TagParser({"search":
      "keywords", "click": "element"})`, or "react" for `Thought: ...` and `Action: Search[red dress]`.
    - `nouns`: the finder of nouns in titles, "rule" (default) or an installed model of spaCy (extra `spacy`); upstream
      has "en_core_web_sm". It matters to `r_type` of other products than the one that was meant (scoring.py).
    - `per_page`: products on a page of results (10, upstream's). Fewer make shorter pages.
    - everything `TextEnv` takes: split, system_prompt, max_turns, reward_weights, tokenizer, render_mode.

    A task that is handed in is a goal as products.py describes it.

    ## Data
    The official catalogue has 1,181,436 products of 2021 and 12,087 goals of people, the small one 1,000 products and
    6,910 synthetic goals. Goals are in upstream's order (seed 233) and splits: test has the first 500, validation
    (upstream's dev) the next 1,000, train the rest. "embedded" is a seeded generator (embedded/) of 1,000 products
    and about 2,900 goals of people's kind, in the official format; no product is asked for in two splits.
    "embedded-easy" (`generate_easy`) is for models that can hardly read: short titles, instructions in the catalogue's
    words, and 1,000 products of which a search for the whole instruction finds the right one first.

    ## Differences
    Seeded by the product's id, unseeded upstream: the price of a product that has a range of prices, and the limits of
    price in instructions. Goals are drawn evenly; upstream draws synthetic ones by the rarity of their attributes. A
    search for `<r>`, `<a>`, `<c>` or `<q>` is one for that letter, where upstream lists products at random or by class.
    Spaces around queries and names of buttons do not count. Queries of more than 16,384 characters are cut. Reviews and
    ratings are empty, as they are upstream since its files of reviews are gone.

    ## References
    Yao et al., WebShop, arXiv:2207.01206; data and rules of princeton-nlp/WebShop, whose licence allows academic and
    research use only (NOTICE). 15 turns as in ReAct (arXiv:2210.03629) and Agent-R1's recipe (arXiv:2511.14460), whose
    reward is `reward_weights={"score": 0, "success": 10, "invalid": 0.1}`.

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"score": 1.0, "success": 0.0, "invalid": 0.0}
    process_terms: ClassVar[frozenset[str]] = frozenset({"invalid"})

    @takes_protocol(PROTOCOLS)
    def __init__(
        self,
        data: str = EMBEDDED,
        *,
        protocol: str | None = None,
        goals: str = "human",
        difficulty: int | None = None,
        observation: str = "text",
        commands: str = "tool",
        parser: Parser | str | None = None,
        nouns: str = RULE,
        per_page: int = PER_PAGE,
        system_prompt: str | None = None,
        max_turns: int = 15,
        **kwargs: Any,
    ) -> None:
        self.protocol = PROTOCOLS[protocol] if protocol else None
        self._mode = one_of("observation", observation, MODES)
        self._per_page = whole_number("per_page", per_page, 1)
        known = ActionParser(commands)
        prompt = PROMPTS[commands]
        if parser == "react":
            parser, prompt = ReActParser(ARGUMENTS, finish=None), _REACT
        tasks, self.shop = open_data(data, goals, difficulty)
        super().__init__(
            tasks,
            tools=[
                TextTool(name, summary, ARGUMENTS[name], about, functools.partial(self._act, name))
                for name, (summary, about) in _ABOUT.items()
            ],
            parser=parser or known,
            max_calls_per_turn=1,
            system_prompt=prompt if system_prompt is None else system_prompt,
            max_turns=max_turns,
            **kwargs,
        )
        self._nouns = tagger(nouns)

    @staticmethod
    def build_data(source: str | Path, folder: str | Path, *, progress: bool = False) -> Path:
        """Build the shop of official files in a folder, once, so that `data=folder` opens it in a moment.

        `source` is a folder with WebShop's files, or their file of products. The rest of an interrupted build is
        replaced; `ConfigError` if it holds something else, or the files are not there or are others.
        """
        return write_shop(read_official(find_official(Path(source).expanduser())), folder, progress=progress)

    def gold(self, task: Any) -> dict[str, Any]:
        return {name: value for name, value in task.items() if name != "instruction_text"}

    def begin(self, task: Any) -> str:
        check_goal(task)
        self.session = ShopVisit(self.shop, task, self._nouns, self._per_page)
        self._taken, self._counts = list[str](), {"searches": 0.0, "invalid_actions": 0.0}
        self._now = observe(self.session, self._mode)
        self._steps: list[tuple[str, str]] = []  # pages, each with the action that followed it
        return self._prompt() if self.protocol else self._now

    def respond(self, action: str) -> Reply:
        before = len(self._taken)
        self._refused: str | None = None
        reply = super().respond(action)
        reply.error = self._refused or reply.error
        reply.terminated = self.session.score is not None
        score = self.session.score or 0.0
        reply.success = score == 1
        idle = len(self._taken) == before
        reply.terms |= {"score": score, "success": float(reply.success), "invalid": float(-idle)}
        self._counts["invalid_actions"] += idle
        reply.metrics |= self._counts
        if reply.terminated or self.turn + 1 >= self.max_turns:
            parts = {name: float(value) for name, value in self.session.parts.items() if name.startswith("r_")}
            reply.metrics |= {"score": score, **parts}
        if reply.tool_calls and not self.parser.in_templates:  # an action is not a call that a tool answers
            text = "\n".join(call.answer for call in reply.tool_calls)
            reply.text = self.parser.observe(text) if isinstance(self.parser, ReActParser) else text
        if self.protocol:
            reply.terms["invalid"] = -float(not self.protocol.well_formed(action))
            self._steps.append((self._now, self.protocol.kept(action)))
            self._now = observe(self.session, self._mode)
            if not (self.protocol.rebuilds or reply.terminated):
                reply.messages = [{"role": "user", "content": self._prompt()}]
        return reply

    def _prompt(self) -> str:
        assert self.protocol is not None
        return self.protocol.prompt(self._now, self._steps, self.available_actions())

    def answer(self, text: str) -> Reply:
        problem = "the turn has no action: search for something, or click on something"
        return Reply(observe(self.session, self._mode), error=problem)

    def expert_action(self, style: str = "default") -> str:
        """Return the next action of the expert in a style: "default", "direct" or "hesitant" (expert.py)."""
        self.check_style(style, STYLES)
        name, argument = next_action(self.session, style, self.np_random)
        turn = self.protocol.turn if self.protocol else "{}"
        return turn.replace("{}", self.parser.render(name, {ARGUMENTS[name]: argument}))

    def random_action(self, rng: np.random.Generator) -> str:
        clickables = [name for name in self.session.clickables() if name != "search"]
        if clickables:
            return self.parser.render("click", {ARGUMENTS["click"]: clickables[int(rng.integers(len(clickables)))]})
        words = words_of(self.session.goal["instruction_text"])
        return self.parser.render("search", {ARGUMENTS["search"]: random_words(words, rng)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        page, info = super().reset(seed=seed, options=options)
        info |= {"rebuilds": True} if self.protocol and self.protocol.rebuilds else {}
        return page, {**info, "available_actions": self.available_actions()}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        page, reward, terminated, truncated, info = super().step(action)
        info["available_actions"] = self.available_actions()
        if terminated:
            info["reward_parts"] = dict(self.session.parts)
        return page, reward, terminated, truncated, info

    @staticmethod
    def server(make: Callable[[], WebShopEnv], listener: socket.socket) -> ShopServer:
        from agent_gym.envs.webshop.page import ShopServer  # needs starlette

        return ShopServer(make, listener)

    def available_actions(self) -> dict[str, Any]:
        """Return upstream's `get_available_actions`: whether the page has a search bar, and its buttons."""
        return {"has_search_bar": self.session.page == "index", "clickables": list(self.session.clickables())}

    def state_prompt(self) -> list[Message]:
        if self.protocol and not self.protocol.rebuilds:
            return super().state_prompt()
        if self.protocol:
            return self.with_system_prompt(self._prompt())
        history = "\n".join(f"{n}. {action}" for n, action in enumerate(self._taken, 1))
        clickables = "\n".join(f"- {name}" for name in self.session.clickables() if name != "search")
        parts = [observe(self.session, self._mode)]
        parts += [f"{HISTORY_HEADING}\n{history}"] if history else []
        parts += [f"What can be clicked:\n{clickables}"] if clickables else []
        return self.with_system_prompt("\n\n".join(parts))

    def _act(self, name: str, text: str) -> ToolResult:
        argument = text.strip().lower()
        possible = self.session.act(name, argument)
        if possible:
            self._taken.append(f"{name}[{argument[:200]}]")
            self._counts["searches"] += name == "search"
        elif name == "click":
            self._refused = f"nothing called {quoted(argument)} can be clicked here"
        else:
            self._refused = "no keywords"
        return ToolResult(observe(self.session, self._mode), error=not possible)


class ActionParser:
    """Reads both forms, and writes one of them, "tool" or "text"; `ConfigError` for another form."""

    def __init__(self, form: str) -> None:
        self._as_tool = one_of("commands", form, PROMPTS) == "tool"
        self.in_templates = self._as_tool
        self._calls: Parser = HermesParser()
        self.family = ""
        self._actions = ReActParser(ARGUMENTS, finish=None)
        self.stop: tuple[str, ...] = () if self._as_tool else self._actions.stop

    def around(self, model: Parser) -> Parser:
        """Return a parser that reads calls as `model` does, and the actions too."""
        if not self._as_tool:
            return self
        made = copy(self)
        made._calls, made.family = model, getattr(model, "family", "")
        return made

    def parse(self, text: str) -> list[ToolCall]:
        """Return the calls of a turn in order, broken ones with their error; without calls, its actions."""
        # Other trainers have policies put actions into tags, where they would not begin a line.
        return self._calls.parse(text) or self._actions.parse(_TAG.sub("\n", text))

    def render(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self._as_tool:
            return self._calls.render(name, arguments)
        return f"{name}[{arguments[ARGUMENTS[name]]}]"

    def instructions(self, tools: Sequence[ToolSchema]) -> str:
        return self._calls.instructions(tools) if self._as_tool else ""
