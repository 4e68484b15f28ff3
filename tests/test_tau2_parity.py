"""`Tau2-v0` against the original: hashes of the databases, results, verdicts, schemas.

They skip where the wheel is not prepared: agent-gym prepare tau2, or AGENT_GYM_TAU2=WHEEL.
"""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tau2_tools import Call, Original, hashes_of, pool_of, prepared_folder, random_list, same_databases

from agent_gym.envs.tau2.data import DOMAINS, load
from agent_gym.envs.tau2.verdict import Verdict
from agent_gym.envs.tau2.world import DomainWorld, load_domain

pytest.importorskip("loguru")
SIZES = {"retail": 114, "airline": 50, "telecom": 114}
WITH_WORDS = {"retail": 8, "airline": 50, "telecom": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared_folder(tmp_path_factory.mktemp("tau2"))


@pytest.fixture(scope="module")
def original(folder: Path) -> Original:
    # The original draws the ids of new bills. Both draw the same ones here.
    made = Original(folder)
    made.telecom_tools.uuid = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=made.world.next_id()))
    return made


def compare_gold(folder: Path, original: Original, row: Any) -> None:
    """The hashes after the gold calls, each result, and the verdict on the gold run."""
    ours, theirs = DomainWorld(folder, row["domain"], row["setup"]), original.begun(row["id"], folder, row)
    gold = original.begun(row["id"], folder, row)
    for one in row["actions"]:
        try:
            gold.make_tool_call(one["name"], requestor=one["by"], **one["arguments"])
        except Exception:  # the original's evaluator goes on, too
            assert ours is not theirs
    quiet = DomainWorld(folder, row["domain"], row["setup"])
    for one in row["actions"]:
        call = (one["by"], one["name"], one["arguments"])
        assert ours.call(one["name"], one["arguments"], one["by"])[0] == original.called(theirs, call), (
            row["id"],
            call,
        )
        quiet.call(one["name"], one["arguments"], one["by"], synced=False)
    assert hashes_of(quiet) == original.hashes(gold), row["id"]
    assert hashes_of(ours) == original.hashes(theirs), row["id"]


