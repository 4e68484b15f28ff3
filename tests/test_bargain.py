"""Bargaining: the rules, a known equilibrium, self-play with a reward for each role, and PettingZoo's own tests."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from rollout_tools import roll

from agent_gym import ConfigError, make
from agent_gym.envs.bargain.env import BargainEnv
from agent_gym.envs.bargain.game import TOTAL, Bargain, GeneratedDeals, fair, greedy, written
from agent_gym.players import Game
from agent_gym.rollout import EpisodeSpec, by_role

VALUES = {"first": [4, 0, 2], "second": [1, 3, 2]}
POOL = [1, 2, 3]


def played(game: Bargain, first: Callable[[Game, str], str], second: Callable[[Game, str], str]) -> dict[str, float]:
    while game.role:
        game.act((first if game.role == "first" else second)(game, game.role))
    return {role: game.terms(role)["share"] for role in game.roles}


def actions(game: Bargain) -> list[str]:
    return [*(f"offer: {written(one)}" for one in game.splits()), "accept", "quit"]


def value(game: Bargain) -> dict[str, float]:
    """Backward induction over every action: what each role earns where both play best, from here on."""
    if not game.role:
        return {role: game.terms(role)["share"] for role in game.roles}
    acting, best = game.role, {role: -1.0 for role in game.roles}
    for action in actions(game):
        after = copy.deepcopy(game)
        if after.act(action):
            continue
        found = value(after)
        # Who is offered nothing would as well refuse: the other gains nothing by it.
        if (found[acting], -found[game.other(acting)]) > (best[acting], -best[game.other(acting)]):
            best = found
    return best


@pytest.mark.parametrize("index", range(6))
def test_with_one_round_greedy_play_is_the_equilibrium_of_the_ultimatum_game(index: int) -> None:
    """The first leaves the least that is worth anything, the second takes it; no other action of either earns more.

    Of several divisions that are worth the same to the first, greedy play takes the one that the other likes best.
    """
    row = GeneratedDeals("train", 2)[index]

    def fresh() -> Bargain:
        return Bargain(row["pool"], row["values"], 1)

    earned = played(fresh(), greedy, greedy)
    assert earned["first"] == value(fresh())["first"] and earned["second"] > 0
    for action in actions(fresh()):
        assert played(fresh(), lambda game, role, action=action: action, greedy)["first"] <= earned["first"]
        assert played(fresh(), greedy, lambda game, role, action=action: action)["second"] <= earned["second"]


def test_two_rounds_agree_with_backward_induction() -> None:
    """A tiny game: one item each of two kinds. Who may offer last without an answer gets nothing from it."""
    game = Bargain([1, 1], {"first": [7, 3], "second": [2, 8]}, 2)
    found = value(game)
    assert (
        played(Bargain([1, 1], {"first": [7, 3], "second": [2, 8]}, 2), greedy, greedy)
        == found
        == {"first": 0.7, "second": 0.8}
    )


def test_what_each_action_does() -> None:
    game = Bargain(POOL, VALUES, 3)
    assert game.opening("second").startswith(
        "The pool: 1 book, 2 hat, 3 ball.\nOne is worth to you: book 1, hat 3, ball 2."
    )
    assert "4" not in game.opening("second")  # the other's value of a book
    assert "no offer" in str(game.act("accept")) and game.role == "first"
    assert game.act("<think>I need one.\nquit</think>\nI love books.\nOffer: 1, 0, 3.") is None
    assert game.news("second") == ("first", "I love books.\nThe other takes 1 0 3. You get 0 2 0, worth 6.")
    assert "3 numbers" in str(game.act("offer: 1 1")) and "3 numbers" in str(game.act("offer: 2 0 0"))
    assert game.act("**ACCEPT**") is None and game.role == "" and not game.success  # Nash gives the second 8
    assert game.deal == {"first": (1, 0, 3), "second": (0, 2, 0)} and game.terms("first") == {"share": 1.0}
    assert game.metrics == {"deal": 1.0, "turns": 5.0, "welfare": 1.6}
    late = Bargain(POOL, VALUES, 1)
    late.act("offer: 1 2 3")
    late.act("I think about it: offer: 0 0 0 or accept or so")
    assert late.role == "" and not late.deal and late.terms("second") == {"share": 0.0}
    for hostile in ("offer: " + "9" * 5000, "offer: 1 2 3 " * 5000, "\ud800", "offer: ٣ 0 0"):
        assert Bargain(POOL, VALUES, 2).act(hostile)


@pytest.mark.parametrize(
    ("text", "offer"),
    [
        *(
            (text, None)
            for text in ("offer: -1 0 2", "offer: 1 -1 2", "offer:-1 0 2", "offer: 1,-1,2", "offer: −1 0 2")
        ),
        *((text, (1, 0, 2)) for text in ("offer: 1-0-2", "offer: 1 - 0 - 2", "offer - 1 0 2", "offer-1 0 2")),
        ("offer: 0 0 3\noffer: -1 0 2", None),  # an offer that is none is no reason to take an earlier line
    ],
)
def test_a_number_with_a_minus_is_refused_and_a_hyphen_separates(text: str, offer: tuple[int, ...] | None) -> None:
    game = Bargain(POOL, VALUES, 3)
    assert (game.act(text) is None) == (offer is not None) and game.offer == offer


def test_nash_and_concession_are_what_they_are_called() -> None:
    for index in range(8):
        row = GeneratedDeals("test", 3)[index]
        game = Bargain(row["pool"], row["values"], 4)
        products = [game.worth("first", one) * game.worth("second", game.rest(one)) for one in game.splits()]
        assert game.fair["first"] * game.fair["second"] == max(products)
        aims = []
        for role in game.roles:
            talk = Bargain(row["pool"], row["values"], 4)
            while talk.role:
                me = talk.role
                talk.act(fair(talk, me) if me == role else "offer: " + written(talk.pool))
                if me == role and talk.offer:
                    aims.append(talk.worth(role, talk.offer))
            assert all(aim >= game.fair[role] for aim in aims[-4:])


def test_the_expert_gets_a_fair_deal_and_who_takes_the_first_offer_does_not() -> None:
    env, earned = BargainEnv(), {}
    for style in ("default", "eager"):
        infos = []
        for index in range(40):
            env.reset(seed=index, options={"split": "test", "index": index})
            over = False
            while not over:
                *_, terminated, truncated, info = env.step(env.expert_action(style))
                over = terminated or truncated
            infos.append(info["is_success"])
        earned[style] = sum(infos) / 40
    assert earned["default"] == 1.0 and earned["eager"] < 0.3
    for wrong in ({"kinds": 1}, {"opponent": "nice"}, {"difficulty": 2, "rounds": 3}):
        with pytest.raises(ConfigError):
            BargainEnv(**wrong)


def test_the_impatient_player_refuses_no_offer_in_its_last_turn_and_waiting_is_worth_more() -> None:
    env, accepted = BargainEnv(role="second"), [0, 0, 0]
    for index in range(60):
        env.reset(seed=index, options={"split": "test", "index": index})
        over = False
        while not over:
            pool, action = env.game.pool, env.expert_action("impatient")  # type: ignore[attr-defined]
            assert action in ("accept", f"offer: {written(pool)}")
            accepted[env.turn] += action == "accept"
            *_, terminated, truncated, info = env.step(action)
            over = terminated or truncated
        assert action == "accept" and info["is_success"] >= (env.turn == 3)
    assert min(accepted) > 5, "by chance in the first two turns"


def test_self_play_pays_each_role_its_own_share(tokenizer: Any) -> None:
    specs = [EpisodeSpec("AgentR1/Bargain-v0", {"opponent": "self"}, seed=i, split="test", index=i) for i in range(6)]
    for episode in roll(tokenizer, specs, lambda episode: episode.env.unwrapped.expert_action()):
        row = make("AgentR1/Bargain-v0").tasks["test"][episode.spec.index]
        game = Bargain(row["pool"], row["values"], 3)
        shares = {part.spec.role: part.reward * TOTAL for part in by_role(episode)}
        assert shares == pytest.approx(game.fair) and episode.success
        # What one role reads has the values of this role and not those of the other.
        for part in by_role(episode):
            assert game.opening(part.spec.role) in part.messages[1]["content"]


@pytest.mark.filterwarnings("ignore")
def test_pettingzoos_own_tests_pass_and_its_rewards_are_ours() -> None:
    pytest.importorskip("pettingzoo")
    from pettingzoo.test import api_test, parallel_api_test
    from pettingzoo.utils import turn_based_aec_to_parallel

    from agent_gym.contrib.pettingzoo import to_aec

    with warnings.catch_warnings():
        api_test(to_aec("AgentR1/Bargain-v0"), num_cycles=50)
        parallel_api_test(turn_based_aec_to_parallel(to_aec("AgentR1/Bargain-v0")), num_cycles=50)
    env = to_aec("AgentR1/Bargain-v0", rounds=2)
    env.reset(seed=3, options={"split": "test", "index": 5})
    row = make("AgentR1/Bargain-v0").tasks["test"][5]
    game = Bargain(row["pool"], row["values"], 2)
    earned = dict.fromkeys(game.roles, 0.0)
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, _ = env.last()
        earned[agent] += reward
        assert terminated or truncated or env.observation_space(agent).contains(observation)
        env.step(None if terminated or truncated else "accept" if game.offer else f"offer: {written(game.nash)}")
        game.offer = game.nash
    assert {role: share * TOTAL for role, share in earned.items()} == pytest.approx(game.fair)
    with pytest.raises(ConfigError, match="PlayersEnv"):
        to_aec("AgentR1/Support-v0")


def test_splits_share_no_pool() -> None:
    pools = {
        split: {tuple(row["pool"]) for row in itertools.islice(GeneratedDeals(split, 3), 200)}
        for split in ("train", "validation", "test")
    }
    assert not pools["train"] & pools["test"] and not pools["validation"] & (pools["train"] | pools["test"])
    with pytest.raises(ConfigError, match="unknown split"):
        GeneratedDeals("dev", 3)
