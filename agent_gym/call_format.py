"""How a model writes calls of tools, and how its chat template writes their answers: read off the template.

A conversation with a real call is rendered: tools, a user, an assistant with `tool_calls`, and the tools' answers. The
parser of each known family reads the template's text of the call. So a model that is trained on calls in
the form of Llama 3 is told of that form, is read in that form, and is shown demonstrations in that form. Where no
family reads the call, or the template knows no calls, the system prompt describes the tools in Hermes form, and the
template is given none: the policy must never be told of one form and be read in another.
"""

from __future__ import annotations

import json
import logging
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

from agent_gym.errors import ConfigError
from agent_gym.formats.calls import Parser, ToolCall, ToolSchema
from agent_gym.formats.families import FAMILIES
from agent_gym.formats.harmony import HarmonyParser
from agent_gym.formats.json_calls import HermesParser
from agent_gym.formats.native import NativeParser
from agent_gym.formats.react import ReActParser
from agent_gym.messages import Message

Render = Callable[..., str]
"""From messages, and the keyword arguments of `apply_chat_template`, to a text; `ConfigError` if that is refused."""

_LOG = logging.getLogger("agent_gym")
MARK = "QxSentinelxQ"
"""Plain letters, so that no template trims, escapes or tokenises it into something else."""
_ARGUMENT = "text"
_ASKED: Message = {"role": "user", "content": "a"}
_NAME = "lookup"


def schema_of(name: str) -> dict[str, Any]:
    """Make the schema of a tool of this name, with a text and a number."""
    properties = {
        _ARGUMENT: {"type": "string", "description": f"the words of {name}"},
        "number": {"type": "integer", "description": f"the number of {name}"},
    }
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "description": f"What {name} is.", "parameters": parameters}}


_TOOLS = [schema_of(_NAME), schema_of("another")]
_ARGUMENTS = {_ARGUMENT: "two words", "number": 7}
_HERMES = re.compile(r'<tool_call>\s*\{"name"')
_SIGNS = {"<|tool_list_start|>": "lfm2"}
"""The text around the tools in templates that write no calls, and the family of their models."""
_WRITES = re.compile(r"""\.tool_calls|\[["']tool_calls""")
_TOKENS = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]")
_TOKEN = re.compile(r"\s*(<[^<>\s]+>|\[[A-Z_]+\])")


class Written(NamedTuple):
    """How a template takes calls: ids as a function of name and place, and arguments as texts or objects."""

    id_of: str
    as_text: bool

    def message(self, calls: Sequence[ToolCall]) -> Message:
        """An assistant's message with calls."""
        made = []
        for place, call in enumerate(calls):
            arguments: Any = json.dumps(call.arguments, ensure_ascii=False) if self.as_text else call.arguments
            function = {"name": call.name, "arguments": arguments}
            made.append({"id": self.id(call, place), "type": "function", "function": function})
        return {"role": "assistant", "content": "", "tool_calls": made}

    def id(self, call: ToolCall, place: int) -> str:
        """The id of a call: its own, or one that templates take."""
        return call.id or self.id_of.format(name=call.name, place=place)


