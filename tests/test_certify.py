"""Certificates: each way to cheat is caught by its check, honest environments pass, and nothing breaks the command."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from cli_tools import complaint
from toy_envs import every_id

from agent_gym.certify import CHECKS, Record, certify, run_check
from agent_gym.certify.attacks import _hedged, battery
from agent_gym.certify.record import Subject
from agent_gym.cli.main import main


def checked(name: str, check: str) -> Record:
    return run_check(check, Subject(f"cheating_envs:Cheat/{name}-v0", quick=True))


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("GoldInInfo", "leaks", r"info of reset\.extra\.target behind '' in 100% of 150 tasks"),
        ("Unnamed", "leaks", r"info of reset\.extra\.target behind '' in 100% of 150 tasks"),
        ("GoldInPrompt", "leaks", r"the prompt behind '00='"),
        ("GoldInError", "leaks", r"the answer to bad play behind 'er, such as '"),
        ("Overlapping", "splits", r"test/0 shows what train/0 shows"),
        ("Restated", "splits", r"test/0 has gold answer, numbers and names of train/0"),
        ("RestatedUnnamed", "splits", r"test/0 has gold answer, numbers and names of train/0"),
        ("Repeating", "splits", r"test/40 shows what test/0 shows"),
        ("SameSplit", "splits", r"test/0 shows what train/0 shows"),
        ("Stuffed", "attacks", "solves .*% of 30 tasks"),
        ("Lenient", "attacks", "what add says.* solves 100%"),
        ("Lopsided", "attacks", "'the most frequent answer' solves"),
        ("Farmed", "attacks", "earns 2, the expert 2|earns"),
        ("PaidByTheCall", "attacks", "'add, again and again' earns 3.2, the expert 1.1"),
        ("Endless", "attacks", "no end after 2,000 turns"),
        ("GlobalRandom", "determinism", "seed 0 gave two different episodes"),
        ("SetOrder", "determinism", "PYTHONHASHSEED 0 and 31337"),
        ("Beside", "determinism", "beside another environment"),
        ("Shallow", "copies", "copy.deepcopy: playing the copy changes the original"),
        ("NoSurrogates", "fuzz", "UnicodeEncodeError"),
        ("NotANumber", "fuzz", "must be a finite number"),
        pytest.param(
            "LeavesAThread",
            "isolation",
            "3 threads stay behind when three of it were closed: watcher",
            marks=pytest.mark.slow,
        ),
        ("LeavesFiles", "isolation", "[89] temporary files stay behind"),
        ("Meddling", "isolation", "it changes os.environ"),
        ("Unsolved", "solvable", r"the expert does not solve train/\d+"),
        ("GoldInCapitals", "leaks", r"in the prompt behind"),
        ("GoldBefore", "leaks", r"in the prompt before ' <- this\."),
        ("GoldBackwards", "leaks", r"in the prompt backwards"),
        ("GoldInBase64", "leaks", r"in the prompt as base64"),
        ("GoldForJunk", "leaks", r"in the answer to bad play behind '.*row '"),
        ("GoldAhead", "leaks", r"in info of step\.cache\[0\]"),
        ("Disguised", "splits", r"test/0 shows what train/0 shows but for case, spaces and stops"),
        ("Reworded", "splits", r"test/0 has gold answer, numbers and names of validation/0"),
        ("TakesLists", "attacks", r"the right answer among others, all of them in one turn, counts in 100%"),
        ("ListsWithoutExpert", "attacks", r"the right answer among others"),
        ("TryAgain", "attacks", r"'one answer after the other' solves 100%"),
        ("Today", "determinism", "400 days later the episodes are others"),
        pytest.param("Aging", "determinism", "400 days later the episodes are others", marks=pytest.mark.slow),
        pytest.param("Numbered", "determinism", "two new processes give different episodes", marks=pytest.mark.slow),
        ("SharedStore", "copies", "copy.deepcopy: playing the copy changes the original"),
        ("Closeness", "fuzz", "must be a finite number"),
        pytest.param("Slow", "speed", "at least 20 are wanted", marks=pytest.mark.slow),
        pytest.param("SlowWithOneTask", "speed", "at least 20 are wanted", marks=pytest.mark.slow),
    ],
)
def test_each_way_to_cheat_is_caught_by_its_check(
    name: str, check: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other processes leave files in the usual one
    record = checked(name, check)
    assert record.verdict == "fail" and re.search(words, record.text), record
    assert record.evidence


@pytest.mark.parametrize(
    ("name", "words", "evidence"),
    [
        pytest.param("Backtracking", "over 5 CPU seconds in a step", "a{30}", marks=pytest.mark.slow),
        pytest.param("SlowWords", "over 5 CPU seconds in a step", "Answer: ", marks=pytest.mark.slow),
        ("Dying", "exit code 3", r"<\|im_start\|>"),
    ],
)
def test_an_environment_that_never_answers_or_dies_fails_one_check_and_costs_the_others_nothing(
    name: str, words: str, evidence: str
) -> None:
    fuzz, solvable = certify(f"cheating_envs:Cheat/{name}-v0", quick=True, checks=["fuzz", "solvable"])
    assert fuzz.verdict == "fail" and words in fuzz.text and re.search(evidence, fuzz.evidence[0]), fuzz
    assert solvable.verdict == "pass"


def test_honest_environments_pass_and_the_command_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import re\ndef attack(opening):\n    a, b = re.findall(r'(\\d+) (?:beads|others)', opening)\n"
        "    yield f'<answer>{int(a) + int(b)}</answer>'\n"
    )
    out = {kind: tmp_path / f"it.{kind}" for kind in ("json", "html", "svg")}
    words = ["certify", "cheating_envs:Cheat/Honest-v0", "--quick", "--script", str(script)]
    words += ["--json", str(out["json"]), "--page", str(out["html"]), "--badge", str(out["svg"])]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "10 of 10 checks passed, 2 skipped" in printed
    assert re.search(r"script +1\.000 +100\.0%", printed) and re.search(r"expert +1\.000 +100\.0%", printed)
    found = json.loads(out["json"].read_text())
    assert [record["name"] for record in found["records"]] == list(CHECKS)
    assert "10 of 10 checks passed" in out["html"].read_text() and "10 of 10" in out["svg"].read_text()


@pytest.mark.parametrize("check", ["contract", "determinism", "copies", "fuzz", "leaks", "splits", "attacks"])
def test_an_honest_environment_with_a_form_of_its_own_passes(check: str) -> None:
    assert checked("Directory", check).verdict == "pass"


def test_tasks_with_the_numbers_of_others_in_other_roles_are_not_restated() -> None:
    assert checked("Swapped", "splits").verdict == "pass"


def test_a_class_of_a_module_needs_no_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_world.py").write_text("from cheating_envs import Honest\nclass OwnWorld(Honest): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    (record,) = certify("own_world:OwnWorld", quick=True, checks=["determinism"])
    assert record.verdict == "pass", record


def test_a_split_without_tasks_is_no_fault_of_an_environment_and_cannot_be_played(capsys: Any) -> None:
    env_id, checks = "cheating_envs:Cheat/EmptySplit-v0", ["fuzz", "solvable", "leaks", "splits", "attacks"]
    records = certify(env_id, quick=True, checks=checks)
    assert [record.verdict for record in records] == ["pass"] * len(checks), records
    for words in (["eval", env_id, "--expert", "--split", "test"], ["export", "tasks", env_id, "tasks.jsonl"]):
        assert "empty split 'test'; Cheat/EmptySplit-v0 has: train, validation; choose" in complaint(capsys, *words)


def test_a_failed_certificate_is_exit_code_1_with_the_evidence(tmp_path: Path, capsys: Any) -> None:
    page = tmp_path / "it.html"
    words = ["certify", "cheating_envs:Cheat/GoldInPrompt-v0", "--quick", "--checks", "leaks", "--page", str(page)]
    assert main(words) == 1
    assert "leaks: the gold answer stands in the prompt" in capsys.readouterr().out
    assert ">fail</small>" in page.read_text()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["Cheat/Nothing-v0"], "unknown environment"),
        (["AgentR1/HotpotQA-FullWiki-v0"], "retriever="),
        (["AgentR1/Bisect-v0", "--env_kwargs", '{"size": 3}'], "size is 3"),
        (["AgentR1/Bisect-v0", "--script", "none.py"], "defines no attack"),
        (["CartPole-v1"], "no agent_gym.TextEnv"),
    ],
)
def test_what_cannot_be_checked_is_the_users_mistake(words: list[str], complaint: str, capsys: Any) -> None:
    assert main(["certify", *words, "--quick", "--checks", "contract"]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.slow
@every_id
def test_our_own_environments_pass(env_id: str) -> None:
    records = certify(env_id, quick=True)
    assert [record for record in records if record.verdict == "fail"] == []


def test_random_play_is_drawn_anew_for_each_task() -> None:
    [record] = certify("AgentR1/Bisect-v0", checks=["attacks"])
    # Chance finds 30.65% of these 96 tasks, by recursion over what is left; the bounds are three standard errors. With
    # the same numbers in each task it found 52%.
    assert 0.17 < record.numbers["random: success"] < 0.45


def test_an_environment_without_an_expert_or_a_gold_answer_is_checked_as_far_as_possible() -> None:
    records = {name: checked("Mute", name) for name in ("contract", "copies", "solvable", "leaks", "attacks")}
    assert [record.verdict for record in records.values()] == ["pass", "pass", "skipped", "skipped", "pass"]


def test_what_agent_gym_new_writes_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its expert is a beginner that plays by chance, and its tasks are drawn from the seed."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", "env", "fresh_task", "--folder", "fresh"]) == 0
    monkeypatch.syspath_prepend("fresh")
    records = certify("fresh_task:Mine/FreshTask-v0", quick=True, checks=["contract", "solvable", "splits", "fuzz"])
    assert [record.verdict for record in records] == ["pass", "pass", "skipped", "pass"], records
    assert "the seed and not the number" in records[2].text


def test_environments_of_other_libraries_are_checked_through_their_adapters() -> None:
    verdicts = [checked("Safe", name).verdict for name in ("contract", "determinism", "fuzz", "leaks", "attacks")]
    assert verdicts == ["pass"] * 5
    assert "behind 'tten on it: ' in 100%" in checked("MarkedSafe", "leaks").text


def test_what_an_expert_raises_has_its_evidence() -> None:
    record = checked("LostPlan", "solvable")
    assert record.verdict == "fail" and "plan" in record.text and "expert_action()" in record.evidence[0]


def test_the_gold_answer_0_is_an_answer_among_others(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject("cheating_envs:Cheat/ListsWithoutExpert-v0", quick=True)
    monkeypatch.setattr(subject, "gold", lambda split, index: index)
    for index in (0, 7):
        assert re.search(rf"\b{index}\b", _hedged(subject, ("test", index))[0][-1])


def test_options_that_a_question_names_are_no_leak() -> None:
    assert checked("Choice", "leaks").verdict == "pass"


def test_only_tools_that_take_a_text_are_paired() -> None:
    names = battery(Subject("cheating_envs:Cheat/Several-v0", quick=True))
    ways = {name.partition(",")[0] for name in names if " says" in name}
    pairs = {name.rpartition(",")[0] for name in names if ", then " in name}
    assert ways == {"what add says", "what find says", "what list says"}
    assert pairs == {"find, then list", "list, then find"}
