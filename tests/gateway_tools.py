"""An agent that does to an endpoint what clients do, and keeps a log of its own; and the comparison of log and rows."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rollout_tools import RandomWriter, check_rows, scripted

from agent_gym.evaluate import make_specs
from agent_gym.gateway import agent_env
from agent_gym.policies import Generation, Request
from agent_gym.rollout import Budget, Episode, Runner
from agent_gym.trainers.batch import NOT_SAMPLED, training_episode

Talk = list[dict[str, Any]]
RETRY = {"x-stainless-retry-count": "1"}  # with which the clients of OpenAI and Anthropic send a request again


def play_agent(
    agent: Any, tokenizer: Any, tasks: Any, reward: Any = None, policy: Any = None, budget: Any = None, **settings: Any
) -> list[Episode]:
    """Let an agent play each task once; without a reward each result is worth 1."""
    env_id, kwargs = agent_env(agent, tasks, reward or (lambda task, result, transcript: 1.0), **settings)
    policy = policy or RandomWriter()
    with closing(Runner(policy, tokenizer, budget or Budget(max_turn_tokens=24), workers=8, max_live=64)) as runner:
        return runner.run_share(make_specs(env_id, kwargs, split="train", seed=5))


def run(agent: Any, tokenizer: Any, texts: Sequence[str], task: Any = None, **settings: Any) -> tuple[Episode, Any]:
    """Let an agent play once with a policy that answers with these texts; return the episode and the agent's result."""
    results: list[Any] = []

    def reward(task: Any, result: Any, transcript: Any) -> float:
        results.append(result)
        return 1.0

    policy = scripted(tokenizer, lambda episode: texts[len(episode.steps) % len(texts)])
    budget = Budget(max_turn_tokens=200, max_tokens=4000)
    (episode,) = play_agent(agent, tokenizer, [task or {"question": "q"}], reward, policy, budget, **settings)
    return episode, results[0] if results else None


class Recorded:
    """The requests and answers of a policy, which is used as it is, by a log of their own."""

    def __init__(self, policy: Any) -> None:
        self.log: list[tuple[Request, Generation]] = []
        self._asked: dict[int, Request] = {}
        self._submit, self._poll = policy.submit, policy.poll
        policy.submit, policy.poll = self.submit, self.poll

    def submit(self, request: Request) -> None:
        self._asked[request.id] = request
        self._submit(request)

    def poll(self) -> list[Generation]:
        found: list[Generation] = self._poll()
        self.log += [(self._asked[one.id], one) for one in found]
        return found

    log_of = RandomWriter.log_of


@dataclass
class Seen:
    """What a client saw of an answer that it read whole."""

    id: str
    prompt: list[int]
    ids: list[int]
    logprobs: list[float]
    text: str
    continues: Seen | None = None  # the answer that stands, unchanged, at the end of its conversation


@dataclass
class Log:
    """Everything that one agent sent and read."""

    seen: list[Seen] = field(default_factory=list)
    lost: int = 0  # answers that were cut off or not waited for
    deeds: Counter[str] = field(default_factory=Counter)


