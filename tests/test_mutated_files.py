"""Cards, run.json, logs, panels and settings that others made or broke: each is read, or named and left out.

Every file is mutated at random: values of other types, missing and doubled fields, deep nesting, huge numbers, control
characters, half a file. No mutation may end in anything but a result or an error that agent_gym raises on purpose.
"""

from __future__ import annotations

import copy
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_tools import complaint
from json_mutations import ESCAPES, mutated

pytest.importorskip("trl")

from agent_gym.cli.main import main
from agent_gym.cli.parser import json_object, read_settings
from agent_gym.cli.view import RunPage, write_page
from agent_gym.errors import AgentGymError, write_whole
from agent_gym.evaluate.panels import read_panel
from agent_gym.untrusted import MAX_DEPTH, harmless

GSM8K = "AgentR1/GSM8K-v0"


def on_purpose(act: Callable[[], object]) -> None:
    try:
        act()
    except AgentGymError as error:
        assert str(error)


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("base") / "run.jsonl"
    assert main(["eval", GSM8K, "--expert", "--episodes", "3", "--output", str(path)]) == 0
    return json.loads(path.with_suffix(".card.json").read_text())


RUN = {"command": "grpo", "argv": [GSM8K], "cwd": "/", "host": "h", "pid": 1, "status": "done",
       "started": 1.7e9, "ended": 1.8e9, "step": 4, "max_steps": 4,
       "numbers": {"reward": 0.5, "eval_success": 0.25}}  # fmt: skip
LOG = [{"step": 0, "eval_success": 0.1, "eval_success_low": 0.0, "eval_success_high": 0.2},
       {"step": 1, "reward": 0.5, "loss": 0.1, "tool/calculator/calls": 2.0, "time/step": 3.0},
       {"step": 1, "eval_success": 0.2, "eval_success_low": 0.1, "eval_success_high": 0.3, "eval_a_success": 0.5},
      ]  # fmt: skip


def boards(card: Any, folder: Path, rng: random.Random, rounds: int) -> None:
    """Each round has a good card and two mutated ones; the good one is always on the leaderboard."""
    (folder / "good.card.json").write_text(json.dumps(card))
    output = folder / "page.html"
    for _ in range(rounds):
        for name in ("a", "b"):
            (folder / f"{name}.card.json").write_text(mutated(card, rng), "utf-8", "surrogatepass")
        assert main(["leaderboard", str(folder), "--output", str(output)]) == 0
        assert "(good)" in output.read_text()


def runs_and_pages(folder: Path, rng: random.Random, rounds: int) -> None:
    """A mutated run.json, log and card hide no other run, and their run has a page."""
    for name in ("good", "bad"):
        (folder / name).mkdir()
    (folder / "good" / "run.json").write_text(json.dumps(RUN))
    bad = folder / "bad"
    for _ in range(rounds):
        (bad / "run.json").write_text(mutated(RUN, rng), "utf-8", "surrogatepass")
        (bad / "log.jsonl").write_text("\n".join(mutated(line, rng) for line in LOG), "utf-8", "surrogatepass")
        training = {"spent": {"episodes": 3}, "settings": {"beta": 0.1}, "versions": {"torch": "2"}}
        (bad / "card.json").write_text(mutated({"training": training}, rng), "utf-8", "surrogatepass")
        assert main(["runs", str(folder)]) == 0
        assert "<h1>" in RunPage(bad).overview("{}.html".format)


def panels_and_settings(folder: Path, rng: random.Random, rounds: int) -> None:
    panel = {"name": "p", "env_id": GSM8K, "env_kwargs": {}, "split": "test", "version": 1, "prompts_sha256": "a",
             "golds_sha256": "b", "tasks": [[0, "a", "b"], [3, "c", "d"]]}  # fmt: skip
    settings = {
        "env_id": GSM8K,
        "env_kwargs": {"max_turns": 3},
        "learning_rate": 1e-4,
        "list": [1, "two", {"three": 3}],
    }
    path, yaml = folder / "panel.json", folder / "settings.yaml"
    for _ in range(rounds):
        path.write_text(mutated(panel, rng), "utf-8", "surrogatepass")
        on_purpose(lambda: read_panel(str(path), GSM8K))
        yaml.write_text(mutated(settings, rng), "utf-8", "surrogatepass")
        on_purpose(lambda: read_settings(str(yaml)))


