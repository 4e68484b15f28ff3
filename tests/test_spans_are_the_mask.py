"""What the environment reports as the policy's is trained, and nothing else: all readers have one mask."""

from __future__ import annotations

import re
from contextlib import closing
from itertools import accumulate
from pathlib import Path
from typing import Any

import gymnasium
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from rollout_tools import RandomWriter, roll  # noqa: E402
from rollout_tools import play as play_with  # noqa: E402
from test_grpo_masks import rollout, row_of  # noqa: E402
from trainer_tools import LettersEnv, make_trainer, model_folder  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from agent_gym import Span  # noqa: E402
from agent_gym.chat import ChatRenderer  # noqa: E402
from agent_gym.errors import EnvFailure, RolloutError  # noqa: E402
from agent_gym.evaluate import episode_values  # noqa: E402
from agent_gym.policies.base import Generation  # noqa: E402
from agent_gym.rollout import Budget, Episode, EpisodeSpec, LiveEpisode, Row, Runner, from_record, to_record  # noqa: E402
from agent_gym.trainers.batch import NOT_SAMPLED, collate, training_episode  # noqa: E402
from agent_gym.trainers.export_trajectories import export_trajectories  # noqa: E402
from agent_gym.trainers.hooks.records import over_rows  # noqa: E402
from agent_gym.trainers.sft import sft_dataset  # noqa: E402
from agent_gym.viewer.page import compact  # noqa: E402
from agent_gym.viewer.terminal import episode_table  # noqa: E402

TAKEN, WRONG = "Toy/Taken-v0", "Toy/Wrong-v0"