class WildAgent:
    """Continues, forks, edits and compacts several conversations, at the same time, with retries and cut streams."""

    def __init__(self) -> None:
        self.logs: dict[int, Log] = defaultdict(Log)

    async def __call__(self, client: Any, task: dict[str, Any]) -> str:
        rng, log = random.Random(task["seed"]), self.logs[task["seed"]]
        talks: list[tuple[Talk, Seen | None]] = [([{"role": "user", "content": f"Task {task['seed']}"}], None)]
        deeds: list[Callable[..., Any]] = [self.go_on, self.fork, self.compact, self.side_by_side, self.again]
        for _ in range(rng.randint(1, 6)):
            deed = rng.choice(deeds)
            log.deeds[deed.__name__] += 1
            await deed(client, rng, log, talks)
        return "done"

    async def ask(self, client: Any, rng: random.Random, log: Log, talk: Talk, after: Seen | None) -> Seen | None:
        """Send one request in one of several ways; returns None if no answer was read whole."""
        more = {"return_token_ids": True}
        request = {"model": "any", "messages": talk, "logprobs": True, "extra_body": more}
        way = rng.choice(["whole", "whole", "stream", "cut", "timeout", "timeouts"])
        log.deeds[way] += 1
        if way == "timeout":  # resent by the agent, without a sign that it is a repetition
            with suppress(Exception):
                log.lost += 1
                hasty = client.with_options(timeout=rng.uniform(0.0005, 0.01), max_retries=0)
                await hasty.chat.completions.create(**request)
            if rng.random() < 0.3:
                return None
        if way == "timeouts":  # resent by openai's client itself
            with suppress(Exception):
                log.lost += 1
                hasty = client.with_options(timeout=rng.uniform(0.002, 0.02), max_retries=1)
                return self.keep(log, await hasty.chat.completions.create(**request), after)
        if way == "cut":
            stream = await client.chat.completions.create(**request, stream=True)
            for _ in range(rng.randint(0, 2)):
                with suppress(StopAsyncIteration):
                    await anext(stream)
            await stream.close()
            log.lost += 1
            if rng.random() < 0.3:
                return None
            if rng.random() < 0.5:
                log.deeds["cut_again"] += 1
                return await self.stream(client, log, {**request, "extra_headers": RETRY}, after)
        if way == "stream":
            return await self.stream(client, log, request, after)
        return self.keep(log, await client.chat.completions.create(**request), after)

    async def stream(self, client: Any, log: Log, request: dict[str, Any], after: Seen | None) -> Seen:
        """Read a stream to its end, and put the answer together."""
        chunks = [chunk async for chunk in await client.chat.completions.create(**request, stream=True)]
        answer, last = chunks[0], chunks[-1].choices[0]
        assert last.finish_reason in ("stop", "length") and {chunk.id for chunk in chunks} == {answer.id}
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        return self.keep(log, answer, after, last, text)

    @staticmethod
    def keep(log: Log, answer: Any, after: Seen | None, choice: Any = None, text: str | None = None) -> Seen:
        choice = choice or answer.choices[0]
        text = choice.message.content if text is None else text
        logprobs = [entry.logprob for entry in choice.logprobs.content]
        log.deeds["continued"] += after is not None
        seen = Seen(answer.id, answer.prompt_token_ids, choice.token_ids, logprobs, text, after)
        log.seen.append(seen)
        return seen

    async def go_on(self, client: Any, rng: random.Random, log: Log, talks: Any, place: int | None = None) -> None:
        place = rng.randrange(len(talks)) if place is None else place
        talk, after = talks[place]
        if seen := await self.ask(client, rng, log, talk, after):
            text = seen.text
            kept: Seen | None = seen
            form = rng.random()
            if form < 0.2:
                text = text.strip()
            elif form < 0.35:
                text, kept = text + " edited", None
            further = [{"role": "assistant", "content": text}, {"role": "user", "content": f"more {rng.random():.3f}"}]
            talks[place] = [*talk, *further], kept

    async def fork(self, client: Any, rng: random.Random, log: Log, talks: Any) -> None:
        talk, _ = rng.choice(talks)
        users = [i for i, message in enumerate(talk) if message["role"] == "user"]
        cut = rng.choice(users)
        talks.append(([*talk[:cut], {"role": "user", "content": "another way"}], None))
        await self.go_on(client, rng, log, talks, len(talks) - 1)

    async def compact(self, client: Any, rng: random.Random, log: Log, talks: Any) -> None:
        place = rng.randrange(len(talks))
        talk, _ = talks[place]
        talks[place] = [{"role": "user", "content": "summary"}, *talk[-2:]], None
        await self.go_on(client, rng, log, talks, place)

    async def side_by_side(self, client: Any, rng: random.Random, log: Log, talks: Any) -> None:
        for number in range(rng.randint(1, 2)):
            talks.append(([{"role": "user", "content": f"helper {number}"}], None))
        seeds = [random.Random(rng.random()) for _ in talks]
        await asyncio.gather(*(self.go_on(client, seed, log, talks, i) for i, seed in enumerate(seeds)))

    async def again(self, client: Any, rng: random.Random, log: Log, talks: Any) -> None:
        """The same request several times at once, as best-of-n does."""
        talk, after = rng.choice(talks)
        await asyncio.gather(*(self.ask(client, random.Random(rng.random()), log, talk, after) for _ in range(2)))


def check_trained(episode: Episode, policy: RandomWriter | Recorded) -> None:
    """Hold the rows of an episode, and what a trainer takes of them, against what the policy saw and wrote."""
    written = policy.log_of(episode)
    check_rows(episode, written)
    # In the order of sampling.
    kept = training_episode(episode, 0)
    trained: list[tuple[int, int, float]] = []
    for row in kept.rows:
        places = (row.step_of != NOT_SAMPLED).nonzero()[0]
        columns = (column[places].tolist() for column in (row.step_of, row.token_ids, row.logprobs))
        trained += zip(*columns, strict=True)
    sampled = [
        (k, token, float(np.float32(logprob)))
        for k, (_, generation) in enumerate(written)
        for token, logprob in zip(generation.token_ids, generation.logprobs, strict=True)
    ]
    assert sorted(trained, key=lambda one: one[0]) == sampled


def check_log(episode: Episode, log: Log, policy: RandomWriter | Recorded) -> None:
    """Hold the rows of an episode against what the client saw and what the policy wrote, each by its own log."""
    check_trained(episode, policy)
    steps = {
        k: (request.prompt_ids, generation.token_ids, generation.logprobs)
        for k, (request, generation) in enumerate(policy.log_of(episode))
    }
    # Each answer that the client read is a step of its own; the rest are those that it did not read.
    answers = {one.id: one for one in log.seen}
    for one in answers.values():
        k = next(k for k, made in steps.items() if made == (one.prompt, one.ids, one.logprobs))
        del steps[k]
    if not episode.truncated:
        assert len(steps) <= log.lost
    for one in log.seen:
        if one.continues is not None:
            known = [*one.continues.prompt, *one.continues.ids]
            assert one.prompt[: len(known)] == known, "a conversation that goes on extends its ids"
