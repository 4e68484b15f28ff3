"""Files that somebody else put into a folder: links, torn journals, a page that is there when the disk is full."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")

from agent_gym.errors import ConfigError
from agent_gym.gateway.journal import fold, folder_of
from agent_gym.rollout.episode import Episode, EpisodeSpec
from agent_gym.rollout.trajectories import to_record
from agent_gym.trainers.checkpoints import read_provenance
from agent_gym.trainers.run_lock import FILE, held

SPEC = EpisodeSpec("AgentR1/GSM8K-v0", {}, "train", 0, 0)
TURN = {
    "messages": [],
    "tools": [],
    "kept": 0,
    "prompt": [1],
    "text": "a",
    "token_ids": [2],
    "logprobs": [0.0],
    "cut": False,
}


def test_a_lock_that_is_a_link_empties_no_other_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FILE).symlink_to(mine)
    with (
        pytest.raises(ConfigError, match=r"cannot write .*run: Too many levels of symbolic links"),
        held(tmp_path / "run"),
    ):
        pass
    assert mine.read_text() == "precious"


def test_a_lock_is_for_its_owner(tmp_path: Path) -> None:
    with held(tmp_path / "run"):
        assert stat.S_IMODE((tmp_path / "run" / FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "lines",
    [
        ["{half", json.dumps(TURN), json.dumps(TURN)],
        [json.dumps(to_record(Episode(SPEC))), "[]", "{}"],
        [json.dumps(to_record(Episode(SPEC))), json.dumps(TURN), json.dumps({**TURN, "kept": "x"})],
        [json.dumps(to_record(Episode(SPEC))), json.dumps({**TURN, "token_ids": 3})],
        ["null", "null"],
        ["\x00" * 4096, json.dumps(TURN), json.dumps(TURN)],
    ],
)
def test_a_damaged_conversation_is_kept_and_the_others_are_folded(lines: list[str], tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    folder = folder_of(record)
    folder.mkdir()
    good = "\n".join([json.dumps(to_record(Episode(SPEC))), json.dumps(TURN)])
    (folder / "1.jsonl").write_text("\n".join(lines))
    (folder / "2.jsonl").write_text(good)
    (folder / "3.jsonl").symlink_to("/etc/passwd")
    assert fold(record) == 1
    assert len(record.read_text().splitlines()) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["1.jsonl.unreadable", "3.jsonl"]


GOOD = {"trainer": "T", "settings": {}, "step": 3, "environments": [], "evaluations": []}
ENV = {"env_id": "X", "env_kwargs": {}, "split": "train", "tasks": 3}


def test_a_description_of_a_checkpoint_is_read(tmp_path: Path) -> None:
    (tmp_path / "agent_gym.json").write_text(json.dumps({**GOOD, "environments": [ENV], "base_model": None}))
    assert read_provenance(tmp_path)["step"] == 3


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "3",
        "{",
        "[" * 100_000,
        '{"trainer": "T"}',
        json.dumps({**GOOD, "settings": []}),
        json.dumps({**GOOD, "environments": [{**ENV, "env_kwargs": "x"}]}),
        json.dumps({**GOOD, "environments": [{**ENV, "tasks": -1}]}),
        json.dumps({**GOOD, "evaluations": [{"step": 1, "success": "high"}]}),
        json.dumps({**GOOD, "versions": {"torch": 2}}),
        json.dumps({**GOOD, "step": "\x1b[2J"}),
    ],
)
def test_a_bad_description_of_a_checkpoint_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "agent_gym.json").write_text(text)
    with pytest.raises(ConfigError, match="agent_gym.json cannot be read: ") as caught:
        read_provenance(tmp_path)
    assert "\x1b" not in str(caught.value)


FULL = """
import resource, signal, sys
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
from agent_gym.errors import AgentGymError
from agent_gym.viewer import write_html
try:
    write_html(Path(sys.argv[1]), [])
except AgentGymError as error:
    print(error)