class TakenEnv(LettersEnv):
    """The world takes some of the sampled tokens of each turn, and may take whole turns.

    Args:
        first: tokens at the beginning of a turn.
        last: tokens at its end.
        turns: turns that it takes as a whole.
    """

    def __init__(self, first: int = 0, last: int = 0, turns: tuple[int, ...] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.first, self.last, self.turns = first, last, tuple(turns)

    def step(self, action: str) -> Any:
        *result, info = super().step(action)
        (start, stop, _, k), *answer = info["token_spans"]
        first = stop if k in self.turns else min(stop, start + self.first)
        last = max(first, stop - self.last)
        mine = Span(start, first, "env", k), Span(first, last, "agent", k), Span(last, stop, "env", k)
        info["token_spans"] = [span for span in mine if span.stop > span.start] + answer
        return *result, info


class WrongEnv(LettersEnv):
    """Reports spans that cannot be, in its opening or in its second turn."""

    def __init__(self, what: str, **kwargs: Any) -> None:
        super().__init__(patient=True, **kwargs)
        self.what = what

    def reset(self, **kwargs: Any) -> Any:
        observation, info = super().reset(**kwargs)
        if self.what == "opening":
            info["token_spans"] = [span._replace(source="agent") for span in info["token_spans"]]
        return observation, info

    def step(self, action: str) -> Any:
        *result, info = super().step(action)
        agent, env = info["token_spans"] if len(info["token_spans"]) == 2 else (info["token_spans"][0], None)
        if agent.step == 1 and env is not None:
            info["token_spans"] = {
                "claim": [agent._replace(stop=agent.stop + 3), env._replace(start=env.start + 3)],
                "answer": [agent._replace(source="env"), env._replace(source="agent")],
                "gap": [agent._replace(stop=agent.stop - 1), env],
                "beyond": [agent, env._replace(stop=env.stop + 2)],
                "none": [],
                "source": [agent._replace(source="assistant"), env],
                "shape": [tuple(agent)[:3], env],
            }.get(self.what, info["token_spans"])
        return *result, info


for _id, _point in ((TAKEN, TakenEnv), (WRONG, WrongEnv)):
    if _id not in gymnasium.registry:
        gymnasium.register(_id, entry_point=_point)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(model_folder())


def play(tokenizer: Any, env_id: str, n: int = 6, context: str = "append", **kwargs: Any) -> list[Episode]:
    specs = [EpisodeSpec(env_id, kwargs, seed=i, index=i, group=i, sampling_seed=i) for i in range(n)]
    budget = Budget(8, 400, max_turns=3)
    with closing(Runner(RandomWriter(), tokenizer, budget, context=context, workers=2)) as runner:
        return runner.run_share(specs)


def taken(episode: Episode, **kwargs: Any) -> set[tuple[int, int]]:
    """The (row, position) of the policy's tokens by what the environment was to take, from the steps alone."""
    mine = set()
    for k, step in enumerate(episode.steps):
        if k not in kwargs.get("turns", ()):
            inside = range(step.start + kwargs.get("first", 0), step.stop - kwargs.get("last", 0))
            mine |= {(step.row, t) for t in inside}
    return mine


CASES: list[tuple[str, dict[str, Any]]] = [
    *[("append", case) for case in ({"first": 2}, {"last": 1}, {"first": 1, "last": 2}, {"turns": (0,)}, {})],
    *[("window:1", case) for case in ({"first": 1, "last": 2}, {"turns": (1,)})],
    ("budget:120", {"last": 1}),
    ("template", {"first": 2}),
]


@pytest.mark.parametrize(("context", "case"), CASES, ids=str)
def test_every_reader_has_the_mask_that_the_environment_reported(
    tokenizer: Any, tmp_path: Path, context: str, case: dict[str, Any]
) -> None:
    episodes = play(tokenizer, TAKEN, context=context, patient=True, **case)
    for number, episode in enumerate(episodes):
        assert episode.failure is None
        mine = taken(episode, **case)
        flags = {(i, t) for i, row in enumerate(episode.rows) for t, flag in enumerate(row.action_mask) if flag}
        assert flags == mine
        assert episode.sampled_tokens == len(mine) == episode_values(episode)["episode/tokens"]
        assert {(i, t) for i, row in enumerate(episode.rows) for t, x in enumerate(row.logprobs) if x} == mine
        for k, step in enumerate(episode.steps):
            owned = sum((step.row, t) in mine for t in range(step.start, step.stop))
            assert sum(count for _, count in step.versions) == owned, k
        # The trainer's.
        kept = training_episode(episode, number)
        trained = [k for row in kept.rows for k in row.step_of.tolist() if k != NOT_SAMPLED]
        assert len(trained) == len(mine) and trained == sorted(trained)
        batch = collate([kept], len(kept.rows) + 1, 0)
        assert int(batch["action_mask"].sum()) == len(mine)
        # What colours tokens lays its numbers on the same.
        laid = over_rows(episode, [1.0 + i for i in range(len(mine))])
        assert {(i, t) for i, row in enumerate(laid) for t, x in enumerate(row) if x} == mine
        # Imitation's.
        labels = sft_dataset(episode.rows)["labels"]
        assert {(i, t) for i, row in enumerate(labels) for t, x in enumerate(row) if x != -100} == mine
        # The files'.
        record = to_record(episode, tokenizer)
        assert from_record(record).sampled_tokens == len(mine)
        rows = compact([record], "")["episodes"][0]["rows"]
        assert sum(len(row["logprobs"]) for row in rows) == len(mine)
        tokens = episode_table([record]).columns[4]
        assert [str(cell) for cell in tokens.cells] == [str(len(mine))]
        exported = export_trajectories([record], tmp_path / f"{number}")
        assert sum(sum(row["action_mask"]) for row in exported[0]["rows"]) == len(mine)


def test_numbers_follow_the_turns_where_an_earlier_row_goes_on() -> None:
    episode = LiveEpisode(EpisodeSpec("Toy/Counting-v0"))
    episode.rows.append(Row())
    episode.row.extend([1, 2], [Span(0, 2, "user", -1)])
    for context, ids in ((None, [10, 11]), ([5, 6, 7], [20]), ([1, 2, 10, 11, 8], [30, 31])):
        if context is not None:
            episode.rewrite(context)
        episode.record_unanswered(Generation(0, ids, [-0.1] * len(ids), "stop", [(0, len(ids))]), "")
    assert [step.row for step in episode.steps] == [0, 1, 0]
    assert over_rows(episode, [1, 2, 3, 4, 5]) == [[0, 0, 1, 2, 0, 4, 5], [0, 0, 0, 3]]


def test_a_turn_of_the_world_stays_context_where_the_context_is_condensed(tokenizer: Any) -> None:
    specs = [EpisodeSpec(TAKEN, {"patient": True, "last": 1}, seed=i, index=i, sampling_seed=i) for i in range(4)]
    budget = Budget(24, 700, max_turns=9)
    episodes = play_with(RandomWriter(0.0), tokenizer, specs, budget, context="summarize:500", workers=2)
    assert any(step.kind == "summary" for episode in episodes for step in episode.steps)
    for episode in episodes:
        for k, step in enumerate(episode.steps):
            last = [s for s in episode.rows[step.row].spans if s.step == k and s.source == "agent"][-1:]
            # The summary is no turn of the environment: all of it is the policy's.
            assert [s.stop for s in last] in ([step.stop - (step.kind == "act")], [])
        training_episode(episode, 0)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("claim", r"gives tokens \d+ to \d+ of info\['token_ids'\] to the policy, which sampled only the first \d+"),
        ("answer", r"gives tokens \d+ to \d+ .*which sampled only the first"),
        ("gap", "do not tile"),
        ("beyond", "of .* positions"),
        ("none", "cover 0 of"),
        ("source", "'assistant'.*known: system, user, agent, env"),
        ("shape", "expected 4"),
    ],
)
def test_spans_that_cannot_be_fail_the_episode_and_name_place_and_range(tokenizer: Any, what: str, words: str) -> None:
    episodes = play(tokenizer, WRONG, n=3, what=what)
    for episode in episodes:
        failure = str(episode.failure)
        assert failure.startswith("EnvFailure: Toy/Wrong-v0, turn 1: ")
        assert re.search(words, failure), failure
        assert "mistake in the environment's code" in failure and "\n" not in failure
        assert episode.reward != episode.reward, "it is not scored"
        assert episode.turns == 1, "what came before stays"


