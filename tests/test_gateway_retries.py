"""What becomes of requests whose answers do not arrive: sent again, cut off in the middle, or given up."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any

import httpx
import pytest
from gateway_tools import RETRY, play_agent, run
from process_tools import until
from rollout_tools import scripted

from agent_gym.gateway.server import shared_gateway
from agent_gym.rollout import Budget

openai = pytest.importorskip("openai")
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "a"}]}


def test_a_stream_that_is_cut_in_the_middle_and_asked_for_again_is_the_same_answer(tokenizer: Any) -> None:
    """The answer is longer than what the systems on both sides keep, so that the server sees that it is cut."""
    words, body = "word " * 20_000, {**ASK, "stream": True, "logprobs": True}

    def agent(client: Any, task: Any) -> tuple[str, str, str]:
        small = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 12)]
        http = httpx.Client(transport=httpx.HTTPTransport(socket_options=small), timeout=60)
        with client.with_options(http_client=http, max_retries=0).chat.completions.create(**body) as stream:
            first = [next(stream).id for _ in range(9)][-1]
        http.close()
        chunks = list(client.chat.completions.create(**body))
        (other,) = {chunk.id for chunk in client.chat.completions.create(**body)}
        return first, chunks[-1].id, other

    results: list[Any] = []
    policy = scripted(tokenizer, lambda episode: words if not episode.steps else "short")
    (episode,) = play_agent(
        agent, tokenizer, [{}], lambda task, result, talk: results.append(result) or 1.0, policy,
        Budget(max_turn_tokens=400_000, max_tokens=800_000),
    )  # fmt: skip
    assert episode.failure is None, episode.failure.traceback
    ((first, again, other),) = results
    assert first == again != other, "the third request is one of its own: the answer had arrived"
    assert [step.action for step in episode.steps] == [words, "short"]


def test_what_the_client_marks_as_a_repetition_is_sampled_once(tokenizer: Any) -> None:
    def agent(client: Any, task: Any) -> list[str]:
        headers = [None, RETRY, RETRY, None]
        return [client.chat.completions.create(**ASK, extra_headers=one).id for one in headers]

    episode, ids = run(agent, tokenizer, ["One.", "Two."])
    assert ids[0] == ids[1] == ids[2] != ids[3]
    assert [step.action for step in episode.steps] == ["One.", "Two."] and len(episode.rows) == 2


def test_a_request_whose_client_is_gone_before_its_turn_is_dropped(tokenizer: Any) -> None:
    gone = threading.Event()

    def agent(client: Any, task: Any) -> str:
        session = next(one for one in shared_gateway().sessions if one.key == client.api_key)
        waiting = threading.Thread(target=client.chat.completions.create, kwargs=ASK)
        waiting.start()
        assert writing.wait(60)
        url, words = httpx.URL(str(client.base_url)), b'{"messages": [{"role": "user", "content": "never mind"}]}'
        head = f"POST {url.path}chat/completions HTTP/1.1\r\nHost: {url.host}\r\nContent-Length: {len(words)}\r\n\r\n"
        with socket.create_connection((url.host, url.port)) as connection:
            connection.sendall(head.encode() + words)
            until(lambda: session._inbox.qsize())
        until(lambda: sum(one.waiting for one in session._known.values()) == 1)
        gone.set()
        waiting.join()
        return client.chat.completions.create(**{**ASK, "messages": [{"role": "user", "content": "b"}]}).id

    writing = threading.Event()

    def write(episode: Any) -> str:
        if not episode.steps:
            writing.set()
            assert gone.wait(60)
        return "Yes."

    (episode,) = play_agent(agent, tokenizer, [{}], None, scripted(tokenizer, write))
    assert episode.failure is None, episode.failure.traceback
    asked = [one["content"] for one in episode.messages if one["role"] == "user"]
    assert asked == ["a", "b"] and len(episode.steps) == 2


def test_each_of_several_equal_requests_gets_an_end(tokenizer: Any) -> None:
    """A vote: the same words several times at once, of which a limit lets only some be answered."""
    ends: list[int] = []

    def agent(client: Any, task: Any) -> None:
        def vote() -> None:
            with suppress(openai.APIStatusError):
                ends.append(len(client.chat.completions.create(**ASK).choices))
                return
            ends.append(0)

        votes = [threading.Thread(target=vote, daemon=True) for _ in range(4)]
        for one in votes:
            one.start()
        for one in votes:
            one.join()

    (episode,) = play_agent(agent, tokenizer, [{}], policy=scripted(tokenizer, lambda episode: "Yes."), max_turns=2)
    assert episode.truncation == "turns" and len(episode.steps) == 2
    until(lambda: len(ends) == 4)
    assert sorted(ends) == [0, 0, 1, 1]
