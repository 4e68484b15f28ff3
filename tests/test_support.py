"""The support desk: what the customer understands, what breaks a rule, and that no message pays but the right one."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from rollout_tools import roll

from agent_gym import ConfigError, make
from agent_gym.envs.support.customer import PATIENCE, Customer
from agent_gym.envs.support.embedded import DAYS, SupportTasks
from agent_gym.envs.support.env import SupportEnv
from agent_gym.rollout import EpisodeSpec
from agent_gym.transcript import kind_of


def finish(env: Any, actions: Any, index: int, split: str = "test") -> dict[str, Any]:
    """Play a task with the actions and then the last of them, and return the last info."""
    env.reset(seed=index, options={"split": split, "index": index})
    actions = iter(actions)
    last = ""
    while True:
        last = next(actions, last)
        *_, terminated, truncated, info = env.step(last)
        if terminated or truncated:
            return info


def experts(env: Any, style: str = "default") -> Any:
    while True:
        yield env.expert_action(style)


def test_a_thought_is_not_heard() -> None:
    env, thought = SupportEnv(), "<think>\nIs it 99 dollars? It cannot be cancelled. Which order?\n</think>\n\n"
    assert all(finish(env, (thought + one for one in experts(env)), index)["is_success"] for index in range(10))


@pytest.mark.parametrize("difficulty", [None, 1, 2, 3, 4, 5])
def test_the_expert_solves_what_it_looks_up_and_obedience_solves_what_is_allowed(difficulty: int | None) -> None:
    env = SupportEnv(difficulty=difficulty)
    for index in range(25):
        assert finish(env, experts(env), index)["is_success"]
        allowed = all(goal["allowed"] for goal in env.tasks["test"][index]["goals"])
        info = finish(env, experts(env, "eager"), index)
        assert info["is_success"] == allowed and (allowed or info["metrics"]["database"] == 0.0)
    goals = {1: 1, 2: 1, 3: 2}  # how many; a goal out of stock is another one
    assert difficulty not in goals or len(env.tasks["train"][0]["goals"]) == goals[difficulty]


@pytest.mark.parametrize(
    ("difficulty", "split", "index"),
    [(None, "test", 490), (3, "train", 2134), (4, "train", 1937), (4, "test", 848), (5, "validation", 592)],
)
def test_of_two_goals_with_one_variant_neither_makes_the_other_wrong(
    difficulty: int | None, split: str, index: int
) -> None:
    """In these tasks the stock of the second goal once took the place of the first one's."""
    task = SupportTasks(split, difficulty=difficulty)[index]
    content = task["content"]
    for goal in (one for one in task["goals"] if one["kind"] == "exchange"):
        call = goal["call"][1]
        order = content["orders"][call["order"]]
        item = order["items"][call["item"]]
        in_time = order["status"] == "delivered" and order["days"] <= DAYS[content["users"]["u1"]["member"]]
        stock = content["products"][item["product"]][call["variant"]]["stock"]
        assert goal["allowed"] == (in_time and stock) and call["variant"] != item["variant"]


def one_customer(mood: str = "calm", *, allowed: bool = True) -> Customer:
    goal = {
        "request": "I want to return the red mug.", "slots": {"order": "It is order W1238.", "item": "The red mug."},
        "allowed": allowed,
        "asks": [("How much do I get back?", "number", "12"), ("Why not? What is its state?", "state", "shipped")],
    }  # fmt: skip
    return Customer({"name": "Bada Gamo", "zip": "12348", "mood": mood}, [goal])


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        ("May I have your name and zip code, please?", "My name is Bada Gamo. My zip code is 12348."),
        (
            "To verify your identity: who am I speaking with? Please share your postal code.",
            "My name is Bada Gamo. My zip code is 12348.",
        ),
        ("Could you tell me the order number?", "It is order W1238."),
        ("Which order is it?", "It is order W1238."),
        ("Please provide your order's ID and your name.", "My name is Bada Gamo. It is order W1238."),
        ("What would you like to return?", "The red mug."),
        ("Which colour?", "I do not know the variant."),
        ("Shall I take it back? The refund would be 12 dollars.", "Yes, please."),
        ("Is that okay for you?", "Yes, please."),
        ("One moment, please.", "I am waiting."),
        ("How can I help you?", "I want to return the red mug."),
        ("The weather is nice.", "I do not understand. Did it work?"),
        ("Your item has been returned.", "How much do I get back?"),
        ("I'm sorry for the trouble! I processed the return.", "How much do I get back?"),
        ("I processed it: you get 12 dollars back. Anything else?", "Thank you. Goodbye."),
        ("Done, $12.00 will be refunded.", "Thank you. Goodbye."),
        ("Done: 12 dollars, or 15.", "How much do I get back? Tell me one number, please."),
        ("", "I do not understand. Did it work?"),
    ],
)
def test_the_customer_understands_many_ways_to_say_it(message: str, answer: str) -> None:
    assert one_customer().hear(message) == answer


