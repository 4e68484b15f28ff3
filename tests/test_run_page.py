"""The page of a run: from the files of a real run, written as a folder and served while it goes on."""

from __future__ import annotations

import json
import os
import re
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser
from cli_tools import complaint

pytest.importorskip("trl")

from trainer_tools import ENV, make_trainer  # noqa: E402

from agent_gym.cli import view  # noqa: E402
from agent_gym.cli.main import main  # noqa: E402
from agent_gym.speedrun.dashboard import watch  # noqa: E402
from agent_gym.trainers import task_dataset  # noqa: E402
from agent_gym.trainers.run_file import FILE, LOG, history, read  # noqa: E402


@pytest.fixture(scope="module")
def run(tmp_path_factory: Any) -> Path:
    """A run of three steps with an evaluation before it and one after it."""
    folder = Path(tmp_path_factory.mktemp("run"))
    evaluated = {"eval_dataset": task_dataset(ENV, split="test", tasks=3), "eval_strategy": "steps", "eval_steps": 3}
    trainer = make_trainer(folder, max_steps=3, trajectories_per_step=8, eval_on_start=True, **evaluated)
    with watch(trainer):
        trainer.train()
    return folder


def test_a_program_leaves_the_record_that_a_command_leaves(run: Path, tmp_path: Path, capsys: Any) -> None:
    about = read(run / FILE)
    assert (about["command"], about["status"], about["step"], about["max_steps"]) == ("python", "done", 3, 3)
    assert about["trainer"] == "AgentGRPOTrainer" and about["env"] == ENV
    assert {"reward", "loss"} <= about["numbers"].keys()
    assert main(["runs", str(run.parent)]) == 0
    rows = [line.split()[:3] for line in capsys.readouterr().out.splitlines()]
    assert [str(run), "AgentGRPOTrainer", "done"] in rows
    assert "trained by a program (python " in complaint(capsys, "resume", str(run))
    trainer = make_trainer(tmp_path, max_steps=1)
    trainer.training_step = lambda *args: 1 / 0
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert read(tmp_path / FILE)["status"] == "failed"


def links(page: Path) -> set[str]:
    return set(re.findall(r'href="([^"]+)"', page.read_text()))


def test_the_log_of_a_run_is_in_its_folder(run: Path, tmp_path: Path) -> None:
    logs = history(run)
    assert [log["step"] for log in logs if "reward" in log] == [1, 2, 3]
    assert [log["step"] for log in logs if "eval_success" in log] == [0, 3]
    # Taken up again after step 1, and killed while it wrote a line.
    lines = (run / LOG).read_text().splitlines()
    again = json.dumps({**json.loads(lines[-1]), "reward": 7.0, "step": 2})
    (tmp_path / LOG).write_text("\n".join([*lines, again, '{"step": 3, "rew']))
    assert [(log["step"], log.get("reward")) for log in history(tmp_path)][-1] == (2, 7.0), "step 3 is lost"
    assert history(tmp_path / "none") == []


def test_the_page_leads_from_each_point_to_its_episodes(run: Path, capsys: Any) -> None:
    (run / "trajectories" / "notes.jsonl").write_text("{}\n")  # a user's own file is passed over
    assert main(["view", str(run)]) == 0
    index = Path(capsys.readouterr().out.strip())
    assert index == run / "page" / "index.html"
    assert {one.name for one in index.parent.iterdir()} - {"index.html"} == links(index)
    assert {"eval_0.html", "eval_3.html", "change.html", "train_0.html", "train_2.html"} <= links(index)
    text = index.read_text()
    assert '<a href="train_0.html" aria-label="episodes of step 1: ' in text, "step 1 was played before it"
    assert "learning_rate" in text and "sampled_tokens" in text and "time/update" in text
    change = (run / "page" / "change.html").read_text()
    assert '"runs":["step 0","step 3"]' in change


def test_it_is_served_while_the_run_goes_on(run: Path) -> None:
    with view.page_server(run, "mine", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def get(path: str, **headers: str) -> str:
            asked = urllib.request.Request(f"{server.url}/{path}", headers=headers)
            return str(urllib.request.urlopen(asked, timeout=30).read().decode())

        assert "<h1>mine</h1>" in get("") and 'href="/eval_3"' in get("")
        assert '"runs":["step 0","step 3"]' in get("change") and "mine: train, step 1" in get("train_1")
        for path in ("eval_9", "../log.jsonl", "train_0/../../log.jsonl"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(path)
        with pytest.raises(urllib.error.HTTPError, match="403"):
            get("eval_3", Host="elsewhere.example")  # a page of another site whose name leads here


def test_what_is_no_run_cannot_be_served(run: Path, capsys: Any) -> None:
    assert main(["view", str(run / "trajectories" / "eval_000000_0.jsonl"), "--web"]) == 2
    assert "name a run's folder" in capsys.readouterr().err
    with view.page_server(run, None, 0) as taken:
        assert main(["view", str(run), "--web", "--port", str(taken.address[1])]) == 2
    assert "choose another port" in capsys.readouterr().err


def test_ways_to_look_that_do_not_go_together_are_named(run: Path, capsys: Any) -> None:
    for words in (
        ["--episode", "1"],
        ["--web", "--terminal"],
        ["--web", "--open"],
        ["--terminal", "--output", "x.html"],
    ):
        assert main(["view", str(run), *words]) == 2
        error = capsys.readouterr().err
        assert words[0] in error and "is none" not in error and (len(words) == 2 or words[1] in error), error


AXE = Path(os.environ.get("AXE_CORE", "node_modules/axe-core/axe.min.js"))  # npm install --no-save axe-core


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None or not AXE.is_file(), reason="no chromium or no axe-core on this machine")
@pytest.mark.parametrize("narrow", [False, True])
def test_axe_finds_nothing(run: Path, tmp_path: Path, narrow: bool) -> None:
    main(["view", str(run), "--output", str(tmp_path / "page")])
    with Browser(tmp_path) as browser:
        for name in ("index.html", "change.html", "eval_3.html", "train_0.html", "train_0.html#0"):
            screen = {"width": 390, "height": 844, "dark": True, "touch": True} if narrow else {}
            browser.open(f"{(tmp_path / 'page').as_uri()}/{name}", **screen)
            browser.send("Runtime.evaluate", expression=AXE.read_text())
            asked = "axe.run().then((found) => found.violations.map((one) => one.id + ' ' + one.nodes[0].html))"
            found = browser.send("Runtime.evaluate", expression=asked, awaitPromise=True, returnByValue=True)
            assert found["result"]["value"] == [], name


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_a_browser_has_nothing_to_complain_about(run: Path, tmp_path: Path) -> None:
    main(["view", str(run), "--output", str(tmp_path / "page")])
    with Browser(tmp_path) as browser:
        for name in ("index", "change"):
            browser.open(tmp_path / "page" / f"{name}.html")
        assert not browser.errors