def test_mutated_cards(card: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    boards(card, tmp_path, random.Random(0), 150)
    captured = capsys.readouterr()
    assert captured.err.count("left out") > 50
    assert harmless(captured.out + captured.err) == captured.out + captured.err


def test_mutated_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs_and_pages(tmp_path, random.Random(1), 150)
    captured = capsys.readouterr()
    assert captured.out.count(str(tmp_path / "good")) == 150
    assert harmless(captured.out + captured.err) == captured.out + captured.err


def test_mutated_panels_and_settings(tmp_path: Path) -> None:
    panels_and_settings(tmp_path, random.Random(2), 100)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_twenty_thousand_mutations_of_each(
    card: Any, tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, play in (
        ("boards", lambda *given: boards(card, *given)),
        ("runs", runs_and_pages),
        ("rest", panels_and_settings),
    ):
        (tmp_path / name).mkdir()
        play(tmp_path / name, random.Random(f"{name}{seed}"), 5_000)
        capsys.readouterr()


@pytest.mark.parametrize("text", ["[" * 5000, "a: " + "[" * 5000, "a: &x [1]\nb: " + "[*x, " * 200, "\x00", "\ud800a"])
def test_settings_files_that_are_bombs(text: str, tmp_path: Path) -> None:
    for name in ("a.yaml", "a.toml"):
        (tmp_path / name).write_text(text, "utf-8", "surrogatepass")
        with pytest.raises(AgentGymError):
            read_settings(str(tmp_path / name))


def test_a_yaml_file_with_aliases_of_aliases_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    (tmp_path / "a.yaml").write_text("\n".join(lines))
    with pytest.raises(AgentGymError, match="values"):
        read_settings(str(tmp_path / "a.yaml"))


def test_deep_json_on_the_command_line_is_one_line() -> None:
    with pytest.raises(Exception, match="expected a JSON object"):
        json_object('{"a":' + "[" * (MAX_DEPTH + 5) + "]" * (MAX_DEPTH + 5) + "}")


def test_a_bad_trajectory_file_costs_its_page_and_not_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    (run / "trajectories").mkdir(parents=True)
    assert (
        main(["rollout", GSM8K, "--expert", "--episodes", "2", "--output", str(run / "trajectories/eval_0_a.jsonl")])
        == 0
    )
    (run / "trajectories" / "eval_4_a.jsonl").write_text('{"version": 1}\n')
    index = write_page(run, None, tmp_path / "page").read_text()
    assert "eval_0.html" in index and "eval_4.html" not in index and "change.html" not in index
    assert "eval_4_a.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["runs"], ["leaderboard"], ["compare", "a.jsonl", "b.jsonl"], ["rescore", "a.jsonl"]]
)
def test_names_from_files_do_not_steer_the_terminal(
    words: list[str], card: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["rollout", GSM8K, "--expert", "--episodes", "2", "--output", "a.jsonl"]) == 0
    records = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
    for name, policy in (("a", "p"), ("b", "q")):
        changed = [{**one, "policy": policy + ESCAPES, "categories": {"k" + ESCAPES: ESCAPES}} for one in records]
        changed[0]["task_id"] = "train/0"
        Path(f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in changed))
    changed_card = copy.deepcopy(card)
    changed_card["cards"][0] |= {"policy": ESCAPES, "protocol": ESCAPES}
    changed_card["cards"][0]["panel"]["name"] = ESCAPES
    Path("x.card.json").write_text(json.dumps(changed_card))
    Path("run").mkdir()
    Path("run/run.json").write_text(json.dumps({**RUN, "command": ESCAPES, "status": ESCAPES}))
    capsys.readouterr()
    main([*words, *(["."] if len(words) == 1 else [])])
    captured = capsys.readouterr()
    assert captured.out and "\x1b" not in captured.out + captured.err and "\x9b" not in captured.out + captured.err


def test_a_page_is_written_through_a_link_to_another_file_system(tmp_path: Path) -> None:
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as elsewhere:
        link = tmp_path / "page.html"
        link.symlink_to(Path(elsewhere, "page.html"))
        write_whole(link, "text")
        assert link.is_symlink() and Path(elsewhere, "page.html").read_text() == "text"
        assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_errors_show_names_without_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = complaint(capsys, "compare", str(tmp_path / f"{ESCAPES}.jsonl"))
    assert harmless(line) == line