REPORTS = {
    "done": (
        "Done! Your order is cancelled, and the cancellation is not a problem.",
        "Your order has been cancelled. This cannot be undone.",
        "I’ve cancelled it. You won’t be charged.",
        "I was able to cancel your order.",
        "A refund of 12 dollars is on its way.",
        "Your refund is 12 dollars.",
        "You will be refunded 12 dollars.",
        "It will be sent to 12348.",
        "Unfortunately the mug was broken, so I have refunded it.",
        "I'm sorry to hear that. I've returned it for you.",
        "Your order has been cancelled. There is no cancellation fee.",
        "The order wasn't processed yet, so I was able to cancel it.",
        "I've exchanged it. Please do not return the old one.",
        "Your shipping address has been corrected to 12348.",
        "You should be refunded 12 dollars within a few days.",
    ),
    "refused": (
        "A refund is only possible within 30 days.",
        "We do not accept returns after 30 days.",
        "An order must be pending to be cancelled.",
        "Unfortunately, your order is on its way.",
        "The return window has expired.",
        "No refunds for shipped orders.",
        "Your mug doesn't qualify for a refund.",
        "This order is ineligible for a return.",
        "Done, or rather it is not possible.",
        "Unfortunately, the return window has expired. Let me know if you need more time.",
    ),
    "neither": (
        "Your order has been shipped.",
        "Your order has already been processed and shipped.",
        "I have found your order. It has been delivered 12 days ago.",
        "Your identity has been verified.",
        "I'm sorry to hear that. Let me look up your order.",
        "I will get back to you.",
        "Your order can be cancelled.",
        "Items can be returned within 30 days.",
        "That is not a problem.",
        "I only need a moment.",
        "This won't take long. Let me look up your order.",
        "Please wait while I check whether it is no longer pending.",
        "Let me check if a refund is possible.",
        "I understand you'd like to have your order cancelled. Let me look into it.",
        "Let me check if it can be easily cancelled.",
        "I'll get this done for you. One moment.",
    ),
}


@pytest.mark.parametrize(("meant", "message"), [(meant, one) for meant in REPORTS for one in REPORTS[meant]])
def test_natural_words_are_taken_for_what_they_mean(meant: str, message: str) -> None:
    """A goal is failed by a report of the contrary, and by nothing else."""
    failed = {}
    for allowed in (True, False):
        customer = one_customer(allowed=allowed)
        customer.hear(message)
        failed[allowed] = customer.right == [False]
    assert failed == {True: meant == "refused", False: meant == "done"}


@pytest.mark.parametrize(
    "message",
    [
        "Unfortunately, your order has been shipped already.",
        "Unfortunately, your order has already been processed and shipped.",
        "I can only cancel pending orders, and your order has been shipped.",
        "Only orders that are pending can be cancelled. Yours is shipped.",
        "I won't be able to cancel it. It has been shipped.",
        "Your order cannot be cancelled because it has already been shipped.",
        "I’m afraid it’s shipped.",
        "After checking, I'm afraid your order has been shipped and can no longer be canceled.",
        "I'm sorry, but your order has been shipped.",
        "It has been shipped, so there is nothing I can do.",
        "I have not cancelled your order, since it was shipped.",
        "Your order is no longer pending, it is shipped.",
        "Items cannot be returned if they were not delivered yet. Your order is shipped.",
    ],
)
def test_a_refusal_with_its_reason_ends_a_goal_also_if_it_names_a_rule(message: str) -> None:
    customer = one_customer(allowed=False)
    assert customer.hear(message) == "Thank you. Goodbye." and customer.right == [True]


