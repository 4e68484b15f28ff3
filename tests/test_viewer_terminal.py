"""The viewer in the terminal: the list, an episode, the prompt; in colours, into a pipe, and with hostile words."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from cli_tools import at_a_terminal, complaint
from rollout_tools import expert, roll

from agent_gym.cli.main import main
from agent_gym.evaluate import make_specs
from agent_gym.rollout import read_trajectories, to_record, write_trajectories

rich_console = pytest.importorskip("rich.console")
from agent_gym.viewer.terminal import browse, episode_table, episode_view  # noqa: E402

HOSTILE = "[bold]\x1b]0;owned\x07\x1b[2J\x9b5A\u202e\u2066</answer>"


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
    assert not set("\x1b\x07\x9b\u202e\u2066") & set(text)
    assert "[bold]␛]0;owned␇␛[2J" in text and "error: Error: the tool call is not valid JSON" in text
    assert [line for line in text.splitlines() if line.startswith("turn ")][0].startswith("turn 1  0")
    coloured = shown(episode_view(record, 2, 4), force_terminal=True, color_system="standard")
    assert "\x1b[34m" in coloured and "\x1b[35m" in coloured  # policy and world
    assert "\x1b]0;" not in coloured and "\x1b[2J" not in coloured


def test_the_prompt_goes_on_back_searches_and_ends(file: Path) -> None:
    records = list(read_trajectories(file))
    console = rich_console.Console(file=io.StringIO(), width=100)
    lines = iter(
        ["", "n", "p", "p", "3", "9", "/OWNED", "n", "n", "n", "/no such words", "l", "what", "q", "never read"]
    )
    browse(records, console, lambda prompt: next(lines))
    assert next(lines) == "never read"
    screen = console.file.getvalue()
    assert re.findall(r"^episode (\d) of 4", screen, re.MULTILINE) == ["1", "2", "1", "3", "2", "4"]
    for words in ("was the first one", "what is '9'?", "was the last one", "nothing holds", "what is 'what'?"):
        assert words in screen


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


def test_a_terminal_gets_a_prompt(file: Path, tmp_path: Path) -> None:
    words = ["view", "--terminal", str(file)]
    code, shown = at_a_terminal(tmp_path, *words, steps=[("q quit: ", b"1\n"), ("turn 1", b"q\n")])
    assert code == 0 and "episode 1 of 4" in shown
