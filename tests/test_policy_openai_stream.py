"""A request to an OpenAI-compatible server that somebody watches: streamed, heard while it comes, and broken off."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("transformers")

from openai_tools import Server, delta, says, serving, streams, watch  # noqa: E402
from rollout_tools import EOS, counting  # noqa: E402

from agent_gym import RolloutError  # noqa: E402
from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.policies import Generation, OpenAIPolicy, Request, SamplingParams  # noqa: E402
from agent_gym.rollout import Episode, Row  # noqa: E402


def test_a_stream_is_heard_while_it_comes(tokenizer: Any) -> None:
    heard: list[int] = []
    first = threading.Event()

    def hear(token: int) -> None:
        heard.append(token)
        first.set()

    def wait() -> None:
        assert first.wait(60), "the first piece must be heard before the second one is sent"

    server = Server(streams(": hello\n\n", delta(None), delta("It is "), wait, delta("24 🙂"), delta("", "stop")))
    with serving(server) as url:
        policy = OpenAIPolicy(url, "m", ChatRenderer.of(tokenizer), token_ids=False)
        episode = Episode(counting(1)[0], rows=[Row()], messages=[{"role": "user", "content": "x"}])
        policy.submit(Request(0, [1], SamplingParams(50), episode, hear))
        found: list[Generation] = []
        while not found:
            found += policy.poll()
        policy.close()
    assert tokenizer.decode(heard) == "It is 24 🙂"
    assert tokenizer.decode(found[0].token_ids[:-1]) == "It is 24 🙂" and found[0].token_ids[-1] == EOS
    assert found[0].finish_reason == "stop" and server.asked[0][1]["stream"] is True


def test_a_stream_of_token_ids(tokenizer: Any) -> None:
    def ids(token_ids: list[int], finish_reason: str | None = None) -> dict[str, Any]:
        logprobs = {"token_logprobs": [-0.5] * len(token_ids)}
        return {"choices": [{"token_ids": token_ids, "logprobs": logprobs, "finish_reason": finish_reason}]}

    class Ids(Server):
        def answer(self, path: str, content: Any, key: str | None) -> tuple[int, Any]:
            assert path.endswith("/completions") and content["stream"] and content["prompt"] == [1]
            return streams(ids([5]), ids([6, 7]), {"choices": [], "usage": {}}, ids([EOS], "stop"), "data: [DONE]\n\n")

    with serving(Ids()) as url:
        heard, found = watch(url, tokenizer, token_ids=True)
    assert heard == found.token_ids == [5, 6, 7, EOS] and found.logprobs == [-0.5] * 4
    assert found.finish_reason == "stop"


def test_a_stream_ends_at_a_stop_string_that_comes_in_pieces(tokenizer: Any) -> None:
    server = Server(streams(delta("a</co"), delta("de>b"), *[delta("never heard")] * 1000, delta("", "length")))
    with serving(server) as url:
        heard, found = watch(url, tokenizer, stop=("</code>",))
    assert tokenizer.decode(heard) == tokenizer.decode(found.token_ids) == "a</code>"
    assert found.finish_reason == "stop_string"


def test_a_stream_that_is_cut_at_the_limit(tokenizer: Any) -> None:
    with serving(Server(streams(delta("on and"), delta(" on", "length")))) as url:
        heard, found = watch(url, tokenizer)
    assert tokenizer.decode(heard) == "on and on" and found.finish_reason == "length"


def test_a_server_that_cannot_stream_answers_as_a_whole(tokenizer: Any) -> None:
    with serving(Server(says("It is 24."))) as url:
        heard, found = watch(url, tokenizer)
    assert heard == [] and tokenizer.decode(found.token_ids[:-1]) == "It is 24."


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ((delta("a"), {"error": {"message": "out of memory"}}), "out of memory"),
        ((delta("a"), "data: {nothing\n\n"), "answered strangely"),
        (("data: 7\n\n",), "answered strangely"),
        (({"choices": [{"text": "a"}]},), "answered strangely"),
        ((delta("a"),), "without saying why"),
        ((delta("a"), "data: [DONE]\n\n"), "without saying why"),
    ],
)
def test_a_broken_stream_is_an_error(tokenizer: Any, pieces: tuple[Any, ...], words: str) -> None:
    with serving(Server(streams(*pieces))) as url, pytest.raises(RolloutError, match=words):
        watch(url, tokenizer)
    with serving(Server((401, {"error": "who"}))) as url, pytest.raises(RolloutError, match="set OPENAI_API_KEY"):
        watch(url, tokenizer)


def test_a_stopped_turn_breaks_the_stream_off(tokenizer: Any) -> None:
    class Enough(Exception):
        pass

    def hear(token: int) -> None:
        raise Enough

    server = Server(streams(*[delta("and on ")] * 200_000))
    with serving(server) as url:
        policy = OpenAIPolicy(url, "m", ChatRenderer.of(tokenizer), token_ids=False)
        episode = Episode(counting(1)[0], rows=[Row()], messages=[{"role": "user", "content": "x"}])
        policy.submit(Request(0, [1], SamplingParams(50), episode, hear))
        with pytest.raises(Enough):
            while True:
                policy.poll()
        policy.abort(0)
        assert server.left.wait(60), "the server goes on writing"
        assert policy.pending == 0 and policy.poll() == []
        policy.close()