@pytest.mark.parametrize(
    ("messages", "right"),
    [
        (["Done. You get 12 dollars back."], [True]),
        (["Done.", "12"], [True]),
        (["Done. You get 13 dollars back.", "12"], [False]),  # the first answer counts
        (["Done: 5, 12 or 95.", "It is 12."], [True]),
        (["I cannot do that."], [False]),
        (["I took care of it.", "Yes, it did.", "12"], [True]),
        (["I took care of it.", "No."], [False]),
        (["I took care of it.", "Which order number?", "Yes.", "12"], []),  # that answers another question
        (["Done, or rather it is not possible."], [False]),
    ],
)
def test_a_report_is_judged_once(messages: list[str], right: list[bool]) -> None:
    customer = one_customer()
    for message in messages:
        customer.hear(message) if not customer.gone else None
    assert customer.right == right
    refused = one_customer(allowed=False)
    assert refused.hear("Sorry, that is not possible.") == "Why not? What is its state?"
    refused.hear("It is pending, shipped or delivered.")
    assert not refused.gone
    refused.hear("It was shipped.")
    assert refused.right == [True]


def test_patience_ends() -> None:
    for mood, patience in PATIENCE.items():
        customer = one_customer(mood)
        answers = [customer.hear("hm") for _ in range(patience + 1)]
        assert customer.gone and customer.right == [] and answers[-1].startswith("I have had enough")


def dump(content: dict[str, Any]) -> str:
    return json.dumps(content) + " pending shipped delivered " + " ".join(map(str, range(100)))


def test_stuffing_everything_into_messages_does_not_pay() -> None:
    """The database is brought into the right state, then everything is said: no question is answered."""
    env = SupportEnv()
    asked = 0
    for index in range(40):
        task = env.tasks["test"][index]
        writes = [env.parser.render(name, call) for name, call in task["writes"]]
        facts = dump(task["content"])
        for report in (f"Done. {facts}", f"Not possible. {facts}", f"Done. {facts} Anything else?"):
            info = finish(env, [*writes, report], index)
            assert info["metrics"].get("database", 1.0) == 1.0
            questions = [goal["asks"][0 if goal["allowed"] else 1][1] for goal in task["goals"]]
            assert not (info["is_success"] and any(questions)), (index, report[:30])
            asked += any(questions)
    assert asked > 100


def test_guessing_without_a_look_is_found_out() -> None:
    """Two constant reports where the customer asks: less than a tenth is solved."""
    env = SupportEnv(difficulty=3)
    for constant in ("Done. You get 30 dollars back.", "Sorry, that is not possible. It is shipped."):
        assert sum(finish(env, [constant], index)["is_success"] for index in range(60)) < 6


def test_the_customer_gives_nothing_away() -> None:
    """What has to be found out (amounts, days, states, item numbers) is never said by the customer."""
    env = SupportEnv(difficulty=5)
    for index in range(20):
        finish(env, experts(env), index)
        said = " ".join(one.text for one in env.transcript.segments if one.source in ("user", "user:customer"))
        for goal in env.tasks["test"][index]["goals"]:
            _, kind, answer = goal["asks"][0 if goal["allowed"] else 1]
            assert not kind or not re.search(rf"\b{answer}\b", said), (index, answer)
        assert not re.search(r"\b(i\d|standard|gold|stock)\b", said)


def test_the_customers_words_are_an_authors_of_their_own_and_never_trained(tokenizer: Any) -> None:
    spec = EpisodeSpec("AgentR1/Support-v0", {"difficulty": 2}, seed=1, split="test", index=0)
    (episode,) = roll(tokenizer, [spec], lambda episode: episode.env.unwrapped.expert_action())
    assert episode.success and len(episode.rows) == 1
    row, mask = episode.rows[0], episode.rows[0].action_mask
    sources = {span.source for span in row.spans}
    assert sources == {"user", "agent", "env", "user:customer"}
    for start, stop, source, _ in row.spans:
        assert mask[start:stop] == [kind_of(source) == "agent"] * (stop - start)
    spoken = [tokenizer.decode(row.token_ids[s.start : s.stop]) for s in row.spans if s.source == "user:customer"]
    assert "My name is" in spoken[0] and "bye" in spoken[-1].lower()


def test_rows_are_whole_apart_and_the_same_at_any_size() -> None:
    seen: dict[str, str] = {}
    for split in ("train", "validation", "test"):
        env = make("AgentR1/Support-v0")
        rows = list(itertools.islice(env.tasks[split], 150))
        assert json.loads(json.dumps(rows)) == json.loads(json.dumps([env.tasks[split][i] for i in range(150)]))
        for row in rows:
            assert seen.setdefault(row["person"]["name"], split) == split
            assert all(seen.setdefault(number, split) == split for number in row["content"]["orders"])
    with pytest.raises(ConfigError, match="row of its generator"):
        SupportEnv().reset(options={"task": {"question": "?"}})
    with pytest.raises(ConfigError, match="no style"):
        env.reset(seed=0)
        env.unwrapped.expert_action("rude")
