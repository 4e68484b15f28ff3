"""The viewer in the terminal: the list, an episode, the browser; in colours, into a pipe, and with hostile words."""

from __future__ import annotations

import asyncio
import io
import re
from pathlib import Path
from typing import Any

import pytest
from cli_tools import at_a_terminal, complaint
from rollout_tools import expert, roll

from agent_gym.cli.main import main
from agent_gym.cli.view import _played_together
from agent_gym.errors import ConfigError
from agent_gym.evaluate import make_specs
from agent_gym.rollout import read_trajectories, to_record, write_trajectories

rich_console = pytest.importorskip("rich.console")
pytest.importorskip("textual")
from textual.widgets import DataTable, HelpPanel  # noqa: E402

from agent_gym.viewer.browser import TrajectoryBrowser  # noqa: E402
from agent_gym.viewer.terminal import episode_table, episode_view  # noqa: E402

HOSTILE = "[bold]\x1b]0;owned\x07\x1b[2J\x9b5A\u202e\u2066\ud800</answer>"


@pytest.fixture(scope="module")
def file(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four episodes: the expert's, and every second one with a bad call and hostile words."""

    def act(episode: Any) -> str:
        if episode.spec.group % 2 == 0:
            return expert(episode)
        return HOSTILE if episode.steps else "<tool_call>{</tool_call>"

    played = roll(tokenizer, make_specs("AgentR1/GSM8K-v0", split="train", episodes=4), act, workers=2)
    records = [to_record(episode) for episode in played]
    records[1]["steps"][1]["action"] = HOSTILE  # whatever the tokenizer made of it
    path = tmp_path_factory.mktemp("terminal") / "played.jsonl"
    write_trajectories(path, records)
    return path


def shown(renderable: Any, **options: Any) -> str:
    console = rich_console.Console(file=io.StringIO(), width=100, highlight=False, **options)
    console.print(renderable)
    return str(console.file.getvalue())


def test_the_list_has_a_line_for_each_episode(file: Path) -> None:
    records = list(read_trajectories(file))
    lines = shown(episode_table(records)).splitlines()
    assert len(lines) == 5 and all(len(line) <= 100 for line in lines)
    assert [re.split(r"\s+", line.strip())[1:3] for line in lines[1:]] == [["✓", "+1.1"], ["✗", "0"]] * 2


def test_an_episode_is_coloured_by_who_speaks_and_cannot_steer_the_terminal(file: Path) -> None:
    record = list(read_trajectories(file))[1]
    text = shown(episode_view(record, 2, 4))
    assert not set("\x1b\x07\x9b\u202e\u2066\ud800") & set(text)
    assert "[bold]␛]0;owned␇␛[2J" in text and "error: Error: the tool call is not valid JSON" in text
    assert [line for line in text.splitlines() if line.startswith("turn ")][0].startswith("turn 1  0, so far 0")
    coloured = shown(episode_view(record, 2, 4), force_terminal=True, color_system="standard")
    assert "\x1b[32m" in coloured and "\x1b[33m" in coloured  # policy and world
    assert "\x1b]0;" not in coloured and "\x1b[2J" not in coloured


def browsed(files: Any, steps: Any, size: tuple[int, int] = (110, 32)) -> list[Any]:
    """Press keys, a text of them or their names for each step, and return what each step looks at afterwards."""

    async def browse() -> list[Any]:
        app, seen = TrajectoryBrowser(files), []
        async with app.run_test(size=size) as pilot:
            await app.workers.wait_for_complete()
            for keys, look in steps:
                await pilot.press(*keys)
                await app.workers.wait_for_complete()
                await pilot.pause()
                seen.append(look(app))
        return seen

    return asyncio.run(browse())


def episode(app: TrajectoryBrowser) -> int:
    """The number of the episode that is read on the screen."""
    found = re.search(r"episode (\d) of 4", app.export_screenshot().replace("&#160;", " "))
    return int(found[1]) if found else 0


def listed(app: TrajectoryBrowser) -> str:
    table = app.query_one("#episodes", DataTable)
    return "".join(str(table.get_row_at(i)[0]) for i in range(table.row_count))


def title(app: TrajectoryBrowser) -> str:
    return str(app.query_one("#episodes", DataTable).border_title)


def test_keys_go_through_the_episodes_sort_filter_and_search(file: Path) -> None:
    every = [("", listed), ("", episode), ("n", episode), ("p", episode), ("p", episode), ("jj", episode)]
    assert browsed({"played": [file]}, [*every, (["up"], episode)]) == ["1234", 1, 2, 1, 1, 3, 2]
    assert browsed({"played": [file]}, [("s", listed), ("s", listed), ("s", title)]) == [
        "1324", "2413", "4 of 4 episodes",
    ]  # fmt: skip
    found = [("f", listed), ("n", episode), ("f", listed), ("/OWNED\r", title), ("", listed), ("/\r", listed)]
    found = [([*keys[:-1], "enter"] if keys.endswith("\r") else keys, look) for keys, look in found]
    searched = "2 of 4 episodes, with 'owned'"
    # The field holds what was searched for before, so that Enter alone searches for it again.
    assert browsed({"played": [file]}, found) == ["24", 4, "1234", searched, "24", "24"]


def test_a_run_is_a_list_of_steps_with_their_success(file: Path, tmp_path: Path) -> None:
    (tmp_path / "trajectories").mkdir()
    lines = file.read_text().splitlines(keepends=True)
    for name, part in (("eval_000000_0", lines[1:2]), ("train_000000_0", lines), ("train_000000_1", lines[:1])):
        (tmp_path / "trajectories" / f"{name}.jsonl").write_text("".join(part))
    files = dict(_played_together([str(tmp_path)]))
    assert {name: len(found) for name, found in files.items()} == {"eval 0": 1, "train 0": 2}

    def rates(app: TrajectoryBrowser) -> list[Any]:
        return [app.query_one("#files", DataTable).get_row_at(i)[1] for i in range(2)]

    steps = [("", rates), ("", listed), (["shift+tab", "down"], listed), (["enter"], lambda app: app.focused.id)]
    seen = browsed(files, steps)
    assert seen == [["  0% of 1", " 60% of 5"], "1", "12345", "episodes"]
    files["train 0"][0].write_text("[/no] markup\n")
    gone = [("", rates), (["shift+tab", "down"], lambda app: len(app._notifications))]
    assert browsed(files, gone) == [["  0% of 1", "none"], 1]


def test_a_narrow_terminal_shows_the_lists_or_an_episode(file: Path) -> None:
    def shown(app: TrajectoryBrowser) -> tuple[bool, bool]:
        return app.query_one("#lists").display, app.query_one("#reading").display

    steps = [("", shown), (["enter"], shown), ("n", episode), (["escape"], shown)]
    assert browsed({"played": [file]}, steps, (60, 24)) == [(True, False), (False, True), 2, (True, False)]
    helped = [("?", lambda app: len(app.screen.query(HelpPanel))), ("?", lambda app: len(app.screen.query(HelpPanel)))]
    assert browsed({"played": [file]}, helped) == [1, 0]


def test_a_pipe_gets_words_without_colours(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more, words in (([], "question"), (["--episode", "2"], "episode 2 of 4")):
        assert main(["view", "--terminal", str(file), *more]) == 0
        shown = capsys.readouterr().out
        assert words in shown and "\x1b" not in shown
    assert not file.with_suffix(".html").exists()
    assert "there are 4 episodes" in complaint(capsys, "view", str(file), "--terminal", "--episode", "5")
    assert "--episode belongs to --terminal" in complaint(capsys, "view", str(file), "--episode", "1")


def test_two_files_of_one_name_are_two_runs(file: Path, tmp_path: Path) -> None:
    other, output = tmp_path / file.name, tmp_path / "page.html"
    other.write_bytes(file.read_bytes())
    assert main(["view", str(file), str(other), "--output", str(output)]) == 0
    assert f'"runs":["{file}","{other}"]' in output.read_text()


def test_a_terminal_gets_the_browser(file: Path, tmp_path: Path) -> None:
    words = ["view", "--terminal", str(file)]
    code, _ = at_a_terminal(tmp_path, *words, steps=[("episode 1 of 4", b"n"), ("episode 2 of 4", b"q")])
    assert code == 0
    with pytest.raises(ConfigError, match="no trajectory file"):
        TrajectoryBrowser({"gone": [tmp_path / "gone.jsonl"]})
