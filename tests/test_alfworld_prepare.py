"""`agent-gym prepare alfworld`: archives and folders of games, unpacked once, and played by the printed line."""

from __future__ import annotations

import dataclasses
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from agent_gym import ConfigError
from agent_gym.cli.main import main
from agent_gym.envs.alfworld.embedded import write_embedded
from agent_gym.prepare import RECIPES, env_kwargs, forecast, pieces, prepare
from agent_gym.prepare.sources import DOWNLOADS

OFFICIAL: Any = RECIPES["alfworld"].archive


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_embedded(tmp_path_factory.mktemp("games"), {"train": 3, "valid_seen": 2, "valid_unseen": 2})


def packed(games: Path, to: Path) -> Path:
    """The same as the official archive has them: no traj_data.json, and other files, too."""
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("../json_2.1.1/train/../../game.tw-pddl", "no")
        zipped.writestr("__MACOSX/notes.txt", "no")
        for file in sorted(games.rglob("game.tw-pddl")):
            zipped.write(file, file.relative_to(games))
    return to


def tarred(games: Path, to: Path) -> Path:
    with tarfile.open(to, "w:gz") as tar:
        tar.add(games, ".")
    return to


def contents(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*.tw-pddl")}


def test_archives_and_folders_give_the_same_games(games: Path, tmp_path: Path) -> None:
    sources = [packed(games, tmp_path / "a.zip"), tarred(games, tmp_path / "a.tar.gz"), games, games / "json_2.1.1"]
    for number, source in enumerate(sources):
        prepared = prepare("alfworld", source=[str(source)], output=tmp_path / f"out{number}")
        assert contents(prepared.folder) == contents(games) and len(contents(games)) == 7
        env = gymnasium.make("AgentR1/ALFWorld-v0", **env_kwargs(prepared)).unwrapped
        assert [len(env.tasks[split]) for split in ("train", "validation", "test")] == [3, 2, 2]
        assert prepare("alfworld", source=[str(source)], output=tmp_path / f"out{number}").made == ()


def test_a_folder_is_one_source_however_it_is_given(
    games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = games / "json_2.1.1"
    for place, name in ((inside, "."), (games, "json_2.1.1"), (inside / "train", ".."), (games, str(inside))):
        monkeypatch.chdir(place)
        assert main(["prepare", "alfworld", "--from", name, "--output", str(tmp_path / "out")]) == 0
        assert "alfworld from json_2.1.1 in " in capsys.readouterr().out


def test_a_preparation_that_was_killed_goes_on(games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, write, calls = packed(games, tmp_path / "a.zip"), pieces.shutil.copyfileobj, []

    def killed(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(pieces.shutil, "copyfileobj", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare("alfworld", source=[str(source)], output=tmp_path / "out")
    assert not (tmp_path / "out" / "json_2.1.1").exists()
    assert contents(prepare("alfworld", source=[str(source)], output=tmp_path / "out").folder) == contents(games)


def test_what_is_no_archive_of_games_is_refused(games: Path, tmp_path: Path) -> None:
    source, whole = packed(games, tmp_path / "a.zip"), tarred(games, tmp_path / "whole.tar.gz").read_bytes()
    (tmp_path / "text.zip").write_text("no zip")
    (tmp_path / "empty").mkdir()
    (tmp_path / "half.tar.gz").write_bytes(whole[: len(whole) // 2])
    content = source.read_bytes()
    for name, at, value in (("locked", 8, 1), ("method", 10, 99)):
        broken = bytearray(content)
        for entry in re.finditer(b"PK\x01\x02", content):  # of the central directory
            broken[entry.start() + at] = value
        (tmp_path / f"{name}.zip").write_bytes(broken)
    for name, words in (
        ("none.zip", "no such file or folder"),
        ("text.zip", "neither a folder nor a zip"),
        ("empty", "no file that is wanted.*valid_unseen"),
        ("half.tar.gz", r"half\.tar\.gz cannot be unpacked"),
        ("locked.zip", "cannot be unpacked: .*password.*unpack it yourself"),
        ("method.zip", "cannot be unpacked: .*compression.*unpack it yourself"),
    ):
        with pytest.raises(ConfigError, match=words):
            prepare("alfworld", source=[str(tmp_path / name)], output=tmp_path / f"out {name}")
    with pytest.raises(ConfigError, match="more than 4 times the bytes expected"):
        pieces.unpack(dataclasses.replace(OFFICIAL, unpacked=1000), source, tmp_path / "small", False)
    with pytest.raises(ConfigError, match="once more; give each file in one source"):
        prepare("alfworld", source=[str(source), str(games)], output=tmp_path / "both")


def test_without_a_source_the_official_archive_is_fetched(
    games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    folder, lines = forecast("alfworld")
    assert not folder.exists() and [line.what for line in lines] == [OFFICIAL.url, "json_2.1.1"]
    with monkeypatch.context() as patch:
        away = dataclasses.replace(OFFICIAL, url="http://127.0.0.1:9/games.zip")
        patch.setitem(RECIPES, "alfworld", dataclasses.replace(RECIPES["alfworld"], archive=away))
        with pytest.raises(ConfigError, match='^.*Connection refused.*instead of the address.*data="embedded".*$'):
            prepare("alfworld")

    def retrieve(url: str, known_hash: None, name: str, folder: Path, **_: object) -> None:
        assert url == OFFICIAL.url
        folder.mkdir(parents=True, exist_ok=True)
        packed(games, folder / name)

    monkeypatch.setattr("pooch.retrieve", retrieve)
    assert main(["prepare", "alfworld"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"json_2\.1\.1 +7 +[\d,]+  written", printed) and "--split valid_unseen" in printed
    assert f'gym.make("AgentR1/ALFWorld-v0", data="{tmp_path}/alfworld/json_2.1.1")' in printed
    assert not (tmp_path / "alfworld" / DOWNLOADS).exists()
    env = gymnasium.make("AgentR1/ALFWorld-v0", data="official", split="valid_seen").unwrapped
    assert env.reset(seed=0)[1]["game"].startswith(str(tmp_path / "alfworld"))
