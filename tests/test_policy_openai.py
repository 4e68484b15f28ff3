"""OpenAI-compatible servers as policies: a real vLLM server, and a small one of our own for what goes wrong."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from cli_tools import complaint  # noqa: E402
from model_server import free_port, model_server  # noqa: E402
from openai_tools import Server, conversation, delta, policy_at, says, serving, streams, submit, watch  # noqa: E402
from process_tools import until  # noqa: E402
from rollout_tools import EOS, counting  # noqa: E402
from rollout_tools import play as play_with  # noqa: E402
from tiny import make_tiny_model  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from agent_gym import ConfigError, RolloutError  # noqa: E402
from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.cli.main import main  # noqa: E402
from agent_gym.evaluate import make_specs  # noqa: E402
from agent_gym.policies import Policy, Request, SamplingParams  # noqa: E402
from agent_gym.policies.openai import find_model  # noqa: E402
from agent_gym.rollout import Budget, EpisodeSpec, read_trajectories  # noqa: E402

GSM8K = "AgentR1/GSM8K-v0"


def play(server: Server | str, tokenizer: Any, specs: list[Any], *, context: str = "append", **settings: Any) -> Any:
    with policy_at(server, tokenizer, **settings) as policy:
        return play_with(policy, tokenizer, specs, Budget(64, 1000), 0.7, context=context)


def ids(token_ids: list[Any], finish_reason: str | None = None, logprobs: list[float] | None = None) -> dict[str, Any]:
    values = [-0.5] * len(token_ids) if logprobs is None else logprobs
    choice = {"token_ids": token_ids, "logprobs": {"token_logprobs": values}, "finish_reason": finish_reason}
    return {"choices": [choice]}


def test_texts_become_turns(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "6*7"}}</tool_call>'
    server = Server(says(call + call), says("<answer>42</answer>"))
    (episode,) = play(server, tokenizer, make_specs(GSM8K, split="test", episodes=1))
    assert [step.action for step in episode.steps] == [call + call, "<answer>42</answer>"]
    assert episode.terminated and not any(episode.rows[0].logprobs)
    (_, first, key), (path, second, _) = server.asked
    assert path == "/v1/chat/completions" and key == "Bearer secret"
    assert (first["model"], first["temperature"], first["max_tokens"]) == ("m", 0.7, 64) and first["seed"] >= 0
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    # Two results, one message: templates want the roles to take turns.
    assert second["messages"][2:] == [
        {"role": "assistant", "content": call + call},
        {"role": "user", "content": "42\n42"},
    ]


def test_stop_strings_and_cut_turns(tokenizer: Any) -> None:
    params = SamplingParams(50, stop=("</code>",))
    server = Server(says("a</code>b</code>"), says("on and on", "length"), says(None))
    with policy_at(server, tokenizer) as policy:
        assert isinstance(policy, Policy)
        found = [generation for i in range(3) for generation in submit(policy, (i, params))]
    assert [generation.finish_reason for generation in found] == ["stop_string", "length", "stop"]
    assert tokenizer.decode(found[0].token_ids) == "a</code>" and tokenizer.decode(found[1].token_ids) == "on and on"
    assert found[2].token_ids == [EOS]
    assert "stop" not in server.asked[0][1], "the server would leave the stop string out of its answer"


def test_a_busy_server_is_asked_again(tokenizer: Any) -> None:
    server = Server((429, {"error": "slow down"}), (503, {}), says("on"), says("stop"))
    (episode,) = play(server, tokenizer, counting(1))
    assert [step.action for step in episode.steps] == ["on", *["stop"] * (len(episode.steps) - 1)]


@pytest.mark.parametrize(
    ("status", "words"),
    [(401, "set OPENAI_API_KEY"), (404, "check --endpoint"), (400, "lower --max_tokens")],
)
def test_a_refusal_ends_the_rollout_with_the_servers_words(tokenizer: Any, status: int, words: str) -> None:
    server = Server((status, {"error": {"message": "because of this"}}))
    with pytest.raises(RolloutError, match=f"answered {status} .*because of this.*{words}|{words}"):
        play(server, tokenizer, counting(2), retries=0)
    assert len(server.asked) <= 2, "asking again would not help"


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": []},
        ids([]),
        ids([5, "six"], "stop"),
        ids([5, EOS], "stop", [-0.5] * 3),
        ids([5, EOS], "stop", [-0.5, float("nan")]),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_with_other_logprobs_than_tokens_or_none_is_an_error(
    tokenizer: Any, answer: dict[str, Any], streamed: bool
) -> None:
    if streamed and not answer["choices"]:
        pytest.skip("an event without a choice counts tokens")
    server = Server(streams(answer, ids([], "stop")) if streamed else (200, answer), ids=True)
    with pytest.raises(RolloutError, match="answered strangely"):
        watch(server, tokenizer, token_ids=True)


def test_a_server_that_went_away_and_a_context_that_is_no_conversation(tokenizer: Any) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    with pytest.raises(RolloutError, match=r"cannot be reached .*tried 2 times"):
        play(url, tokenizer, counting(1), retries=1)
    with pytest.raises(ConfigError, match="--context append"):
        play(Server(says("on")), tokenizer, counting(1), context="window:1")
    spec = EpisodeSpec("AgentR1/Bargain-v0", {"opponent": "self"})
    with pytest.raises(ConfigError, match="several roles.* take a server of token ids"):
        play(Server(says("offer: 0 0 0")), tokenizer, [spec])


def test_requests_run_side_by_side_and_no_more_than_allowed(tokenizer: Any) -> None:
    inside, most, meet = [0], [0], threading.Barrier(3, timeout=20)

    class Slow(Server):
        def answer(self, path: str, content: Any, key: str | None) -> tuple[int, Any]:
            with self.lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            meet.wait()  # three at a time, or it breaks
            with self.lock:
                inside[0] -= 1
            return says("stop")

    episodes = play(Slow(), tokenizer, counting(9), concurrency=3)
    assert len(episodes) == 9 and most[0] == 3


def test_an_aborted_request_is_not_heard_of_nor_taken_for_the_next_of_its_id(tokenizer: Any) -> None:
    params = SamplingParams(5)
    with policy_at(Server(says("old"), says("new")), tokenizer) as policy:
        policy.submit(Request(0, [1], params, conversation()))
        until(lambda: not policy._news.empty())
        policy.abort(0)
        (found,) = submit(policy, (0, params))
        assert tokenizer.decode(found.token_ids) == "new<|im_end|>"


def test_finding_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    two = (200, {"data": [{"id": "a"}, {"id": "b", "root": "x"}]})
    with serving(Server(says(""), models=two)) as url:
        assert find_model(url + "/", "b") == {"id": "b", "root": "x"}
        with pytest.raises(ConfigError, match="no model 'c'; it has: a, b"):
            find_model(url, "c")
        with pytest.raises(ConfigError, match="serves a, b: choose with --model"):
            find_model(url, None)
    with serving(Server(says(""), models=(401, {"error": "who are you"}))) as url:
        with pytest.raises(ConfigError, match="who are you.*set OPENAI_API_KEY"):
            find_model(url, "m")
    with serving(Server(says(""), models=(404, {}))) as url:
        assert find_model(url, "m") == {"id": "m"}, "not every server has a list"
    with serving(Server(says(""), models=(200, "hello"))) as url:
        with pytest.raises(ConfigError, match="not an OpenAI-compatible"):
            find_model(url, "m")
    with pytest.raises(ConfigError, match="must be like 'http"):
        find_model("localhost:8000", "m")


def test_eval_at_an_endpoint_of_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "run.jsonl"
    server = Server(says("<answer>1</answer>"))
    with serving(server) as url:
        arguments = ["eval", GSM8K, "--endpoint", url, "--model", "m", "--episodes", "3", "--output", str(output)]
        assert main(arguments) == 0
        assert main([*arguments[:4], "--episodes", "1"]) == 0, "the only model need not be named"
    captured = capsys.readouterr()
    assert f"{GSM8K}, m: 3 tasks" in captured.out and "takes messages and gives texts" in captured.err
    records = list(read_trajectories(output))
    assert len(records) == 3 and {record["policy"] for record in records} == {"m"}
    chats = [content for path, content, _ in server.asked if path.endswith("/chat/completions")]
    assert "calculator" in chats[0]["messages"][0]["content"], "the tools stand in the system prompt"
    missing = f"http://127.0.0.1:{free_port()}/v1"
    assert f"no model server at {missing}" in complaint(capsys, "eval", GSM8K, "--endpoint", missing)


# Streams.


def test_a_stream_is_heard_while_it_comes(tokenizer: Any) -> None:
    heard: list[int] = []
    first = threading.Event()

    def hear(token: int) -> None:
        heard.append(token)
        first.set()

    def wait() -> None:
        assert first.wait(60), "the first piece must be heard before the second one is sent"

    server = Server(streams(": hello\n\n", delta(None), delta("It is "), wait, delta("24 🙂"), delta("", "stop")))
    with policy_at(server, tokenizer) as policy:
        (found,) = submit(policy, (0, SamplingParams(50)), on_token=hear)
    assert tokenizer.decode(heard) == "It is 24 🙂"
    assert tokenizer.decode(found.token_ids[:-1]) == "It is 24 🙂" and found.token_ids[-1] == EOS
    assert found.finish_reason == "stop" and server.asked[0][1]["stream"] is True


def test_a_stream_of_token_ids(tokenizer: Any) -> None:
    events = ids([5]), ids([6, 7]), {"choices": [], "usage": {}}, ids([EOS], "stop"), "data: [DONE]\n\n"
    server = Server(streams(*events), ids=True)
    heard, found = watch(server, tokenizer, token_ids=True)
    assert server.asked[0][1]["stream"] and server.asked[0][1]["prompt"] == [1]
    assert heard == found.token_ids == [5, 6, 7, EOS] and found.logprobs == [-0.5] * 4
    assert found.finish_reason == "stop"


@pytest.mark.parametrize(
    ("answer", "heard_text", "text", "reason"),
    [
        (lambda: streams(delta("a</co"), delta("de>b"), *[delta("x")] * 1000), "a</code>", "a</code>", "stop_string"),
        (lambda: streams(delta("on and"), delta(" on", "length")), "on and on", "on and on", "length"),
        # A server that cannot stream answers as a whole.
        (lambda: says("It is 24."), "", "It is 24.<|im_end|>", "stop"),
    ],
)
def test_how_a_stream_ends(tokenizer: Any, answer: Any, heard_text: str, text: str, reason: str) -> None:
    heard, found = watch(Server(answer()), tokenizer, stop=("</code>",))
    assert tokenizer.decode(heard) == heard_text
    assert (tokenizer.decode(found.token_ids), found.finish_reason) == (text, reason)


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ((delta("a"), {"error": {"message": "out of memory"}}), "out of memory"),
        (("data: 7\n\n",), "answered strangely"),
        (({"choices": [{"text": "a"}]},), "answered strangely"),
        ((delta("a"), "data: [DONE]\n\n"), "without saying why"),
    ],
)
def test_a_broken_stream_is_an_error(tokenizer: Any, pieces: tuple[Any, ...], words: str) -> None:
    with pytest.raises(RolloutError, match=words):
        watch(Server(streams(*pieces)), tokenizer)


def test_a_stopped_turn_breaks_the_stream_off(tokenizer: Any) -> None:
    class Enough(Exception):
        pass

    def hear(token: int) -> None:
        raise Enough

    server = Server(streams(*[delta("and on ")] * 200_000))
    with policy_at(server, tokenizer) as policy:
        with pytest.raises(Enough):
            submit(policy, (0, SamplingParams(50)), on_token=hear)
        policy.abort(0)
        assert server.left.wait(60), "the server goes on writing"
        assert policy.pending == 0 and policy.poll() == []


@pytest.mark.vllm
@pytest.mark.slow
def test_a_real_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The tokens of vLLM's own server are those of the engine in this process, and its chat answers count, too.

    It also plays the other role of a game.
    """
    model = make_tiny_model(tmp_path / "model", context=1024)
    played = {name: tmp_path / f"{name}.jsonl" for name in ("ids", "again", "here")}
    limits = ["--episodes", "4", "--max_turn_tokens", "12", "--max_tokens", "1000"]
    common = ["eval", GSM8K, "--samples", "2", "--temperature", "1", *limits]
    with model_server(model, tmp_path / "log.txt", context=1024) as (address, _):
        url = address + "/v1"
        for name in ("ids", "again"):
            assert main([*common, "--endpoint", url, "--model", str(model), "--output", str(played[name])]) == 0
        assert "takes and gives token ids" in capsys.readouterr().err
        card = find_model(url, None)
        assert card["max_model_len"] == 1024
        tokenizer = AutoTokenizer.from_pretrained(model)
        (episode,) = play(url, tokenizer, make_specs(GSM8K, split="test", episodes=1), model=card["id"])
        assert episode.steps and episode.failure is None
        heard, found = watch(url, tokenizer, model=card["id"], token_ids=True)
        assert heard == found.token_ids and len(found.logprobs) == len(heard) > 1
        heard, found = watch(url, tokenizer, model=card["id"])
        assert len(heard) > 1 and tokenizer.decode(heard) == ChatRenderer.of(tokenizer).decode_action(found.token_ids)
        game = str(tmp_path / "game.jsonl")
        kwargs = {"opponent": url, "role": "first", "rounds": 1, "system_prompt": ""}
        bargain = ["eval", "AgentR1/Bargain-v0", "--expert", "--env_kwargs", json.dumps(kwargs)]
        assert main([*bargain, "--episodes", "2", "--output", game]) == 0
        for record in read_trajectories(game):
            # The expert offers, and the one answer of a random model is no deal.
            assert record["failure"] is None and len(record["steps"]) == 1, record
            metrics = record["steps"][0]["metrics"]
            assert (metrics["deal"], metrics["turns"]) == (0.0, 2.0), record
    assert main([*common, "--model", str(model), "--engine", "transformers", "--output", str(played["here"])]) == 0
    ids, again, here = (
        {(r["spec"]["index"], r["spec"]["member"]): r["rows"][0] for r in read_trajectories(path)}
        for path in played.values()
    )
    assert {key: row["token_ids"] for key, row in ids.items()} == {key: row["token_ids"] for key, row in again.items()}
    # Seeds mean something else to each engine, prompts do not.
    assert {key: row["spans"][0] for key, row in ids.items()} == {key: row["spans"][0] for key, row in here.items()}
    assert all(any(logprob < 0 for logprob in row["logprobs"]) for row in ids.values())