# Mistral wants nine letters and digits. Kimi writes the name as a part of the id, and of nothing else.
_IDS = "call0000{place}", "functions.{name}:{place}"
_FORMS = [Written(number, as_text) for number in _IDS for as_text in (False, True)]


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The form of calls that a model was trained on, and how its template writes answers.

    Attributes:
        parser: reads and writes calls.
        known: whether the parser is the template's own and not a substitute.
        in_template: whether the template describes the tools, in the form that the parser reads. Else the system prompt
            has to, and the template gets none.
        answer_role: of the answers of tools, "tool" or "user".
        written: the form in which the template takes calls.
        structured: whether answers are rendered after calls; else the template writes the same after any turn.
        parallel: whether several calls may come before answers.
        tools_in_turns: whether tools change the template's text after a turn.
        counts: whether earlier turns do (past_turns.py).
        end: the text of the token that ends a turn with calls, where other turns end with another one.
        end_closes: whether it does no more than that (Harmony's <|call|>); else it is the header of the answer, too
            (Gemma 4's <|tool_response>).
        heads: the template's text before the words of a turn, before words that calls follow, and between both, where
            that is markup (the channels of Harmony).
        told: all of this in one line.
    """

    parser: NativeParser
    known: bool
    in_template: bool
    answer_role: str
    written: Written
    structured: bool = False
    parallel: bool = True
    tools_in_turns: bool = False
    counts: bool = False
    end: str = ""
    end_closes: bool = False
    heads: tuple[str, str, str] = ("", "", "")
    told: str = ""

    def say(self) -> None:
        """Say it, each line once: a warning unless it is Hermes, described by the template and answered by tools."""
        usual = self.in_template and self.answer_role == "tool" and family_name(self.parser) == "hermes"
        if usual:
            _LOG.info(self.told)
        else:
            warnings.warn(self.told, RuntimeWarning, stacklevel=2)

    def as_written(self, text: str) -> str:
        """Write the turn of a script as the model would: several calls together; in Harmony words have a channel."""
        head, head_of_calls, between = self.heads
        if not head:
            return self.parser.together(text)
        if not text or text.lstrip().startswith(head.lstrip().split(">")[0]):
            return text
        turn = self.parser.split(text)
        if not turn.calls:
            return head + text
        if not turn.content or any(call.error for call in turn.calls):
            return text
        return f"{head_of_calls}{turn.content}{between}{self.parser.render_calls(turn.calls)}"

    def fits(self, parser: Parser) -> bool:
        """Whether the template describes the tools in the form that this parser reads."""
        return self.in_template and family_name(parser) == family_name(self.parser)


class Template:
    """The queries of the probe to a chat template; `ChatRenderer` has the others."""

    def __init__(self, render: Render, source: str, ends: Collection[str], special: Collection[str]) -> None:
        self.render, self.source = render, source
        self.ends = set(ends)  # texts of tokens that end a turn
        self.special = special  # texts of all special tokens

    def tries(self, messages: Sequence[Message], **kwargs: Any) -> str:
        """Render; "" if the template refuses."""
        try:
            return self.render(messages, **kwargs)
        except ConfigError:
            return ""

    def without_end(self, text: str) -> str:
        """Take off the end of a turn, and the spaces before it."""
        text = text.rstrip()
        end = next(filter(text.endswith, self.ends), "")
        return text.removesuffix(end).rstrip()

    def turn(self, calls: Sequence[ToolCall], written: Written) -> str:
        """The turn that the template writes of calls; "" if it refuses them."""
        prompt = self.tries([_ASKED], tools=_TOOLS, add_generation_prompt=True)
        whole = self.tries([_ASKED, written.message(calls)], tools=_TOOLS)
        if not whole:  # some refuse a call without its answer
            answers = [_answer(call, written, place) for place, call in enumerate(calls)]
            whole = self.tries([_ASKED, written.message(calls), *answers], tools=_TOOLS)
        start = len(prompt)
        if not whole.startswith(prompt):  # the prompt begins a thought, for example, that is empty in history
            start = next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(whole))
            tag = whole.rfind("<", 0, start)
            start = tag if tag > whole.rfind(">", 0, start) else start
        found = [place for end in self.ends if (place := whole.find(end, start)) >= 0]
        return whole[start : min(found, default=len(whole))].strip()

    def behind_calls(
        self,
        parser: NativeParser,
        written: Written,
        answers: Sequence[Message],
        rest: Sequence[Message] = (),
        past: Sequence[Message] = (),
        **kwargs: Any,
    ) -> str:
        """Render the text after calls that tools answered: the end of the turn, the answers, and the rest.

        Raises:
            ConfigError: if the template refuses, or the end of the calls is not found.
        """
        calls = made_up(answers, MARK)
        named = [{"tool_call_id": written.id(call, place), **one} for place, (call, one) in _numbered(calls, answers)]
        try:
            text = self.render([_ASKED, *past, written.message(calls), *named, *rest], **kwargs)
        except ConfigError:  # Mistral takes ids of nine letters and digits only, and a policy may write others
            for call in calls:
                call.id = None
            named = [{**one, "tool_call_id": written.id(call, n)} for n, (call, one) in _numbered(calls, answers)]
            text = self.render([_ASKED, *past, written.message(calls), *named, *rest], **kwargs)
        # An answer may quote the mark too (a policy can make a tool say anything): the first one is in the calls.
        _, found, tail = text.partition(MARK)
        closing = self.without_end(parser.render_calls(calls)).rpartition(MARK)[2]
        cut = behind(tail, 0, closing)
        if cut is None:  # the template writes more than the parser does; a token that ends the turn is its end
            cut = min((place for end in self.ends if (place := tail.find(end)) >= 0), default=None)
        if not found or cut is None:
            raise ConfigError("the end of the calls of tools is not found in what the chat template writes of them")
        return tail[cut:]

    def forms(
        self, parser: NativeParser, answers: Sequence[Message], mark: str, made: int
    ) -> Iterator[tuple[str, str]]:
        """Yield how calls that tools answered may be written, before and behind the mark; `made` calls precede them.

        The template may number the calls itself (Command-A), and open the block of calls once in a conversation
        (DeepSeek V3).
        """
        calls = made_up(answers, mark)
        for some in (calls, [replace(call, id=None) for call in calls]):
            opened, _, closed = parser.render_calls(some, made).partition(mark)
            yield opened, closed
            if block := _TOKEN.match(opened):
                yield opened[block.end() :], closed

    def answers_calls(self, call_format: CallFormat) -> bool:
        """Whether it writes an answer of a tool behind a real call."""
        answer = _answer(ToolCall(_NAME), call_format.written, 0)
        try:
            text = self.behind_calls(call_format.parser, call_format.written, [answer], tools=_TOOLS)
        except ConfigError:
            return False
        return call_format.known and call_format.answer_role == "tool" and str(answer["content"]) in text


def _numbered(calls: Sequence[ToolCall], answers: Sequence[Message]) -> list[tuple[int, tuple[ToolCall, Message]]]:
    return [*enumerate(zip(calls, answers, strict=True))]


def _answer(call: ToolCall, written: Written, place: int) -> Message:
    return {"role": "tool", "name": call.name, "tool_call_id": written.id(call, place), "content": f"said{place}"}


def behind(text: str, start: int, words: str) -> int | None:
    """Return where `words`, which begin at `start` of a text, end in it; None if they do not. Spaces do not count."""
    for letter in filter(str.strip, words):
        while text[start : start + 1].isspace():
            start += 1
        if text[start : start + 1] != letter:
            return None
        start += 1
    return start


def made_up(answers: Sequence[Message], mark: str) -> list[ToolCall]:
    """Make up the calls that tools answered; the argument of the last one is the mark."""
    calls = []
    for place, answer in enumerate(answers, 1):
        call = ToolCall(str(answer.get("name") or "tool"), {_ARGUMENT: mark if place == len(answers) else "a"})
        call.id = answer.get("tool_call_id")
        calls.append(call)
    return calls


def probe(
    template: Template, families: Sequence[NativeParser], plain: Callable[..., str], prints_tools: bool
) -> CallFormat:
    """Read the form of calls off a chat template.

    Args:
        template: the template.
        families: parsers, in the order in which they are tried.
        plain: from answers, and keyword arguments of the template, to its text after a plain turn.
        prints_tools: whether it describes the tools that it is given.
    """
    found = _family(template, families)
    parser, written = found or (None, _FORMS[0])
    if parser is None and prints_tools:
        parser = _stated(template, families, plain)
    end = _end(template, parser, written) if found and parser else ""
    template.ends |= {end} - {""}
    role, structured, parallel = _answers(template, parser, written, plain)
    made = CallFormat(
        parser=parser or HermesParser(),
        known=parser is not None,
        in_template=parser is not None and prints_tools,
        answer_role=role,
        written=written,
        structured=structured,
        parallel=parallel,
        end=end,
        end_closes=bool(end) and _closes(template, parser, written, end),
        heads=_heads(template, parser, written) if found and parser else ("", "", ""),
    )
    return replace(made, tools_in_turns=_tools_in_turns(template, made, plain), told=_told(made, bool(found)))


def _family(template: Template, families: Sequence[NativeParser]) -> tuple[NativeParser, Written] | None:
    """Find the first parser that reads the calls that the template writes, and how it takes them."""
    call = ToolCall(_NAME, dict(_ARGUMENTS))
    for written in _FORMS:
        text = template.turn([call], written)
        for parser in families if text else ():
            calls = parser.for_tools(_TOOLS).parse(text)
            if [(one.name, one.arguments, one.error) for one in calls] == [(_NAME, _ARGUMENTS, None)]:
                return parser, written
    return None


def _stated(template: Template, families: Sequence[NativeParser], plain: Callable[..., str]) -> NativeParser | None:
    """Find the form of a template that describes tools and writes no calls.

    That is Hermes where its example or its tag around answers is there; else the family whose opening token the
    tokenizer has, or the description names.
    """
    prompt = template.tries([_ASKED], tools=_TOOLS)
    hermes = next(parser for parser in families if isinstance(parser, HermesParser))
    if _HERMES.search(prompt):
        return hermes
    if _WRITES.search(template.source):  # it writes calls that it is not given so, or in a form that is not known
        found = {one: _TOKENS.findall(one.render(_NAME, {_ARGUMENT: "a"})) for one in families}
        known = [one for one, own in found.items() if own and all(token in template.source for token in own)]
        return known[0] if len(known) == 1 else None
    for parser in families:
        if parser.family == _SIGNS.get(next(filter(prompt.__contains__, _SIGNS), "")):
            return parser
        begin = _TOKEN.match(parser.render(_NAME, {}).partition(_NAME)[0])
        if begin and begin[1] != "<tool_call>" and (begin[1] in template.special or begin[1] in prompt):
            return parser
    try:
        answered = "<tool_response>" in plain([{"role": "tool", "name": _NAME, "content": "b"}])
    except ConfigError:
        answered = False
    return hermes if answered and "<tool_call>" not in prompt else None


def _answers(
    template: Template, parser: NativeParser | None, written: Written, plain: Callable[..., str]
) -> tuple[str, bool, bool]:
    """Return the role of answers, whether they need calls before them, and whether these may be several."""

    def tail(count: int, structured: bool) -> str:
        calls = [ToolCall(_NAME, dict(_ARGUMENTS)) for _ in range(count)]
        answers = [_answer(call, written, place) for place, call in enumerate(calls)]
        made = ""
        with suppress(ConfigError):
            if not structured:
                made = plain(answers, tools=_TOOLS, add_generation_prompt=True)
            elif parser is not None:
                made = template.behind_calls(parser, written, answers, tools=_TOOLS, add_generation_prompt=True)
        return made.lstrip() if all(str(answer["content"]) in made for answer in answers) else ""

    one, two = tail(1, False), tail(2, False)
    real_one, real_two = tail(1, True), tail(2, True)
    if not real_one:
        return ("tool" if one and two else "user"), False, True
    plain_will_do = one == real_one and real_two in ("", two)
    return "tool", not plain_will_do, bool(two if plain_will_do else real_two)


def _end(template: Template, parser: NativeParser, written: Written) -> str:
    """Return the token that ends a turn with a call, if other turns end with another one (Harmony's <|call|>)."""
    call = ToolCall(_NAME, dict(_ARGUMENTS))
    text = template.tries([_ASKED, written.message([call])], tools=_TOOLS).rstrip()
    last = max(filter(text.endswith, template.special), key=len, default="")
    if not last or last in template.ends:
        return ""
    calls = parser.for_tools(_TOOLS).parse(text.removesuffix(last))  # a token that every call needs is a part of it
    return last if [(one.name, one.error) for one in calls][-1:] == [(_NAME, None)] else ""


def _closes(template: Template, parser: NativeParser | None, written: Written, end: str) -> bool:
    """Whether the header of an answer follows the end of a turn with calls."""
    answer = _answer(ToolCall(_NAME), written, 0)
    try:
        tail = template.behind_calls(parser or HermesParser(), written, [answer], tools=_TOOLS).lstrip()
    except ConfigError:
        return False
    return tail.startswith(end) and tail.removeprefix(end).lstrip().startswith(tuple(template.special))


def _heads(template: Template, parser: NativeParser, written: Written) -> tuple[str, str, str]:
    """Read `CallFormat.heads` off the template."""
    prompt = template.tries([_ASKED], add_generation_prompt=True)
    head = template.tries([_ASKED, {"role": "assistant", "content": MARK}, _ASKED]).partition(MARK)[0]
    head = head[len(prompt) :] if head.startswith(prompt) else ""
    if not any(head.endswith(token) for token in template.special):
        return "", "", ""
    call = ToolCall(_NAME, dict(_ARGUMENTS))
    prompt = template.tries([_ASKED], tools=_TOOLS, add_generation_prompt=True)
    whole = template.tries([_ASKED, {**written.message([call]), "content": MARK}], tools=_TOOLS)
    before, _, after = whole.partition(MARK)
    between = after.partition(parser.render_calls([call]))[0]
    known = before.startswith(prompt) and between != after
    return head, before[len(prompt) :] if known else head, between if known else "\n"


def said(parser: Parser, text: str) -> str:
    """Return the text of a turn without calls for the world: without the channels of families that have some."""
    if isinstance(parser, ReActParser) and parser.finish and "<answer>" in (tagged := parser.tagged(text)):
        return tagged  # `Finish[72]` states an answer, which environments read in tags
    return parser.split(text).content if isinstance(parser, HarmonyParser) else text


def _tools_in_turns(template: Template, call_format: CallFormat, plain: Callable[..., str]) -> bool:
    call = ToolCall(_NAME, dict(_ARGUMENTS))
    answers = [{**_answer(call, call_format.written, 0), "role": call_format.answer_role}]

    def tail(**kwargs: Any) -> str:
        with suppress(ConfigError):
            if call_format.structured:
                parser, written = call_format.parser, call_format.written
                return template.behind_calls(parser, written, answers, add_generation_prompt=True, **kwargs)
            return plain(answers, add_generation_prompt=True, **kwargs)
        return ""

    return call_format.in_template and tail(tools=_TOOLS) != tail()


def _told(call_format: CallFormat, shown: bool) -> str:
    family = family_name(call_format.parser)
    if not call_format.known:
        form = "in Hermes form, with the tools in the system prompt, as the template has no known form of calls"
    elif not call_format.in_template:
        form = f"in the template's form, {family}, with the tools in the system prompt, as it describes none"
    else:
        form = f"in the form {family}, which the chat template {'writes' if shown else 'asks for'}"
    return f"calls of tools are {form}; answers come as {call_format.answer_role} messages"


def family_name(parser: Parser) -> str:
    """Return the name of the family of a parser; one that names none writes calls as Hermes does."""
    return getattr(parser, "family", "") or "hermes"


def for_model(given: Parser | str | None, model: NativeParser, tools: Sequence[ToolSchema]) -> Parser:
    """Return the parser of an environment for a model that writes calls as the parser `model` reads them.

    A parser that was given stays, unless it reads calls and other text, as its method `around` says.
    """
    model = model.for_tools(tools)
    if given is None:
        return model
    if isinstance(given, str):
        raise ConfigError(f"parser is {given!r}, a name that this environment has not: leave it out, or give a Parser")
    around = getattr(given, "around", None)
    return given if around is None else around(model)


@cache
def families() -> tuple[NativeParser, ...]:
    """The parsers of all known families, in the order in which they are tried."""
    return (HermesParser(), *(family.make() for family in FAMILIES.values() if family.make is not HermesParser))