"""


def test_a_page_stays_when_there_is_no_room_for_the_next_one(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("the page before")
    done = subprocess.run([sys.executable, "-c", FULL, str(page)], capture_output=True, text=True, env={**os.environ})
    assert "make room" in done.stdout, done.stderr
    assert page.read_text() == "the page before"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def strange_files(folder: Path, name: str) -> None:
    """Put a pipe, a device without end, a link to itself, a folder and a file of holes where files are expected."""
    for kind in ("pipe", "device", "loop", "folder", "holes"):
        place = folder / name.format(kind)
        place.parent.mkdir(parents=True, exist_ok=True)
        if kind == "pipe":
            os.mkfifo(place)
        elif kind == "folder":
            place.mkdir()
        elif kind == "holes":
            with place.open("wb") as file:
                os.truncate(file.fileno(), 1 << 40)
        else:
            place.symlink_to("/dev/zero" if kind == "device" else place)


def test_pipes_devices_and_files_of_holes_hold_up_no_reader(tmp_path: Path) -> None:
    strange_files(tmp_path / "cards", "{}.card.json")
    strange_files(tmp_path / "runs", "{}/run.json")
    good = tmp_path / "runs" / "good"
    good.mkdir()
    (good / "run.json").write_text(json.dumps({"command": "grpo", "argv": [], "cwd": "/", "status": "done"}))
    os.mkfifo(good / "log.jsonl")
    os.truncate(os.open(tmp_path / "a.jsonl", os.O_CREAT | os.O_WRONLY), 1 << 40)
    code = (
        "import resource, sys; from agent_gym.cli.main import main; "
        "resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30)); sys.exit(main(sys.argv[1:]))"
    )

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)

    boards = run("leaderboard", "cards")
    assert boards.stderr.count("left out") >= 3 and "Traceback" not in boards.stderr
    runs = run("runs", "runs")
    assert runs.returncode == 0 and "runs/good" in runs.stdout and runs.stderr.count("left out") >= 3
    assert "no regular file" in runs.stderr and "at most 67,108,864 are read" in runs.stderr
    assert run("view", "runs/good", "--output", "page").returncode == 0
    viewed = run("view", "a.jsonl")
    assert viewed.returncode == 2 and "a line has more than 268,435,456 bytes" in viewed.stderr


@pytest.mark.parametrize("place", ["/dev/zero", "{}/pipe", "{}"])
def test_what_is_no_file_is_no_settings_file(place: str, tmp_path: Path) -> None:
    from agent_gym.cli.parser import read_settings

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="cannot read"):
        read_settings(place.format(tmp_path))


def test_a_link_to_nothing_and_a_pipe_are_no_rows_and_no_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from agent_gym.cli.main import main

    monkeypatch.chdir(tmp_path)
    played = tmp_path / "run" / "trajectories"
    played.mkdir(parents=True)
    for name in ("eval_000001_0.jsonl", "train_000001_0.jsonl"):
        (played / name).symlink_to("/nowhere/x" if name[0] == "e" else name)
    assert main(["view", "run", "--output", "page"]) == 0
    assert capsys.readouterr().err.count("left out") == 2
    assert main(["view", "run/trajectories"]) == 2
    for name in ("rows.jsonl", "run.jsonl"):
        os.mkfifo(name)
    assert main(["new", "env", "fresh", "--from", "rows.jsonl"]) == 2
    assert main(["eval", "AgentR1/GSM8K-v0", "--expert", "--output", "run.jsonl", "--resume"]) == 2
    assert capsys.readouterr().err.count("no regular file") == 2


def test_a_link_out_of_a_task_shows_the_policy_no_file_of_this_machine(tmp_path: Path) -> None:
    from agent_gym.envs.terminal.harbor import Task as TerminalTask
    from agent_gym.envs.terminal.harbor import Unfit, read_task, write_task

    task = TerminalTask("Do.", {"/app/a": "1"}, {"test.sh": "true"}, ("true",), "/app", {}, 10.0, 10.0)
    write_task(task, tmp_path / "one", {})
    (tmp_path / "one" / "environment" / "files" / "app" / "b").symlink_to("a")
    assert "/app/b" in read_task(tmp_path / "one").files
    (tmp_path / "one" / "environment" / "files" / "app" / "c").symlink_to("/etc/passwd")
    with pytest.raises(Unfit, match="a link in it leads to other files of this machine: c"):
        read_task(tmp_path / "one")
