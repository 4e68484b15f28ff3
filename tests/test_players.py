"""Several roles in one episode: who wrote which token, whose reward it is, and what the trainer makes of it."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import pytest
from judge_tools import judged_by
from openai_tools import Server, says, serving
from rollout_tools import RandomWriter, check_rows, play, roll

from agent_gym import ConfigError, EnvFailure
from agent_gym.errors import RolloutError
from agent_gym.players import Game, PlayersEnv
from agent_gym.rollout import EpisodeSpec, by_role, from_record, replay, to_record
from agent_gym.rollout.roles import ROLE_GROUPS
from agent_gym.transcript import check_tiling, kind_of

ROUNDS = 3


class Duel(Game):
    """Each writes words; what pays is to write more capital letters than the other. A text with "!" is no action."""

    roles: ClassVar[tuple[str, ...]] = ("left", "right")

    def __init__(self, secret: int) -> None:
        super().__init__()
        self.secret, self.turns = secret, 0

    def opening(self, role: str) -> str:
        return f"You are {role}. Your secret is {role}-{self.secret}."

    def act(self, text: str) -> str | None:
        if text == "break":
            raise EnvFailure("the table broke")
        self.turns += 1
        acting = self.role
        if "!" not in text:
            self.spoken.append((acting, f"{acting} wrote: {text}"))
            self.role = self.roles[1 - self.roles.index(acting)]
        if self.turns >= 2 * ROUNDS:
            self.role, self.success = "", True
            self.metrics = {"turns": float(self.turns)}
        return 'Do not write "!".' if "!" in text else None

    def terms(self, role: str) -> dict[str, float]:
        count = Counter({who: 0 for who in self.roles})
        for who, text in self.spoken:
            count[who] += sum(letter.isupper() for letter in text)
        mine = count[role]
        return {"lead": (2 * mine - count.total()) / 10, "play": 1.0}


class DuelEnv(PlayersEnv):
    reward_weights: ClassVar[dict[str, float]] = {"lead": 1.0, "play": 0.5}
    default_system_prompt: ClassVar[str] = "Write."
    roles: ClassVar[tuple[str, ...]] = Duel.roles
    players: ClassVar[dict[str, Any]] = {"loud": lambda game, role: "AB", "shy": lambda game, role: f"a{game.turns}"}

    def __init__(self, opponent: str = "shy", process: bool = False, **kwargs: Any) -> None:
        self.process_terms = frozenset({"play"} if process else ())  # type: ignore[misc]
        super().__init__({"train": range(64), "test": range(64)}, opponent=opponent, max_turns=2 * ROUNDS, **kwargs)

    def start(self, task: Any) -> Duel:
        return Duel(int(task))

    def expert_action(self) -> str:
        return "AB"


if "Toy/Duel-v0" not in gymnasium.registry:
    gymnasium.register("Toy/Duel-v0", entry_point=DuelEnv)


def specs(n: int, **kwargs: Any) -> list[EpisodeSpec]:
    return [EpisodeSpec("Toy/Duel-v0", kwargs, seed=i, index=i, sampling_seed=i, group=i // 2) for i in range(n)]


def test_each_role_has_a_row_with_its_own_secret_and_the_words_of_the_other_are_the_worlds(tokenizer: Any) -> None:
    words = ["Aa", "b", "no!", "CC", "d", "EEE"]
    (episode,) = roll(tokenizer, specs(1, opponent="self"), lambda episode: words[len(episode.steps)])
    assert [step.row for step in episode.steps] == [0, 1, 0, 0, 1, 0] and episode.terminated
    left, right = episode.rows
    for row, role, other in ((left, "left", "right"), (right, "right", "left")):
        check_tiling(row.spans, len(row.token_ids))
        texts = {
            kind: "".join(
                tokenizer.decode(row.token_ids[span.start : span.stop])
                for span in row.spans
                if kind_of(span.source) == kind
            )
            for kind in ("user", "agent", "env")
        }
        assert f"secret is {role}-0" in texts["user"] and f"secret is {other}" not in tokenizer.decode(row.token_ids)
        mine = [step.action for step in episode.steps if episode.rows[step.row] is row]
        assert texts["agent"] == "".join(f"{action}<|im_end|>" for action in mine)
        assert {span.source for span in row.spans if kind_of(span.source) == "agent"} == {f"agent:{role}"}
        assert all(span.source in ("user", f"agent:{role}", f"env:{other}", "env") for span in row.spans)
    assert "right wrote: b" in tokenizer.decode(left.token_ids) and "right wrote" not in tokenizer.decode(
        right.token_ids
    )
    assert 'Do not write "!"' in tokenizer.decode(left.token_ids)
    assert episode.reward == pytest.approx(1.0) == episode.steps[5].reward
    earned = [[step.reward_terms for step in part.steps] for part in by_role(episode)]
    assert earned[0] == [{}, {}, {}, pytest.approx({"lead": 0.6, "play": 0.5})]
    assert earned[1] == [{}, pytest.approx({"lead": -0.6, "play": 0.5})]


def test_terms_that_only_the_first_role_has_count() -> None:
    class Favoured(Duel):
        def terms(self, role: str) -> dict[str, float]:
            return super().terms(role) | ({"first": 2.0} if role == "left" else {})

    class FavouredEnv(DuelEnv):
        reward_weights: ClassVar[dict[str, float]] = {**DuelEnv.reward_weights, "first": 1.0}

        def start(self, task: Any) -> Duel:
            return Favoured(int(task))

    env = FavouredEnv(opponent="self")
    env.reset(seed=0)
    assert [env.step("a")[1] for _ in range(2 * ROUNDS)][-1] == pytest.approx(0.5 * 2 + 2.0)


def test_process_rewards_are_the_roles_own(tokenizer: Any) -> None:
    (episode,) = roll(tokenizer, specs(1, opponent="self", process=True), lambda episode: "A" * len(episode.steps))
    left, right = by_role(episode)
    for part in (left, right):
        *before, last = [(step.reward, step.process_reward) for step in part.steps]
        assert set(before) == {(0.0, 0.0)} and last[1] == 0.5
        assert last[0] - last[1] == pytest.approx(part.reward_terms["lead"]), "the rest is the outcome"
    assert episode.steps[-1].process_reward == 1.0


def test_the_rows_of_a_role_are_the_conversation_rendered_at_once(tokenizer: Any) -> None:
    """Each row is what a chat with this role alone would be, up to its last word: no id of the other is in between."""
    for episode in roll(tokenizer, specs(6, opponent="self"), lambda episode: f"w{len(episode.steps)}"):
        for part in by_role(episode):
            plain = [{name: m[name] for name in ("role", "content")} for m in part.messages]
            whole = tokenizer.apply_chat_template(plain, tokenize=False)
            assert tokenizer.decode(part.rows[0].token_ids) == whole.removesuffix("\n")


def test_random_self_play_keeps_every_token_with_its_author(tokenizer: Any) -> None:
    """40 episodes of random ids, many without an end of turn: the policy's log against the rows."""
    policy = RandomWriter(cut=0.4)
    for episode in play(policy, tokenizer, specs(40, opponent="self")):
        assert not episode.failure and len(episode.steps) == 2 * ROUNDS
        check_rows(episode, policy.log_of(episode))
    assert len(policy.log) == 40 * 2 * ROUNDS


