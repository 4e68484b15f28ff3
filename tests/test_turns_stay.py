"""Turns stay with the server that has their prefix, while it lives; servers are counters and answer at random times."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")
web = pytest.importorskip("aiohttp.web")

from agent_gym.errors import RolloutError  # noqa: E402
from agent_gym.policies import Request, SamplingParams  # noqa: E402
from agent_gym.policies.vllm import server as serving  # noqa: E402
from agent_gym.policies.vllm.server import VLLMServerPolicy  # noqa: E402

EOS, TURN = 2, 20
PARAMS = SamplingParams(max_tokens=TURN, seed=1)


@contextmanager
def counting_servers(
    count: int,
    seconds: float,
    dead: Collection[int] = (),
    dying: Collection[int] = (),
    ended: set[int] | None = None,
    mute: Collection[int] = (),
) -> Iterator[tuple[list[str], list[tuple[int, int, int]]]]:
    """Yield addresses, and what was asked so far: server, first token of the prompt, its length.

    Those that are `dead` break all connections, those that are `dying` do when they get weights. The engine of those
    that are in `ended` has ended, and they answer as vLLM does until it ends itself: calls fail at once, while the
    first look at its health finds it well. That of the `mute` ends while they sample or take weights, and they keep the
    call open for ever.
    """
    ended = set() if ended is None else ended
    known = set[int]()
    asked: list[tuple[int, int, int]] = []
    rng, loop = random.Random(0), asyncio.new_event_loop()
    urls: list[str] = []
    runners: list[Any] = []

    async def end_calls() -> None:
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    async def models(request: Any) -> Any:
        return web.json_response({"data": [{"max_model_len": 100_000}]})

    async def start(server: int) -> None:
        async def size(request: Any) -> Any:
            if server in dead:
                request.transport.abort()
            return web.json_response({"world_size": 1})

        async def health(request: Any) -> Any:
            if server in dead:
                request.transport.abort()
            late = server in ended and server not in known
            known.intersection_update(ended)
            known.update({server} & ended)
            return web.Response(status=200 if late or server not in ended else 503)

        async def end_silently() -> None:
            ended.add(server)
            await asyncio.sleep(3600)

        async def generate(request: Any) -> Any:
            ids = (await request.json())["token_ids"]
            asked.append((server, ids[0], len(ids)))
            if server in mute:
                await end_silently()
            if server not in dead:
                await asyncio.sleep(rng.uniform(0.1, 1.0) * seconds)
            if server in dead:
                request.transport.abort()
            if server in ended:
                return web.json_response({"error": {"message": "EngineCore encountered an issue."}}, status=500)
            choice = {"token_ids": [7] * (TURN - 1) + [EOS], "finish_reason": "stop"}
            return web.json_response({"choices": [{**choice, "logprobs": {"content": [{"logprob": -1.0}] * TURN}}]})

        async def work(request: Any) -> Any:
            """Take weights, and what belongs to them."""
            first = "receive_bucket" in await request.text()
            if server in dead or (server in dying and first):
                request.transport.abort()
            if server in mute and first:
                await end_silently()
            return web.json_response({"results": [{"device": "cpu", "dtype": "float32"}], "success": True})

        app = web.Application(client_max_size=1 << 30)
        app.add_routes([web.get("/v1/models", models), web.get("/get_world_size", size), web.get("/health", health)])
        app.add_routes([web.post("/inference/v1/generate", generate), web.post("/collective_rpc", work)])
        app.add_routes([web.post("/reset_prefix_cache", work)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        urls.append(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}")

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        for server in range(count):
            asyncio.run_coroutine_threadsafe(start(server), loop).result(30)
        yield urls, asked
    finally:
        for runner in runners:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        asyncio.run_coroutine_threadsafe(end_calls(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize("servers", [1, 3])
def test_a_turn_goes_where_the_turns_before_it_went(servers: int) -> None:
    # So many that a server is hardly ever twice as busy as another by chance, and its turns spill.
    episodes = [[1000 + number] * 200 for number in range(96)]
    turns: Counter[int] = Counter()
    with counting_servers(servers, 0.02) as (urls, asked):
        with closing(VLLMServerPolicy(urls, [EOS], context=100_000)) as policy:

            def ask(number: int) -> None:
                policy.submit(Request(number, list(episodes[number]), PARAMS, episodes[number]))

            for number in range(len(episodes)):
                ask(number)
            while policy.pending:
                for turn in policy.poll():
                    turns[turn.id] += 1
                    episodes[turn.id] += turn.token_ids + [5] * 30
                    if turns[turn.id] < 8:
                        ask(turn.id)
            assert set(policy._homes) == {id(episode) for episode in episodes}
            policy._sends = False
            policy.sync([])
            assert not policy._homes, "prefixes are forgotten with the weights"
    known: defaultdict[tuple[int, int], int] = defaultdict(int)
    prefilled = 0
    for server, episode, length in asked:
        prefilled += length - known[server, episode]
        known[server, episode] = length
    longest = Counter({episode: length for _, episode, length in asked})
    # 1.7 times as many with 2 servers, and 2.3 times with 3, where each turn went to the server with the least to do.
    assert prefilled <= 1.1 * longest.total()
    shares = Counter(server for server, *_ in asked)
    assert len(shares) == servers and min(shares.values()) > 0.5 * max(shares.values())


def test_a_turn_moves_when_its_server_has_twice_as_much_to_do() -> None:
    old, new = [object() for _ in range(2)]
    with counting_servers(2, 60.0) as (urls, _), closing(VLLMServerPolicy(urls, [EOS], context=100)) as policy:
        first, second = urls

        def ask(number: int, episode: object, load: dict[str, int]) -> str:
            policy._load.update(load)
            before = dict(policy._load)
            policy.submit(Request(number, [5], PARAMS, episode))
            return next(url for url in urls if policy._load[url] > before[url])

        assert ask(0, old, {first: 0, second: 1}) == first
        assert ask(1, old, {first: 9, second: 4}) == first
        assert ask(2, new, {first: 9, second: 4}) == second
        assert ask(3, old, {first: 10, second: 4}) == second
        assert ask(4, old, {first: 0, second: 1}) == second, "it stays where it went"
        assert ask(5, None, {first: 0, second: 1}) == first


@pytest.mark.parametrize(("what", "words"), [("dead", "cannot be reached"), ("ended", "the engine of .* has ended")])
def test_the_turns_of_a_server_that_died_are_sampled_by_the_others_until_it_is_back(
    what: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_PAUSE_S", 0.01)
    dead: set[int] = set()
    with counting_servers(2, 0.5, **{what: dead}) as (urls, asked):
        with closing(VLLMServerPolicy(urls, [EOS], context=100)) as policy:
            episodes = [object() for _ in range(8)]
            for number, episode in enumerate(episodes):
                policy.submit(Request(number, [number], PARAMS, episode))
            dead.add(0)
            with pytest.warns(UserWarning, match=f"{urls[0]} is left out until it has new weights"):
                done = [turn.id for turn in iter_turns(policy)]
            assert sorted(done) == list(range(8)) and policy.living == [urls[1]]
            first, second = ({episode for server, episode, _ in asked if server == place} for place in (0, 1))
            assert len(first) == 4 and second == set(range(8))
            policy.submit(Request(9, [9], PARAMS, episodes[0]))
            assert [turn.id for turn in iter_turns(policy)] == [9] and policy._load == dict.fromkeys(urls, 0)
            policy._look_for_servers()
            assert policy.living == [urls[1]], "it still does not answer"
            dead.clear()
            policy._look_for_servers()
            assert policy.living == urls
            dead.update((0, 1))
            policy.submit(Request(10, [1], PARAMS, episodes[0]))
            with (
                pytest.warns(UserWarning),
                pytest.raises(RolloutError, match=f"{words}.*start the server again and resume"),
            ):
                list(iter_turns(policy))


def iter_turns(policy: VLLMServerPolicy) -> Iterator[Any]:
    while policy.pending:
        yield from policy.poll()


def test_weights_go_to_the_servers_that_live_and_to_those_that_have_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_PAUSE_S", 0.01)
    dead, dying = set[int](), set[int]()
    weights = [("a", torch.ones(4)), ("b", torch.ones(1 << 23))]  # of two buckets
    with counting_servers(3, 0.0, dead, dying) as (urls, _):
        with closing(VLLMServerPolicy(urls, [EOS], context=100, transfer="files")) as policy:
            dead.add(0)
            policy.sync(weights)
            assert policy.living == urls[1:], "it was looked for before the weights were sent"
            dead.clear()
            dying.add(1)
            with pytest.warns(UserWarning, match=f"{urls[1]} is left out"):
                policy.sync(weights)
            assert policy.living == [urls[0], urls[2]], "one has come back, and one has died meanwhile"
            dying.update({0, 1, 2})
            with pytest.warns(UserWarning), pytest.raises(RolloutError, match="cannot be reached"):
                policy.sync(weights)
            dying.clear()
            policy.sync(weights)
            assert policy.living == urls


def test_a_server_whose_engine_ends_without_an_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_SILENCE_S", 0.1)
    mute, ended = set[int](), set[int]()
    weights = [("a", torch.ones(4))]
    with counting_servers(2, 0.5, ended=ended, mute=mute) as (urls, _):
        with closing(VLLMServerPolicy(urls, [EOS], context=100, transfer="files")) as policy:
            for begin in (partial(policy.sync, weights), partial(play, policy)):
                mute.add(1)
                with pytest.warns(UserWarning, match=f"{urls[1]} is left out .* it gives no answer"):
                    begin()
                assert policy.living == urls[:1]
                mute.clear()
                ended.clear()
                policy.sync(weights)
                assert policy.living == urls
            mute.update((0, 1))
            with pytest.warns(UserWarning), pytest.raises(RolloutError, match="no answer.*start the server again"):
                policy.sync(weights)


def test_a_server_that_answers_is_not_asked_whether_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns may be long, and one look that fails would end the run."""
    monkeypatch.setattr(serving, "_SILENCE_S", 2.0)
    monkeypatch.delattr(VLLMServerPolicy, "_lives")
    with counting_servers(1, 4.0) as (urls, _):
        with closing(VLLMServerPolicy(urls, [EOS], context=100)) as policy:
            for number in range(96):  # an answer each 40 ms, the last one after 4 s
                policy.submit(Request(number, [number], PARAMS))
            assert len(list(iter_turns(policy))) == 96


def play(policy: VLLMServerPolicy) -> None:
    """Let a slow server, and no other, be waited for: an answer that takes longer than silence may last is one."""
    for number in range(8):
        policy.submit(Request(number, [number], PARAMS, object()))
    assert sorted(turn.id for turn in iter_turns(policy)) == list(range(8))
