"""Certificates play the expert as trainers do: by the runner, in threads or processes, with the place of an error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agent_gym.certify import Record, certify, run_check
from agent_gym.certify.record import Subject, cut


def checked(name: str, check: str) -> Record:
    return run_check(check, Subject(f"cheating_envs:Cheat/{name}-v0", quick=True))


@pytest.mark.parametrize("check", ["contract", "solvable"])
def test_a_connection_made_at_import_fails_as_it_does_in_training(check: str) -> None:
    record = checked("SharedConnection", check)
    assert record.verdict == "fail" and "tool calls of the expert failed" in record.text
    assert "SQLite objects created in a thread" in record.text
    if check == "solvable":
        assert re.search(r"\(\S+cheating_envs\.py:\d+\)$", record.text), "where the function is"
    record = checked("RaisesThere", check)
    assert record.verdict == "fail" and "tool 'add' broke: ProgrammingError: SQLite" in record.text
    assert re.search(r"\(\S+cheating_envs\.py:\d+\)$", record.text)
    assert checked("OwnConnection", check).verdict == "pass"


@pytest.mark.parametrize("processes", [0, 2])
def test_an_expert_whose_calls_fail_shows_nothing_and_the_first_error_has_its_line(processes: int) -> None:
    [record] = certify("cheating_envs:Cheat/BadAdding-v0", quick=True, checks=["solvable"], env_processes=processes)
    assert record.verdict == "fail" and record.numbers["solved in test"] == 1.0
    words = r"^\d+ of 60 tool calls of the expert failed in rollouts; the first, of 'add': Error: ValueError: "
    assert re.search(words, record.text)
    assert re.search(r"Error: ValueError: it's \d+ 'quoted' \\ \(", record.text), "no repr of a repr"
    file = Path(__file__).with_name("cheating_envs.py")
    texts = file.read_text().splitlines()
    raised = next(n for n, text in enumerate(texts, 1) if "# line: bad adding" in text)
    # What was raised in another process is told there; here it is known where the function begins.
    place = f"{file}:{raised}" if not processes else f"{file}:{raised - 3}"
    assert record.text.endswith(f"({place})"), record.text


def test_an_expert_that_never_calls_a_tool_is_told() -> None:
    record = checked("NeverCalls", "solvable")
    assert (record.verdict, record.evidence) == ("pass", [])
    assert record.text.endswith("of every split; it never calls a tool, so nothing is shown of add")
    assert "never calls" not in checked("Honest", "solvable").text


def test_evidence_is_escaped_once_and_bounded() -> None:
    for text in ('it\'s a "quote" \\ here', "é\n\x00\ud800", "7" * 10**6, "word " * 1000):
        line = cut(text)
        assert cut(line) == line and len(line) <= 310 and line.encode() and line.isprintable()
    assert cut("it's \\ é") == "it's \\ é" and cut("7" * 10**6) == "7" * 40 + "..."