@pytest.mark.parametrize("role", ["left", "right"])
def test_against_a_script_there_is_one_row_and_the_scripts_words_are_never_trained(tokenizer: Any, role: str) -> None:
    (episode,) = roll(tokenizer, specs(1, opponent="loud", role=role), lambda episode: "x")
    (row,) = episode.rows
    world = "".join(
        tokenizer.decode(row.token_ids[s.start : s.stop]) for s in row.spans if kind_of(s.source) != "agent"
    )
    assert world.count("wrote: AB") == (2 if role == "left" else 3) + (role == "left")
    assert {s.source for s in row.spans if kind_of(s.source) == "agent"} == {f"agent:{role}"}
    assert episode.reward == pytest.approx(-0.6 + 0.5) and by_role(episode) == [episode]


def test_parts_are_whole_episodes_of_one_role(tokenizer: Any) -> None:
    episodes = roll(tokenizer, specs(4, opponent="self"), lambda episode: "AA" if episode.role == "left" else "b")
    for episode in episodes:
        left, right = by_role(episode)
        assert (left.reward, right.reward) == pytest.approx((1.1, -0.1)) and left.spec.role == "left"
        assert right.spec.group == episode.spec.group + ROLE_GROUPS and left.spec.group == episode.spec.group
        assert left.sampled_tokens + right.sampled_tokens == episode.sampled_tokens
        assert [step.observation for step in left.steps] == ["right wrote: b", "right wrote: b", ""]
        assert right.steps[-1].metrics == left.steps[-1].metrics == {"turns": 6.0}
        for part in (left, right):
            for k, step in enumerate(part.steps):
                assert all(s.step == k for s in part.rows[0].spans if s.start == step.start)
        record = to_record(episode, tokenizer)
        assert replay(record) == [] and to_record(from_record(record), tokenizer) == record
        assert from_record(to_record(right)).spec.role == "right"


