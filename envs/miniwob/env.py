"""MiniWoB: small web pages with one instruction each, in a real browser, seen as a text with numbered elements."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from agent_gym.env import Reply
from agent_gym.envs.miniwob.browser import SIZE, ActionRefused, Tab, program_of
from agent_gym.envs.miniwob.data import folder_of, pages_of, splits_of
from agent_gym.envs.miniwob.experts import EXPERTS, PageRules
from agent_gym.errors import ConfigError, EnvFailure, one_of, quoted
from agent_gym.images import Content, Image, parts
from agent_gym.tool_env import ToolEnv, random_words, words_of
from agent_gym.tools import ToolCall, ToolResult

_MAX_LINES = 200  # of a page in one observation
_MAX_TEXT = 500  # characters that one call may type
_KEYS = ("Enter", "Tab", "Escape", "ArrowDown", "ArrowUp", "ArrowLeft", "ArrowRight", "Backspace", "Delete", "PageDown")
_KEY = re.compile(rf"((Control|Shift|Alt)\+){{0,2}}([ -~]|{'|'.join(_KEYS)}|PageUp|Home|End|Space)")
_Number = Annotated[int, "the number of an element"]
_X = Annotated[int, Field(ge=0, lt=480, description="pixels from the left")]
_Y = Annotated[int, Field(ge=0, lt=320, description="pixels from the top")]


class MiniWoBEnv(ToolEnv):
    """Do in a small web page what its instruction asks for: click, type, choose, drag.

    ## Description
    The pages of MiniWoB++, as Farama publishes them, in a headless Chromium. Each has one instruction and some widgets:
    forms, tabs, menus, tables, shapes. The environments of a process share a browser, each with a context of its own;
    an episode loads its page anew. Requests for anything but the files of the pages are refused.

    ## Observation
    The instruction, then the page: a line for each element that can be used, with a number, its role, name, value and
    state, and the text between them. An element keeps its number for the episode. Shapes and things to drag have the
    place of their middle and their size, in pixels. Each turn with calls returns the page after it; with
    `screenshots=True` a picture of 160x210 pixels comes with it.

    ## Action
    Calls such as `<tool_call>{"name": "click", "arguments": {"element": 12}}</tool_call>`, several per turn if wanted:
    `click`, `click_at`, `type`, `select`, `press`, `scroll`, `drag`. A turn without a call is answered with an error.

    ## Reward
    - `page` (weight 1): the page's raw reward at the end, -1 to 1, without its decay with time; -1 where the last turn
      does not end it. Some pages, such as `click-checkboxes`, pay for parts.
    - `success` (0): 1 where that is above 0, as in the original.

    ## Episode end
    `terminated` when the page says so. `truncated` after `max_turns` turns. `is_success` is `success`.

    ## Arguments
    - `page`: a page, a group or a list of them. Groups: `solved` (default; the pages that the expert solves), `easy`
      (twenty of them), `all`.
    - `split_by`: "seed" (default): other seeds of all pages; no text that tells a task is in two. "page": other pages.
    - `screenshots`: whether observations have a picture (False), for models that read images.
    - `data`: the folder of the pages (that of `agent-gym prepare miniwob`); own pages of the same protocol work.
    - `browser`: the path of a Chromium (the first on PATH, else playwright's).
    - everything `ToolEnv` and `TextEnv` take; `max_turns` is 20.

    ## Ids
    `AgentR1/MiniWoB-v0`

    ## Data
    The wheel `miniwob` 1.1.0 (MIT, Farama Foundation), by `agent-gym prepare miniwob`, in a Chromium by playwright (the
    extra `miniwob`). Of each page `train` has the seeds 0 to 999, `validation` ten from 1,000,000 and `test` ten from
    2,000,000; a page that shows few texts has other seeds (`splits.json`), and one of one text is in `train` alone.

    ## Differences from the original
    Timers, frames and dates of a page move by one second with each call and stop in between, so that a seed and a list
    of actions always give the same page. The limit of time is off. FlightWoB, whose protocol differs, is left out.

    ## References
    Shi et al., "World of Bits", ICML 2017. Liu et al., "Reinforcement Learning on Web Interfaces using Workflow-Guided
    Exploration", arXiv:1802.08802.

    ## Versions
    v0: first version.
    """

    reward_weights: ClassVar[Mapping[str, float]] = {"page": 1.0, "success": 0.0}
    default_system_prompt: ClassVar[str] = (
        "Use the tools to do in a web page what its instruction asks for. Elements are named by their numbers."
    )

    def __init__(
        self,
        *,
        page: str | Sequence[str] = "solved",
        split_by: str = "seed",
        screenshots: bool = False,
        data: str | Path | None = None,
        browser: str | Path | None = None,
        max_turns: int = 20,
        **kwargs: Any,
    ) -> None:
        self.shows_images = bool(one_of("screenshots", screenshots, (False, True)))
        self._folder = folder_of(data)
        self._program = program_of(browser)
        self._tab: Tab | None = None
        tasks = splits_of(pages_of(page, self._folder, sorted(EXPERTS)), split_by)
        tools: Any = [self.click, self.click_at, self.type, self.select, self.press, self.scroll, self.drag]
        super().__init__(tasks, tools=tools, max_turns=max_turns, **kwargs)

    def categories(self, task: Any) -> dict[str, str]:
        return {"page": str(task["page"])}

    def begin(self, task: Any) -> Content:
        if not (isinstance(task, Mapping) and {"page", "seed"} <= task.keys()):
            raise ConfigError(f"a task has the keys page and seed, got {quoted(task)}")
        self._name = str(one_of("page", task["page"], pages_of("all", self._folder, ())))
        if self._tab is None or not self._tab.chromium.alive:
            self.close()
            self._tab = Tab(self._program, self._folder)
        self._look = self._used("open", self._name, str(task["seed"]))
        return self._shown(f"Instruction: {self._look['asked']}\n\n{self._page()}")

    def close(self) -> None:
        """Close the tab; the browser ends with the last one."""
        if self._tab is not None:
            self._tab.close()
            self._tab = None

    def respond(self, action: str) -> Reply:
        reply = super().respond(action)
        done = bool(self._look["done"])
        if done or self.turn + 1 >= self.max_turns:
            raw = float(self._look["raw"]) if done else -1.0
            reply.terms = reply.metrics = {"page": raw, "success": float(raw > 0)}
            reply.terminated, reply.success = done, raw > 0
        elif self.shows_images and reply.tool_calls:
            reply.text = self._shown("\n".join(call.answer for call in reply.tool_calls))
        return reply

    def answer(self, text: str) -> Reply:
        return Reply("Error: a turn has to call a tool", error="no call")

    def _run(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        """Run the calls one after the other, until the page is over; the last result has the page."""
        results = list[ToolResult]()
        for call in calls:
            over = ToolResult("Error: the page is over", error=True)
            results += [over] if self._look["done"] else super()._run([call])
        if not self._look["done"]:
            results[-1].text += f"\n\n{self._page()}"
        return results

    def _page(self) -> str:
        lines = [one if isinstance(one, str) else one["line"] for one in self._look["lines"]]
        more = [f"({len(lines) - _MAX_LINES} more lines)"] if len(lines) > _MAX_LINES else []
        return "\n".join([*lines[:_MAX_LINES], *more]) or "(the page shows nothing)"

    def _shown(self, text: str) -> Content:
        if not self.shows_images:
            return text
        from PIL import Image as Picture  # here, since most environments show no images

        with Picture.open(io.BytesIO(self._used("picture"))) as picture:
            return parts(f"{text}\n", Image(np.asarray(picture.convert("RGB"))))

    def _used(self, deed: str, *arguments: Any) -> Any:
        """Use the tab; after a failure the next episode has another one."""
        assert self._tab is not None
        try:
            return getattr(self._tab, deed)(*arguments)
        except EnvFailure:
            self.close()
            raise

    def _act(self, deed: str, *arguments: Any) -> ToolResult:
        try:
            self._look = self._used("act", deed, *arguments)
        except ActionRefused as error:
            return ToolResult(f"Error: {error}", error=True)
        return ToolResult("The page is over." if self._look["done"] else "Done.")

    def click(self, element: _Number) -> ToolResult:
        """Click on an element."""
        return self._act("click", element)

    def click_at(self, x: _X, y: _Y) -> ToolResult:
        """Click on a point of the page, which is 160 pixels wide and 210 high."""
        return self._act("click_at", x, y)

    def type(self, element: _Number, text: Annotated[str, "the new text"]) -> ToolResult:
        """Replace the text of a field by typing."""
        if len(text) > _MAX_TEXT:
            return ToolResult(f"Error: the text has {len(text)} characters; at most {_MAX_TEXT} are typed", error=True)
        return self._act("type", element, text)

    def select(self, element: _Number, option: Annotated[str, "its text"]) -> ToolResult:
        """Choose an option of a list; in a list of several choices it is added."""
        return self._act("select", element, option)

    def press(self, key: Annotated[str, "a letter, Enter, Tab, ArrowDown, Control+a ..."]) -> ToolResult:
        """Press a key, in the element that has the focus."""
        if not _KEY.fullmatch(key):
            return ToolResult(f"Error: unknown key {key[:40]!r}; try {', '.join(_KEYS)}", error=True)
        return self._act("press", key)

    def scroll(self, element: _Number, direction: Literal["up", "down"]) -> ToolResult:
        """Scroll the box that an element is in."""
        return self._act("scroll", element, direction)

    def drag(self, element: _Number, x: _X, y: _Y) -> ToolResult:
        """Drag an element by its middle to a point of the page."""
        return self._act("drag", element, x, y)

    def expert_action(self) -> str:
        """Read the page as a policy does; the pages that it can do are the group `solved`."""
        if self._name not in EXPERTS:
            raise ConfigError(f"the expert cannot do the page {self._name!r}; the group 'solved' has those it can")
        try:
            calls = EXPERTS[self._name](PageRules(self._look, self.turn))
        except (StopIteration, LookupError, ValueError) as error:
            asked = quoted(self._look["asked"])
            raise ConfigError(f"the expert's rule of {self._name!r} does not fit the page that asks {asked}") from error
        return "\n".join(self.parser.render(name, arguments) for name, arguments in calls)

    def random_action(self, rng: np.random.Generator) -> str:
        """Use one of the elements of the page at random."""
        view = PageRules(self._look, self.turn)
        if not view.elements:
            return self.parser.render("press", {"key": _KEYS[int(rng.integers(len(_KEYS)))]})
        one = view.elements[int(rng.integers(len(view.elements)))]
        if one.options:
            option = one.options[int(rng.integers(len(one.options)))]
            return self.parser.render("select", {"element": one.number, "option": option})
        if one in view.fields:
            text = random_words(words_of(f"{view.asked}\n{self._page()}"), rng)
            return self.parser.render("type", {"element": one.number, "text": text})
        if one.box and rng.random() < 0.3:
            x, y = (int(rng.integers(size)) for size in SIZE)
            return self.parser.render("drag", {"element": one.number, "x": x, "y": y})
        return self.parser.render("click", {"element": one.number})
