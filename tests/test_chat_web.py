"""The chat's web page: what its server answers, and what a browser makes of it, by keys and clicks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser
from process_tools import until
from serve_tools import CALL, HOSTILE, Served, ask

from agent_gym.errors import EnvFailure


@pytest.fixture
def served() -> Iterator[Served]:
    with Served([CALL, "It is 24. " + HOSTILE, CALL.replace("48/2", "48/0"), "That cannot be."]) as chat:
        yield chat


def test_events_are_streamed_and_continued_where_they_broke_off(served: Served) -> None:
    assert ask(served.url, "/say", {"text": "What is 48/2?"})[:2] == (200, {})
    events = served.events(6)
    first = events[0][0]
    assert [number for number, _ in events] == list(range(first, first + 6))
    kinds = [event["kind"] for _, event in events]
    assert kinds[:3] == ["begin", "person", "text"] and events[0][1]["env_id"] == "AgentR1/GSM8K-v0"
    served.wait()
    everything = served.events(len(served.server._events))
    assert everything[-1][1]["kind"] == "end"
    assert served.events(2, **{"Last-Event-ID": str(first + 4)}) == everything[5:7]
    last = everything[-1][0]
    assert ask(served.url, "/reset", {})[0] == 200
    # What was before is gone, and the numbers go on.
    (begin,) = served.events(1, **{"Last-Event-ID": str(last)})
    assert begin == (last + 1, everything[0][1])
    with Served(["Hello."]) as another:  # a page that was open when the server was started again
        assert another.server._first > last + 1  # else the next line waits for ever
        assert another.events(1, **{"Last-Event-ID": str(last + 1)})[0][1]["kind"] == "begin"


def test_one_at_a_time_and_a_trajectory_when_there_is_one(served: Served) -> None:
    status, answer, _ = ask(served.url, "/trajectory")
    assert status == 409 and "write something first" in answer["detail"]
    going = threading.Event()
    served.pause = lambda: going.wait(30)  # type: ignore[assignment, return-value]
    served.say("What is 48/2?")
    assert served.say("b") == 409 and ask(served.url, "/reset", {})[0] == 409
    assert ask(served.url, "/trajectory")[0] == 409
    going.set()
    served.wait()
    status, line, _ = ask(served.url, "/trajectory")
    assert status == 200 and json.loads(line)["messages"][-1]["role"] == "assistant"
    assert served.say("b") == 200


def test_a_world_that_does_not_begin_ends_no_server(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise EnvFailure("the sandbox is gone")

    monkeypatch.setattr(served.server._conversation, "reset", fail)
    assert ask(served.url, "/reset", {})[0] == 200
    served.wait()
    end = served.server._events[-1]
    assert (end["reason"], end["text"]) == ("failed", "the sandbox is gone")
    assert served.say("What is 48/2?") == 200


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [("/say", {"text": " "}, 400), ("/say", "[", 400), ("/say", {"text": "x" * (1 << 19)}, 413), ("/x", {}, 404)],
)
def test_wrong_requests_are_refused(served: Served, path: str, body: Any, status: int) -> None:
    assert ask(served.url, path, body)[0] == status
    assert [event["kind"] for event in served.server._events] == ["begin"]


def visit(browser: Browser, url: str, **screen: Any) -> None:
    browser.open(url, **screen)
    until(lambda: browser.js("document.title") != "Chat")


def write(browser: Browser, text: str) -> None:
    browser.send("Input.insertText", text=text)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_a_person_talks_in_a_browser(served: Served, tmp_path: Path) -> None:
    with Browser(tmp_path) as browser:
        visit(browser, served.url)
        assert browser.texts("#title") == ["AgentR1/GSM8K-v0"] and browser.js("document.activeElement.id") == "text"
        write(browser, "What is 48/2? " + HOSTILE)
        browser.press("Enter")
        until(lambda: browser.texts(".end"))
        assert browser.texts(".person") == ["What is 48/2? " + HOSTILE]
        assert browser.texts(".card .name") == ["calculator"] and browser.texts(".card .result") == ["24"]
        assert browser.texts(".turn")[-1] == "It is 24. " + HOSTILE
        assert browser.js("document.querySelectorAll('img, #talk script').length") == 0
        assert browser.js("document.title") == "Chat: AgentR1/GSM8K-v0"
        # A reload loses nothing.
        visit(browser, served.url, width=380, height=720, dark=True, touch=True)
        until(lambda: browser.texts(".end"))
        assert len(browser.texts(".card")) == 1
        assert browser.js("document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"
        # A failed call, and a line break that does not send.
        browser.js("document.getElementById('text').focus()")
        write(browser, "Divide\nby zero")
        browser.press("Enter")
        until(lambda: len(browser.texts(".end")) == 2)
        assert browser.js("document.querySelectorAll('.card.failed').length") == 1
        main = "document.querySelector('main')"
        assert browser.js(f"{main}.scrollHeight - {main}.scrollTop - {main}.clientHeight < 5"), "the end is in sight"
        browser.click("#reset")
        until(lambda: not browser.texts(".person"))
        assert browser.errors == []


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_escape_stops_the_policy(tmp_path: Path) -> None:
    with Served(["never heard " * 20, "heard"]) as served, Browser(tmp_path) as browser:
        visit(browser, served.url)
        stopping = threading.Event()
        served.pause = lambda: stopping.wait(30)  # type: ignore[assignment, return-value]
        write(browser, "Talk.")
        browser.press("Enter")
        until(lambda: browser.js("!document.getElementById('stop').hidden"))
        browser.press("Escape")
        until(served.server._conversation._stopped.is_set)
        stopping.set()
        until(lambda: browser.texts(".end"))
        assert "stopped" in browser.texts(".end")[0] and browser.js("document.getElementById('stop').hidden")
        write(browser, "Again.")
        browser.press("Enter")
        until(lambda: len(browser.texts(".end")) == 2)
        assert browser.texts(".turn")[-1] == "heard" and browser.errors == []
