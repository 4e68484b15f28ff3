"""Short cuts for tests that roll out the toy environments with scripts."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest

from agent_gym.policies import Generation, Request, ScriptedPolicy
from agent_gym.rollout import Budget, Context, Episode, EpisodeSpec, Runner
from agent_gym.transcript import check_tiling, kind_of

EOS = 2  # <|im_end|> of the tiny tokenizer


def expert(episode: Any) -> str:
    return str(episode.env.unwrapped.expert_action())


def scripted(runner_or_tokenizer: Any, act: Any = expert) -> ScriptedPolicy:
    from agent_gym.chat import ChatRenderer

    return ScriptedPolicy(act, ChatRenderer.of(runner_or_tokenizer).encode_action)


def counting(n: int, env_id: str = "Toy/Counting-v0", **kwargs: Any) -> list[EpisodeSpec]:
    return [EpisodeSpec(env_id, kwargs, seed=i, split="train", index=i, sampling_seed=100 + i) for i in range(n)]


def play(
    policy: Any, tokenizer: Any, specs: list[EpisodeSpec], budget: Budget | None = None, t: float = 1.0, **kw: Any
) -> list[Episode]:
    with closing(Runner(policy, tokenizer, budget, **kw)) as runner:
        return runner.run(specs, temperature=t)


def roll(
    tokenizer: Any, specs: list[EpisodeSpec], act: Any = expert, budget: Budget | None = None, **kw: Any
) -> list[Episode]:
    return play(scripted(tokenizer, act), tokenizer, specs, budget, **kw)


def check_episode(episode: Episode, tokenizer: Any) -> None:
    """What holds for every episode that did not fail."""
    assert episode.env is None
    (row,) = episode.rows
    check_tiling(row.spans, len(row.token_ids))
    assert len(row.logprobs) == len(row.token_ids)
    mine = [i for step in episode.steps for i in range(step.start, step.stop)]
    assert [i for i, flag in enumerate(row.action_mask) if flag] == mine
    for k, step in enumerate(episode.steps):
        text = tokenizer.decode(row.token_ids[step.start : step.stop])
        assert text.removesuffix("<|im_end|>") == step.action
        assert all(span.step == k for span in row.spans if span.start == step.start)
    assert episode.reward == pytest.approx(sum(episode.reward_terms.values()))
    assert episode.terminated != episode.truncated
    assert (episode.truncation is None) == episode.terminated
    assert episode.sampled_tokens == len(mine)
    assert row.prompt_length == episode.steps[0].start


class RandomWriter(ScriptedPolicy):
    """Random ids with random logprobs, decided by the seed of each request alone; `log` keeps what it saw and wrote.

    Most of what it writes would not survive decoding and encoding, and a share `cut` of the turns lacks an end.
    """

    def __init__(self, cut: float = 0.3) -> None:
        super().__init__(lambda episode: "", lambda text: [])
        self.cut = cut
        self.log: list[tuple[Request, Generation]] = []

    def _write(self, request: Request) -> Generation:
        assert request.params.seed is not None
        rng = np.random.default_rng(request.params.seed)
        most, cut = request.params.max_tokens, rng.random() < self.cut
        ids = rng.integers(3, 512, most if cut else int(rng.integers(0, most))).tolist() + ([] if cut else [EOS])
        generation = Generation(request.id, ids, self.logprobs(rng, len(ids)), "length" if cut else "stop")
        self.log.append((request, generation))
        return generation

    def logprobs(self, rng: np.random.Generator, count: int) -> list[float]:
        return (-rng.random(count)).tolist()

    def log_of(self: Any, episode: Episode) -> list[tuple[Request, Generation]]:
        """What it saw and wrote in one episode, in order; a turn that never reached the episode is left out."""
        return [entry for entry in self.log if entry[0].episode is episode][: len(episode.steps)]


def check_rows(episode: Episode, written: list[tuple[Request, Generation]]) -> None:
    """Hold the rows of an episode against what a policy saw and wrote: each token is trained once, as sampled."""
    assert len(written) == len(episode.steps)
    for k, (step, (request, generation)) in enumerate(zip(episode.steps, written, strict=True)):
        row = episode.rows[step.row]
        assert row.token_ids[: step.start] == request.prompt_ids, "what the policy saw"
        assert row.token_ids[step.start : step.stop] == generation.token_ids, "what it sampled"
        assert row.logprobs[step.start : step.stop] == generation.logprobs
        assert (step.start, step.stop, "agent", k) in [(a, b, kind_of(source), n) for a, b, source, n in row.spans]
    for number, row in enumerate(episode.rows):
        check_tiling(row.spans, len(row.token_ids))
        mine = [i for step in episode.steps if step.row == number for i in range(step.start, step.stop)]
        assert [i for i, trained in enumerate(row.action_mask) if trained] == sorted(mine), "the world is not trained"
        assert mine, "a row without a turn"
        assert all(value == 0 for value, trained in zip(row.logprobs, row.action_mask, strict=True) if not trained)
    sampled = sum(len(generation.token_ids) for _, generation in written)
    assert sum(sum(row.action_mask) for row in episode.rows) == sampled == episode.sampled_tokens


def check_contexts(episode: Episode, policy: RandomWriter) -> None:
    """What holds whichever context policy played: `check_rows`, and steps that follow each other through the rows."""
    check_rows(episode, policy.log_of(episode))
    for row in episode.rows:
        assert row.spans[0][2:] == ("user", -1) and row.spans[0].stop == row.prompt_length
    places = [(step.row, step.start) for step in episode.steps]
    assert places == sorted(places)


def roll_random(
    tokenizer: Any, specs: list[EpisodeSpec], context: str | Context, budget: Budget | None = None, cut: float = 0.3
) -> tuple[list[Episode], RandomWriter]:
    """Roll out random tokens and check every episode that did not fail."""
    policy = RandomWriter(cut)
    episodes = play(policy, tokenizer, specs, budget, context=context, workers=4)
    for episode in episodes:
        if episode.failure is None:
            check_contexts(episode, policy)
    return episodes, policy
