"""A scripted judge: a real server that reads the record in a request and answers by a rule."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from openai_tools import Server, serving

from agent_gym.judges import Judge


class Asked(NamedTuple):
    """What a request to a judge says."""

    mark: str
    parts: dict[str, str]  # text by heading; a heading that comes twice is one too many
    task: str
    count: int
    most: int

    def of(self, name: str) -> list[str]:
        """The texts of the parts whose heading begins so."""
        return [text for heading, text in self.parts.items() if heading.startswith(name)]

    def answers(self, *numbers: int) -> str:
        return json.dumps({"reason": "a script", self.mark: [*numbers]})


def read(prompt: str) -> Asked:
    mark = re.search("holds the code ([0-9a-f]{16})", prompt)[1]  # type: ignore[index]
    record, _, rest = prompt.partition(f"[{mark} end of the record]")
    cut = re.split(rf"^\[{mark} (.*)\]$", record, flags=re.MULTILINE)[1:]
    parts = [(heading, text.strip("\n")) for heading, text in zip(cut[::2], cut[1::2], strict=True)]
    assert len(dict(parts)) == len(parts), [heading for heading, _ in parts]
    most, count = re.findall(r"from 0 to (\d+)\. The list has (\d+) of them", rest)[-1]
    return Asked(mark, dict(parts), rest.partition("\n\nAnswer with one JSON")[0].strip(), int(count), int(most))


class JudgeServer(Server):
    """Answers with what `rule` makes of a request: numbers, a text, an HTTP status, or None for an answer that never
    comes. `gate` holds answers back until it is set."""

    def __init__(self, rule: Callable[[Asked], Any], *, usage: bool = True) -> None:
        super().__init__()
        self.rule, self.usage, self.seen = rule, usage, list[Asked]()
        self.gate, self.left, self.most_at_once, self._now = threading.Event(), threading.Event(), 0, 0
        self.gate.set()

    def answer(self, path: str, content: Any, key: str | None) -> tuple[int, Any]:
        if path.endswith("/models"):
            return super().answer(path, content, key)
        asked = read(content["messages"][-1]["content"])
        with self.lock:
            self.asked.append((path, content, key))
            self.seen.append(asked)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        assert self.gate.wait(30)
        made = self.rule(asked)
        if made is None:
            self.left.wait(30)
        with self.lock:
            self._now -= 1
        if isinstance(made, int):
            return made, {"error": {"message": "a script"}}
        text = made if isinstance(made, str) or made is None else asked.answers(*made)
        usage = {"usage": {"prompt_tokens": 100, "completion_tokens": 10}} if self.usage else {}
        return 200, {"choices": [{"message": {"content": text}, "finish_reason": "stop"}], **usage}


@contextmanager
def judged_by(
    rule: Callable[[Asked], Any], kind: str = "rubric", *args: Any, usage: bool = True, **settings: Any
) -> Iterator[tuple[Judge, JudgeServer]]:
    """A judge at a scripted server; `settings` over some that lose no time."""
    server = JudgeServer(rule, usage=usage)
    criteria = [{"It is good.": 1.0}] if kind == "rubric" and not args else args
    with serving(server) as url:
        values = {"retries": 0, "timeout": 20.0, **settings}
        with closing(getattr(Judge, kind)(*criteria, endpoint=url, **values)) as judge:
            yield judge, server
            server.left.set()