def test_a_prompt_cannot_be_the_policys(tokenizer: Any) -> None:
    with pytest.raises(RolloutError, match=r"Toy/Wrong-v0, opening: .*which sampled only the first 0"):
        roll(tokenizer, [EpisodeSpec(WRONG, {"what": "opening"})], lambda episode: "a", workers=1)


def test_the_trainer_refuses_an_episode_whose_spans_and_steps_disagree(tokenizer: Any) -> None:
    (episode,) = play(tokenizer, TAKEN, n=1, patient=True)
    row, step = episode.rows[0], episode.steps[0]
    good = list(row.spans)
    row.spans[:] = [Span(0, len(row.token_ids), "env", 0)]
    assert training_episode(episode, 0).rows == []  # without a token of the policy nothing is trained
    n = len(row.token_ids)
    row.spans[:] = [Span(0, n, "agent", 0)]
    with pytest.raises(EnvFailure, match=f"Taken-v0, step 0.*tokens 0 to {n} .*sampled {step.start} to {step.stop}"):
        training_episode(episode, 0)
    row.spans[:] = [span._replace(step=7) if span.source == "agent" else span for span in good]
    with pytest.raises(EnvFailure, match="step 7: .*sampled nothing there"):
        training_episode(episode, 0)
    row.spans[:] = good[:-1]
    with pytest.raises(ValueError, match="spans cover"):
        training_episode(episode, 0)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("reinforce_pp", {"first": 2}),
        ("reinforce_pp", {"last": 1}),
        ("reinforce_pp", {"turns": (1,)}),
        ("gigpo", {"turns": (1,)}),
        ("step_gae", {"first": 2}),
        ("bilevel_gae", {"turns": (1,)}),
    ],
    ids=str,
)
def test_taken_tokens_are_context_in_the_loss_and_rewards_stand_next_to_them(
    tmp_path: Path, name: str, case: dict[str, Any]
) -> None:
    critic = name.endswith("gae")
    options = {"ppo": critic, "advantage_estimator": name, "num_generations": 4, "whiten_advantages": False}
    trainer = make_trainer(tmp_path, env=TAKEN, env_kwargs={"patient": True, **case}, max_turns=3, **options)
    played, batch = rollout(trainer)
    for episode in played:
        i, n = row_of(batch, episode.rows[0].token_ids)
        where = {t for t, flag in enumerate(batch["action_mask"][i, :n].tolist()) if flag}
        assert where == {t for _, t in taken(episode, **case)}
        assert set(batch["weights"][i].nonzero().view(-1).tolist()) == where
        if name == "reinforce_pp":
            # Each reward stands on the policy's last token before the world's answer, or on its first of all.
            places, paid = sorted(where), dict.fromkeys(where, 0.0)
            for step in episode.steps:
                paid[max([t for t in places if t < step.stop], default=places[0])] += step.reward
            to_go = list(accumulate(paid[t] for t in reversed(places)))[::-1]
            assert batch["advantages"][i, places].tolist() == pytest.approx(to_go, abs=1e-5)
        if critic:
            valued = batch["value_mask"][i].nonzero().view(-1).tolist()
            assert set(valued) <= where and min(valued) == min(where)


def test_the_reward_of_a_turn_that_the_world_took_counts_in_the_return(tokenizer: Any) -> None:
    for turns, kept in (((1,), (0, 2)), ((0,), (1, 2))):
        for number, episode in enumerate(play(tokenizer, TAKEN, patient=True, turns=turns)):
            for k, step in enumerate(episode.steps):
                step.reward, step.process_reward = 4.0 + k, 1.0
            made = training_episode(episode, number)
            assert {k for row in made.rows for k in row.step_of.tolist()} - {NOT_SAMPLED} == set(kept)
            assert sum(made.outcome) + sum(made.process) == pytest.approx(episode.reward)
            # A process reward credits its step and those before it: before the policy's first there are none.
            assert made.process == ([0.0, 1.0, 1.0] if turns == (0,) else [1.0, 1.0, 1.0])
            assert made.outcome == ([4.0, 4.0, 5.0] if turns == (0,) else [3.0, 4.0, 5.0])
            # Its state is compared with no other attempt at the task; the opening of a turn of the policy's is.
            assert (made.anchors[0] == training_episode(episode, number + 1).anchors[0]) == (turns == (1,))


def test_the_renderer_sees_the_whole_turn(tokenizer: Any) -> None:
    # An end of turn that the world took is still there: the template must not close the turn a second time.
    renderer = ChatRenderer.of(tokenizer)
    for episode in play(tokenizer, TAKEN, patient=True, last=1):
        ids, end = episode.rows[0].token_ids, renderer.end_of_turn
        for step in episode.steps[:-1]:
            assert [ids[step.stop - 1], ids[step.stop]].count(end) == 1
