"""Playing that ends before the episodes do: they go on where they stood, under newer weights, and lose nothing."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rollout_tools import check_episode, counting, roll, scripted
from toy_envs import SlowWriter

from agent_gym.policies import Generation, Request
from agent_gym.policies.base import cut_at_stop
from agent_gym.rollout import Budget, Episode, Rollout, Runner, Stream, derive_seed, from_record, to_record


class Writer(SlowWriter):
    """Writes one token per poll, and can be interrupted: the prompt then holds the beginning of the turn."""

    def submit(self, request: Request) -> None:
        super().submit(request)
        begun = len(request.prompt_ids) - len(request.episode.rows[-1].token_ids)  # type: ignore[attr-defined]
        del self.running[request.id][1][:begun]

    def poll(self) -> list[Generation]:
        time.sleep(0.0005)  # so that long turns are under way when short episodes end
        return super().poll()

    def interrupt(self) -> list[Generation]:
        begun = [
            Generation(key, written, [-0.5] * len(written), "abort")
            for key, (_, _, written) in self.running.items()
            if written
        ]
        self.running.clear()
        return begun


def wordy(episode: Any) -> str:
    """Say more in some episodes than in others, and stop after two to four turns."""
    words = "on " * (60 if episode.spec.index % 5 == 4 else 2) + "."
    return "stop" if episode.turns == 2 + episode.spec.index % 3 else words


def play_in_background(runner: Runner, specs: Any) -> tuple[list[Episode], int]:
    """Play in a thread, add episodes in three parts, and pause again and again; return as `play`."""
    stream, ended, episodes, pauses = Stream(runner, background=True), list[Episode](), list[Episode](), 0
    for part in (specs[:4], specs[4:8], specs[8:]):
        episodes += stream.add(part, 1.0, ended.append)
        for _ in range(4):
            time.sleep(0.005)
            with stream.paused():
                assert runner.policy.pending == 0
                pauses += 1
                runner.version = pauses
    stream.wait(lambda: len(ended) == len(specs))
    assert sorted(map(id, ended)) == sorted(map(id, episodes)) and stream.take_times()[0].sampled_tokens > 0
    return episodes, pauses


def play(runner: Runner, specs: Any, every: int = 3) -> tuple[list[Episode], int]:
    """Interrupt after every few episodes; return them all, and how often playing began."""
    rollout = Rollout(runner)
    episodes, rounds = rollout.add(specs), 0
    while rollout.unfinished:
        runner.version = rounds
        before = rollout.unfinished
        rollout.drive(until=lambda before=before: rollout.unfinished <= before - every)
        assert runner.policy.pending == 0
        rounds += 1
        assert rounds < 50
    return episodes, rounds


@pytest.mark.parametrize("context", ["append", "window:1"])
@pytest.mark.parametrize("env_id", ["Toy/Counting-v0", "Toy/Inline-v0"])
@pytest.mark.parametrize("writer", [Writer, SlowWriter], ids=["interrupted", "aborted"])
@pytest.mark.parametrize("way", [play, play_in_background])
def test_interrupted_episodes_are_those_of_an_undisturbed_rollout(
    tokenizer: Any, writer: Any, env_id: str, context: str, way: Any
) -> None:
    specs = counting(12, env_id)
    encode = scripted(tokenizer)._encode
    whole = roll(tokenizer, specs, wordy, context=context)
    runner = Runner(writer(wordy, encode), tokenizer, context=context, workers=3, max_live=8)
    episodes, rounds = way(runner, specs)
    runner.close()
    assert rounds > 2
    pieces = 0
    for episode, expected in zip(episodes, whole, strict=True):
        if context == "append":
            check_episode(episode, tokenizer)
        assert [row.token_ids for row in episode.rows] == [row.token_ids for row in expected.rows]
        assert [row.spans for row in episode.rows] == [row.spans for row in expected.rows]
        assert episode.messages == expected.messages and episode.reward == expected.reward
        for step in episode.steps:
            assert sum(count for _, count in step.versions) == step.stop - step.start
            assert all(count > 0 for _, count in step.versions)
            versions = [version for version, _ in step.versions]
            assert versions == sorted(set(versions))
            logprobs = episode.rows[step.row].logprobs[step.start : step.stop]
            assert logprobs == [-0.5] * len(logprobs)
            pieces = max(pieces, len(versions))
        assert from_record(json.loads(json.dumps(to_record(episode)))).steps == episode.steps
        for earlier, later in zip(episode.steps, episode.steps[1:], strict=False):
            assert earlier.versions[-1][0] <= later.versions[0][0]
    assert (pieces > 1) == (writer is Writer), "turns were interrupted in their middle"


@pytest.mark.parametrize("writer", [Writer, SlowWriter])
def test_the_rest_of_a_turn_has_random_numbers_of_its_own_and_a_turn_sampled_anew_the_old_ones(
    tokenizer: Any, writer: Any
) -> None:
    runner = Runner(writer(wordy, scripted(tokenizer)._encode), tokenizer)
    play(runner, counting(12))
    runner.close()
    seeds: dict[Any, list[int]] = {}
    begun = 0
    for request in runner.policy.seen:
        # Each episode's rows are complete by now, so that the number of the step is found by its place.
        episode, length = request.episode, len(request.prompt_ids)
        step = next(k for k, s in enumerate(episode.steps) if s.start <= length < s.stop)
        written = length - episode.steps[step].start
        place = (step, written) if written else (step,)
        assert request.params.seed == derive_seed(episode.spec.sampling_seed, *place)
        assert request.params.max_tokens == 512 - written
        seeds.setdefault((id(episode), step), []).append(request.params.seed)
        begun += written > 0
    assert max(map(len, seeds.values())) > 1 and (begun > 0) == (writer is Writer)


def test_time_does_not_run_while_playing_is_paused(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(Writer(wordy, scripted(tokenizer)._encode), tokenizer, Budget(max_seconds=20.0))
    rollout = Rollout(runner)
    episodes = rollout.add(counting(6))
    rollout.drive(until=lambda: True)
    assert rollout.unfinished
    # As if the pause lasted a minute, three times as long as an episode may.
    clock = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + 60.0)
    rollout.drive()
    runner.close()
    assert all(episode.terminated and episode.truncation is None for episode in episodes)
    assert all(episode.seconds < 20 for episode in episodes)


# A stop string across an interruption.


def letters(ids: Any) -> str:
    return "".join(map(chr, ids))


@given(st.text("<go>x", min_size=1, max_size=12), st.lists(st.integers(0, 12), max_size=3))
@example("o<go>x", [3])
@example("gxxg", [2])
def test_a_stop_string_across_a_seam_ends_the_turn_where_it_would_have(text: str, seams: list[int]) -> None:
    stop = ("<go>", "xx")
    # Each piece is what an engine gives: it ends at the first stop string that lies inside of the piece.
    places = [0, *sorted({min(seam, len(text)) for seam in seams}), len(text)]
    whole: Generation | None = None
    for version, (a, b) in enumerate(zip(places, places[1:], strict=False)):
        piece = text[a:b]
        ends = [piece.find(string) + len(string) for string in stop if string in piece]
        ended = bool(ends) or b == len(text)
        piece = piece[: min(ends)] if ends else piece
        if not piece:
            continue
        ids, reason = list(map(ord, piece)), "stop_string" if ends else "length" if ended else "abort"
        part = Generation(1, ids, [-1.0 - version] * len(ids), reason, [(version, len(ids))])  # type: ignore[arg-type]
        whole = part if whole is None else whole.joined(part)
        if ended:
            break
    assert whole is not None
    found = cut_at_stop(whole, stop, letters)
    ends = [text.find(string) + len(string) for string in stop if string in text]
    expected = text[: min(ends)] if ends else text
    assert letters(found.token_ids) == expected and len(found.logprobs) == len(expected)
    assert (found.finish_reason == "stop_string") == bool(ends)
    assert [-1.0 - version for version, count in found.versions for _ in range(count)] == found.logprobs
