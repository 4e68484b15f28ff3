"""`Judge`: a model that completes the rewards of episodes after they have ended, while others are played.

    an episode ends -> (a kind that compares: its group has ended) -> questions -> cache, or requests -> scores
        -> a term of the reward, "judge" on the last step or "judge_steps" on each -> the episode counts as ended

Requests run in a separate thread. A rollout knows the functions that it waits for (`Rollout.defer`), so that an episode
is returned with its whole reward, and others do not wait for the judge.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import math
import threading
from collections import Counter, defaultdict
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from agent_gym.chat import Message
from agent_gym.errors import ConfigError, unknown_arguments, whole_number
from agent_gym.judges.kinds import GOAL, JudgeKind, Pairwise, Ranking, Reasoning, Rubric
from agent_gym.judges.ledger import Cache, JudgeUsage
from agent_gym.judges.questions import PROMPTS, Case, Question
from agent_gym.judges.sources import Endpoint, JudgeFailure, PolicyEngine, Source
from agent_gym.policies.openai import KEY_VARIABLE
from agent_gym.rewards import JUDGE_STEPS_TERM, JUDGE_TERM, JUDGE_TERMS
from agent_gym.rollout import Episode, EpisodeSpec, Failure
from agent_gym.rollout.episode_run import OnEnd
from agent_gym.rollout.runner import Rollout

ENGINE = "engine"
_KINDS = ("rubric", "reasoning", "pairwise", "ranking")


class Judgement(NamedTuple):
    """The scores of cases, one each or one per turn, and of each pair whether its verdict changed with the order."""

    scores: list[list[float]]
    flips: list[bool]


@dataclass(eq=False)
class Judge:
    """A kind of judge, the model that answers its questions, and limits of the cost.

    `ConfigError` for settings that cannot work.
    """

    kind: JudgeKind  # the kind of its questions, see kinds.py
    endpoint: str  # an OpenAI-compatible server ("http://127.0.0.1:8000/v1"), or "engine" for the policy's own
    model: str | None = None  # its name there, None for the only one
    weight: float = 1.0  # the score, a number in [0, 1], is multiplied by it before it is added to the reward
    temperature: float = 0.0  # of the judge's sampling; 0 is greedy
    max_answer_tokens: int = 512
    structured: bool = True  # whether a server is asked to hold the answer to its JSON schema (`response_format`)
    attempts: int = 3  # how often a question is asked until an answer has a verdict
    concurrency: int = 16  # most requests at the same time
    timeout: float = 120.0  # seconds in which a request has to be answered
    retries: int = 4  # how often a request is sent again when the server cannot be reached, is busy or breaks
    cache: str | None = None  # a SQLite file of verdicts, else they are in memory; verdicts of an engine are not kept
    # Limits of one process; a run that reaches one is stopped.
    max_requests: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    price_in: float = 0.0  # of a million tokens that the judge reads
    price_out: float = 0.0  # of a million tokens that it writes
    key_variable: str = KEY_VARIABLE  # the environment variable with the server's key

    def __post_init__(self) -> None:
        for name, least in (("max_answer_tokens", 1), ("attempts", 1), ("concurrency", 1), ("retries", 0)):
            whole_number(name, getattr(self, name), least)
        for name in ("weight", "temperature", "timeout", "price_in", "price_out"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ConfigError(f"{name} of the judge is {value!r}; it must be a finite number")
        if not isinstance(self.endpoint, str):
            raise ConfigError(f"endpoint of the judge is {self.endpoint!r}; it must be an address, or {ENGINE!r}")
        self.ledger = JudgeUsage(self)
        self._turns = asyncio.Semaphore(self.concurrency)
        self._asked: dict[str, asyncio.Task[list[int]]] = {}  # questions that wait for their answer

    @classmethod
    def rubric(cls, criteria: Mapping[str, float], endpoint: str, **settings: Any) -> Judge:
        """Judge each episode by criteria, which are texts with weights above 0."""
        return cls(Rubric(tuple(criteria.items())), endpoint, **settings)

    @classmethod
    def reasoning(cls, endpoint: str, **settings: Any) -> Judge:
        """Judge whether the thought of each turn supports its action and invents nothing: a reward per step."""
        return cls(Reasoning(), endpoint, **settings)

    @classmethod
    def pairwise(cls, endpoint: str, goal: str = GOAL, **settings: Any) -> Judge:
        """Compare each two episodes of a group, in both orders; `goal` describes a good attempt."""
        return cls(Pairwise(goal), endpoint, **settings)

    @classmethod
    def ranking(cls, endpoint: str, goal: str = GOAL, **settings: Any) -> Judge:
        """Score all episodes of a group in one request, relative to each other; `goal` describes a good attempt."""
        return cls(Ranking(goal), endpoint, **settings)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Judge:
        """Make a judge of the content of a file: `kind`, `criteria` or `goal`, and the arguments of `Judge`."""
        given = dict(settings)
        kind = given.pop("kind", None)
        if kind not in _KINDS:
            raise ConfigError(f"kind of the judge is {kind!r}; allowed: {', '.join(_KINDS)}")
        own = {"rubric": ["criteria"], "reasoning": []}.get(kind, ["goal"])
        if unknown := given.keys() - {field.name for field in dataclasses.fields(cls)} - set(own):
            raise ConfigError(f"judge of the kind {kind!r}: {unknown_arguments(cls, unknown)}, {', '.join(own)}")
        missing = [name for name in ("endpoint", "criteria") if name not in given and name in ("endpoint", *own)]
        if missing:
            raise ConfigError(f"the judge has no {missing[0]}; give it")
        if not isinstance(given.get("criteria", {}), Mapping):
            raise ConfigError("criteria of the judge must be a mapping from texts to weights")
        return getattr(cls, kind)(**given)

    def describe(self) -> dict[str, Any]:
        """Return the values that make scores comparable: kind, model, and a hash of all that decides verdicts."""
        # A server may call a model by its folder, and cards hold no paths of a machine.
        model = Path(self.model).name if self.model and self.model.startswith("/") else self.model
        content = json.dumps([repr(self.kind), self.weight, model, *self._decoding])
        digest = hashlib.sha256(content.encode()).hexdigest()
        return {"kind": type(self.kind).__name__.lower(), "model": model, "weight": self.weight, "sha256": digest}

    def spent(self) -> Counter[str]:
        """Return the cost of judging so far, by the names of `ledger.COUNTS`; from any thread."""
        return Counter(self.ledger.totals.copy())

    @property
    def _decoding(self) -> list[Any]:
        return [PROMPTS, self.temperature, self.max_answer_tokens, self.structured]

    def connect(self) -> Judge:
        """Find the server and its model, and open the cache; `ConfigError` if one is not there. Once is enough."""
        if self.endpoint != ENGINE:
            self.model = self._server.model
        self._cache  # noqa: B018
        return self

    def close(self) -> None:
        """End the thread and the connections."""
        if "_loop" not in vars(self):
            return
        if "_server" in vars(self):
            asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._cache.close()

    # The interface for rollouts, evaluations and others.

    def follow(self, rollout: Rollout, specs: Sequence[EpisodeSpec], on_end: OnEnd) -> OnEnd:
        """Return a function to be called with each of these episodes as it ends, in the thread that plays.

        It has `on_end` called, in that thread, once the reward is complete: now or by `Rollout.defer`. A group of one
        has nothing to compare, and keeps its reward.
        """
        sizes, ended = Counter(spec.group for spec in specs), defaultdict[int, list[Episode]](list)
        source = PolicyEngine(self, rollout) if self.endpoint == ENGINE else None

        def end(episode: Episode) -> None:
            group, size = [episode], sizes[episode.spec.group]
            if self.kind.compares:
                if size == 1:
                    return on_end(episode)
                group = ended[episode.spec.group]
                group.append(episode)
                if len(group) < size:  # the last of them takes the others along
                    return
            settle = rollout.defer()
            future = self._begin(group, source)
            future.add_done_callback(lambda done: settle(partial(self._deliver, group, done, on_end)))

        return end

    def rate(self, episodes: Sequence[Episode]) -> None:
        """Complete the rewards of episodes that have ended, as `follow` does; earlier judgements are replaced."""
        for step in (step for episode in episodes for step in episode.steps):
            paid = {term: step.reward_terms.pop(term, 0.0) for term in JUDGE_TERMS}
            step.reward -= sum(paid.values())
            step.process_reward -= paid[JUDGE_STEPS_TERM]
        groups: dict[Any, list[Episode]] = defaultdict(list)
        for number, episode in enumerate(episodes):
            spec = episode.spec
            alone = () if self.kind.compares else (number,)
            groups[spec.env_id, spec.split, spec.index, spec.seed, spec.group, *alone].append(episode)
        judged = [group for group in groups.values() if len(group) > 1 or not self.kind.compares]
        if not judged:
            raise ConfigError("the judge compares the attempts at a task, and no task has two of them")
        begun = [(group, self._begin(group)) for group in judged]
        for group, future in begun:
            self._deliver(group, future, lambda episode: None)

    def score(self, conversations: Sequence[Sequence[Message]]) -> list[float]:
        """Judge conversations, of a kind that compares a group of them: a number in [0, 1] for each.

        Of the kind `reasoning` it is the mean over turns. Raises `JudgeFailure` without a verdict.
        """
        cases = [Case.of_messages(messages) for messages in conversations]
        groups = [cases] if self.kind.compares else [[case] for case in cases]
        futures = [self._run(self._judgement(group, None)) for group in groups]
        return [fmean(scores) for future in futures for scores in future.result().scores]

    def judge(self, groups: Sequence[Sequence[Case]]) -> list[Judgement | JudgeFailure]:
        """Judge groups of cases, each by itself; where the kind compares nothing, a group is one case."""
        futures = [self._run(self._judgement(group, None)) for group in groups]
        found: list[Judgement | JudgeFailure] = []
        for future in futures:
            try:
                found.append(future.result())
            except JudgeFailure as error:
                found.append(error)
        return found

    def _begin(self, group: Sequence[Episode], source: Source | None = None) -> Future[Judgement]:
        sound = [Case.of(episode) for episode in group if episode.failure is None]
        return self._run(self._judgement(sound, source))

    def _deliver(self, group: Sequence[Episode], done: Future[Judgement], on_end: OnEnd) -> None:
        sound = [episode for episode in group if episode.failure is None]
        try:
            for episode, scores in zip(sound, done.result().scores, strict=True):
                self._pay(episode, scores)
        except JudgeFailure as error:
            for episode in sound:
                episode.failure = Failure(type(error).__name__, str(error))
            self.ledger.totals["failed"] += len(sound)
        for episode in group:
            on_end(episode)

    def _pay(self, episode: Episode, scores: Sequence[float]) -> None:
        steps = [step for step in episode.steps if step.kind == "act"]
        term = JUDGE_STEPS_TERM if self.kind.per_step else JUDGE_TERM
        # Divided by the number of steps, so that a longer episode does not earn more by its length.
        for step, score in zip(steps if self.kind.per_step else steps[-1:], scores, strict=True):
            if term in step.reward_terms:
                raise ConfigError(f"{episode.spec.env_id} has a reward term {term!r} of its own; rename it")
            paid = self.weight * score / len(scores)
            step.reward_terms[term], step.reward = paid, step.reward + paid
            step.process_reward += paid if self.kind.per_step else 0.0

    # In the thread of the requests.

    async def _judgement(self, cases: Sequence[Case], source: Source | None) -> Judgement:
        if not cases:
            return Judgement([], [])
        if not all(case.turns for case in cases):
            raise JudgeFailure("there is no turn to judge")
        if self.kind.compares and len(cases) == 1:
            raise JudgeFailure("the others of its group failed, and there is nothing to compare it with")
        # The order in which a judge meets them must not be that of the members, and equal ones are one.
        different = sorted(dict.fromkeys(cases), key=lambda case: hashlib.sha256(repr(case).encode()).digest())
        if self.kind.compares and len(different) == 1:
            return Judgement([[0.5]] * len(cases), [])
        questions = self.kind.questions(different)
        verdicts = await asyncio.gather(*(self._verdict(question, source) for question in questions))
        scores = dict(zip(different, self.kind.scores(different, verdicts), strict=True))
        flips = self.kind.flips(verdicts) if isinstance(self.kind, Pairwise) else []
        self.ledger.totals["pairs"] += len(flips)
        self.ledger.totals["flips"] += sum(flips)
        return Judgement([scores[case] for case in cases], flips)

    async def _verdict(self, question: Question, source: Source | None) -> list[int]:
        if source is not None:  # its weights change
            return (await self._ask(question, source))[0]
        self.connect()
        key = hashlib.sha256(json.dumps([self.model, *self._decoding, question.digest]).encode()).hexdigest()
        known = self._cache.get(key)
        if known is not None or key in self._asked:
            self.ledger.totals["cached"] += 1
            return known if known is not None else await self._asked[key]

        async def ask() -> list[int]:
            numbers, answer = await self._ask(question, self._server)
            self._cache.put(key, numbers, answer)
            return numbers

        self._asked[key] = asyncio.create_task(ask())
        self._asked[key].add_done_callback(lambda _: self._asked.pop(key))
        return await self._asked[key]

    async def _ask(self, question: Question, source: Source) -> tuple[list[int], str]:
        answer, problem = "", ""
        for attempt in range(self.attempts):
            async with self._turns:
                self.ledger.begin()
                answer, tokens = await source(question, attempt)
            self.ledger.end(tokens)
            try:
                return question.read(answer, attempt), answer
            except ValueError as error:
                self.ledger.totals["unreadable"] += 1
                problem = str(error)
        tries = f"{self.attempts} answers" if self.attempts > 1 else "its answer"
        raise JudgeFailure(f"the judge gave no verdict in {tries}: {problem}, in {answer[:200]!r}")

    def _run(self, coroutine: Coroutine[Any, Any, Judgement]) -> Future[Judgement]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="judge", daemon=True).start()
        return loop

    @cached_property
    def _server(self) -> Endpoint:
        if self.endpoint == ENGINE:
            raise ConfigError("a judge in the policy's engine judges while episodes are played; here name an endpoint")
        return Endpoint(self)

    @cached_property
    def _cache(self) -> Cache:
        return Cache(self.cache)