@pytest.mark.parametrize("domain", DOMAINS)
def test_gold_calls_give_the_hashes_and_results_of_the_original(domain: str, folder: Path, original: Original) -> None:
    rows = load(folder, domain, True)["test"]
    assert (len(rows), sum(bool(row["notes"]) for row in rows)) == (SIZES[domain], WITH_WORDS[domain])
    assert all("NL_ASSERTION" not in row["basis"] for row in rows)
    assert [row["id"].partition(" ")[2] for row in rows] == [one.id for one in original.domains[domain].get_tasks()]
    for row in rows[:: len(rows) // 4]:
        compare_gold(folder, original, row)


@pytest.mark.slow
@pytest.mark.parametrize("domain", DOMAINS)
def test_all_gold_calls_give_the_hashes_and_results_of_the_original(
    domain: str, folder: Path, original: Original
) -> None:
    for row in load(folder, domain, True)["test"]:
        compare_gold(folder, original, row)


def compare_lists(folder: Path, original: Original, domain: str, count: int, seed: int) -> None:
    """Databases after each list of calls, and their hashes after the twenty lists of a world.

    The shared records stay as they were.
    """
    rng, rows = random.Random(f"{domain}/{seed}"), load(folder, domain, True)["test"]
    known = load_domain(folder, domain)
    kits, pool = {"assistant": known.schemas, "user": known.user_schemas}, pool_of(rows)
    before, failures, calls = hashes_of(DomainWorld(folder, domain)), 0, 0
    for number in range(count):
        if number % 20 == 0:
            row = rng.choice(rows)
            ours, theirs = DomainWorld(folder, domain, row["setup"]), original.begun(row["id"], folder, row)
        some = random_list(rng, rows, kits, pool)
        for by, name, given in some:
            text, failed = ours.call(name, given, by)
            assert text == original.called(theirs, (by, name, given)), (row["id"], by, name, given)
            failures, calls = failures + failed, calls + 1
        assert same_databases(ours, theirs), (row["id"], some)
        if number % 20 == 19 or number == count - 1:
            assert hashes_of(ours) == original.hashes(theirs), (row["id"], some)
    assert hashes_of(DomainWorld(folder, domain)) == before
    assert 0.1 < failures / calls < 0.8, "the calls tell nothing"


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_changed_record_is_another_database(domain: str, folder: Path, original: Original) -> None:
    row = load(folder, domain, True)["test"][0]
    ours, theirs = DomainWorld(folder, domain, row["setup"]), original.begun(row["id"], folder, row)
    assert same_databases(ours, theirs)
    table = next(iter(vars(theirs.tools.db).values()))
    record = table[next(iter(table))] if isinstance(table, dict) else table[0]
    name = next(key for key, value in vars(record).items() if isinstance(value, str))
    setattr(record, name, "another")
    assert not same_databases(ours, theirs)


@pytest.mark.parametrize("domain", DOMAINS)
def test_random_calls_give_the_hashes_of_the_original(domain: str, folder: Path, original: Original) -> None:
    compare_lists(folder, original, domain, 10, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("domain", DOMAINS)
def test_many_random_calls_give_the_hashes_of_the_original(domain: str, folder: Path, original: Original) -> None:
    compare_lists(folder, original, domain, 3334, seed=1)


def compare_verdicts(folder: Path, original: Original, domain: str, count: int, seed: int) -> None:
    """Verdicts on gold runs of which calls and words were changed, left out or added."""
    rng, rows, right = random.Random(f"{domain}/{seed}"), load(folder, domain, True)["test"], 0
    known = load_domain(folder, domain)
    kits, pool = {"assistant": known.schemas, "user": known.user_schemas}, pool_of(rows)
    for _ in range(count):
        row = rng.choice(rows)
        calls: list[Call] = [(one["by"], one["name"], one["arguments"]) for one in row["actions"]]
        if rng.random() < 0.7:
            calls = [call for call in calls if rng.random() < 0.5] + random_list(rng, rows, kits, pool)[
                : rng.randrange(2)
            ]
        words = [one if rng.random() < 0.8 else one.replace("1", "2") for one in row["communicate"]]
        turns: list[Any] = [*((f"Word {n}.", [call]) for n, call in enumerate(calls)), f"So: {', '.join(words)}."]
        ours, verdict = DomainWorld(folder, domain, row["setup"]), Verdict(row)
        for by, name, given in calls:
            ours.call(name, given, by)
        verdict.said = [turn if isinstance(turn, str) else turn[0] for turn in turns]
        mine, theirs = verdict.terms(folder, ours), original.verdict(row["id"], turns, folder, row)
        assert mine["solved"] == theirs.reward, (row["id"], turns)
        assert mine["db"] == float(theirs.db_check.db_match), (row["id"], turns)
        assert mine["assertions"] == float(all(one.met for one in theirs.env_assertions or []))
        assert mine["actions"] == float(all(one.action_match for one in theirs.action_checks or []))
        assert mine["communicate"] == float(all(one.met for one in theirs.communicate_checks or []))
        right += mine["solved"]
    assert 0.1 < right / count < 0.95, "the runs tell nothing"


@pytest.mark.parametrize("domain", DOMAINS)
def test_mutated_runs_have_the_verdict_of_the_original(domain: str, folder: Path, original: Original) -> None:
    compare_verdicts(folder, original, domain, 8, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("domain", DOMAINS)
def test_many_mutated_runs_have_the_verdict_of_the_original(domain: str, folder: Path, original: Original) -> None:
    compare_verdicts(folder, original, domain, 300, seed=1)


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_tools_and_the_policy_are_those_of_the_original(domain: str, folder: Path, original: Original) -> None:
    from agent_gym.envs.tau2.data import policy_of

    environment, known = original.constructor(domain)(), load_domain(folder, domain)
    assert environment.get_policy() == policy_of(folder, domain)
    for mine, theirs in ((known.schemas, environment.get_tools()), (known.user_schemas, environment.user_tools)):
        tools = theirs if isinstance(theirs, list) else [*theirs.get_tools().values()] if theirs else []
        named = {one["function"]["name"]: one["function"] for one in mine}
        assert named.keys() == {one.name for one in tools}
        for one in tools:
            function = one.openai_schema["function"]
            assert named[one.name]["description"] == function["description"]
            assert named[one.name]["parameters"].get("required") == function["parameters"].get("required")
            assert [*named[one.name]["parameters"]["properties"]] == [*function["parameters"]["properties"]]