@pytest.mark.parametrize("turn", [0, 1, 2])  # before a role has acted, too
def test_a_failure_fails_both_roles(tokenizer: Any, turn: int) -> None:
    act = lambda episode: "break" if len(episode.steps) == turn and episode.spec.index == 0 else "a"  # noqa: E731
    broken, fine = roll(tokenizer, specs(2, opponent="self"), act)
    assert [math.isnan(part.reward) for part in (*by_role(broken), *by_role(fine))] == [True, True, False, False]


def test_other_contexts_and_roles_are_refused(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="left, right.*leave context out"):
        roll(tokenizer, specs(1, opponent="self"), lambda episode: "a", context="window:1")
    for wrong in ({"opponent": "nobody"}, {"role": "middle"}):
        with pytest.raises(ConfigError, match="allowed"):
            DuelEnv(**wrong)


def test_a_served_opponent_is_told_what_its_role_is_told_and_its_failure_fails_the_episode(tokenizer: Any) -> None:
    pytest.importorskip("openai")
    server = Server(*[says("ZZ")] * ROUNDS, (400, {}))
    with serving(server) as address:
        wanted = [*specs(1, opponent=address, role="left"), *specs(1, opponent=address, role="left")]
        (fine,) = roll(tokenizer, wanted[:1], lambda episode: "a")
        asked = [content["messages"] for path, content, _ in server.asked if path.endswith("/chat/completions")]
        assert [message["role"] for message in asked[1]] == ["user", "assistant", "user"]
        assert asked[0][0]["content"] == "Write.\n\nYou are right. Your secret is right-0.\n\nleft wrote: a"
        row = fine.rows[0]
        world = "".join(tokenizer.decode(row.token_ids[s.start : s.stop]) for s in row.spans if s.source == "env:right")
        assert world.count("right wrote: ZZ") == ROUNDS and fine.reward == pytest.approx(-0.6 + 0.5)
        with pytest.raises(RolloutError, match="the opponent did not answer"):
            roll(tokenizer, wanted[1:], lambda episode: "a")


def test_a_server_of_several_models_is_asked_for_the_one_that_is_named(tokenizer: Any) -> None:
    pytest.importorskip("openai")
    server = Server(says("ZZ"), models=(200, {"data": [{"id": "one"}, {"id": "two"}]}))
    with serving(server) as address:
        with pytest.raises(RolloutError, match="it serves one, two: append one to the address"):
            roll(tokenizer, specs(1, opponent=address, role="left"), lambda episode: "a")
        roll(tokenizer, specs(1, opponent=f"{address}#two", role="left"), lambda episode: "a")
        assert {content["model"] for path, content, _ in server.asked if path.endswith("/chat/completions")} == {"two"}


def test_the_trainer_compares_roles_with_themselves_and_rae_keeps_a_mean_for_each(tmp_path: Path) -> None:
    """The advantage of every token by the formula: its role's return against the running mean of this role."""
    pytest.importorskip("trl")
    from trainer_tools import trained

    options = {"advantage_estimator": "rae", "env": "Toy/Duel-v0", "env_kwargs": {"opponent": "self"}, "max_steps": 2}
    trainer, batches, episodes = trained(tmp_path, **options, per_device_train_batch_size=4, max_episode_tokens=2000)
    means, size = {"left": 0.0, "right": 0.0}, len(episodes) // 2
    for number, batch in enumerate(batches):
        parts = [part for episode in episodes[number * size :][:size] for part in by_role(episode)]
        expected = {}
        for part in sorted(parts, key=lambda part: (part.spec.group, part.spec.member)):
            expected[tuple(part.rows[0].token_ids[: part.steps[-1].stop])] = part.reward - means[part.spec.role]
            means[part.spec.role] = 0.95 * means[part.spec.role] + 0.05 * part.reward
        mask, ids, attended = batch["action_mask"], batch["input_ids"], batch["attention_mask"].sum(1)
        assert len(expected) == int((batch["episode_of"] >= 0).sum()) == 2 * size
        for row in range(2 * size):
            advantage = expected[tuple(ids[row, : attended[row]].tolist())]
            assert batch["advantages"][row][mask[row]].tolist() == pytest.approx(
                [advantage] * int(mask[row].sum()), abs=1e-6
            )
            assert not batch["advantages"][row][~mask[row]].any()
    spent = trainer.spent
    assert (spent["asked"], spent["played"], spent["skipped"]) == (len(episodes), len(episodes), 0), "games, not roles"
    assert spent["sampled_tokens"] == sum(episode.sampled_tokens for episode in episodes)
    kept = trainer.state.stateful_callbacks["running_means"]["after"]
    assert sorted(kept.values()) == pytest.approx(sorted(means.values()))


def test_a_constant_weight_counts_each_role_as_an_episode(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from trainer_tools import trained

    options: dict[str, Any] = {"env": "Toy/Duel-v0", "env_kwargs": {"opponent": "self"}, "max_steps": 1}
    _, (batch,), episodes = trained(tmp_path, **options, max_episode_tokens=2000, loss_normalization="constant")
    weights = batch["weights"][batch["action_mask"]].tolist()
    assert weights == pytest.approx([1 / (2 * len(episodes) * 2000)] * sum(e.sampled_tokens for e in episodes))


@pytest.mark.parametrize("estimator", ["grpo", "gigpo", "gae"])
def test_every_kind_of_estimator_takes_the_roles_as_episodes(tmp_path: Path, estimator: str) -> None:
    pytest.importorskip("trl")
    from trainer_tools import trained

    options: dict[str, Any] = {"env": "Toy/Duel-v0", "env_kwargs": {"opponent": "self"}, "max_steps": 1}
    trainer, (batch,), episodes = trained(
        tmp_path, **options, advantage_estimator=estimator, ppo=estimator == "gae", trajectories_per_step=9
    )
    assert int((batch["episode_of"] >= 0).sum()) == 2 * len(episodes)
    if estimator == "grpo":  # zero-sum: in a group of games without roles there would be no spread at all
        assert trainer.state.log_history[0]["reward_std"] > 0


def test_a_game_is_demonstrated_once_and_not_for_each_role(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from trainer_tools import trained

    options: dict[str, Any] = {"env": "Toy/Duel-v0", "env_kwargs": {"opponent": "self"}, "max_steps": 1}
    _, (batch,), _ = trained(tmp_path, **options, max_episode_tokens=2000, sft_coef=0.5, sft_share=0.5)
    rows = [tuple(row) for row in batch["input_ids"][batch["sft_weights"].any(1)].tolist()]
    assert len(rows) == len(set(rows)) == 2, "one of two tasks, with a row for each role"


def test_training_refuses_what_has_no_meaning_for_a_role(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from trainer_tools import make_trainer

    options: dict[str, Any] = {"env": "Toy/Duel-v0", "env_kwargs": {"opponent": "self"}, "max_steps": 1}
    with judged_by(lambda asked: [5]) as (judge, _), pytest.raises(ConfigError, match="judge scores whole episodes"):
        make_trainer(tmp_path, judge=judge, **options).train()
    with pytest.raises(ConfigError, match="max_refills replaces tasks by their groups, and in self-play each role has"):
        make_trainer(tmp_path, max_refills=1, **options).train()


@pytest.mark.parametrize("uses", [1, 2])
def test_a_resumed_run_of_self_play_goes_on_with_its_means(tmp_path: Path, uses: int) -> None:
    """With two uses of a rollout the checkpoint is between them: it is played again, and must not count twice."""
    pytest.importorskip("trl")
    from trainer_tools import distance, make_trainer, weights

    options: dict[str, Any] = {
        "env": "Toy/Duel-v0", "env_kwargs": {"opponent": "self"}, "advantage_estimator": "rae", "max_steps": uses + 1,
        "save_strategy": "steps", "save_steps": 1, "per_device_train_batch_size": 4, "steps_per_generation": uses,
    }  # fmt: skip
    straight = make_trainer(tmp_path / "run", **options)
    straight.train()
    resumed = make_trainer(tmp_path / "again", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    means = [trainer.state.stateful_callbacks["running_means"] for trainer in (straight, resumed)]
    assert means[0] == means[1] and means[0]["before"]
    assert uses == 2 or distance(weights(resumed.model), weights(straight.model)) == 0
