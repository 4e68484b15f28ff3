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


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few games in the official layout."""
    return write_embedded(tmp_path_factory.mktemp("games"), {"train": 3, "valid_seen": 2, "valid_unseen": 2})


def packed(games: Path, to: Path) -> Path:
    """The same as the official archive has them: no traj_data.json, and other files, too."""
    files = sorted(file for file in games.rglob("*") if file.name == "game.tw-pddl")
    if to.suffix == ".zip":
        with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as zipped:
            zipped.writestr("../json_2.1.1/train/../../game.tw-pddl", "no")
            zipped.writestr("__MACOSX/notes.txt", "no")
            for file in files:
                zipped.write(file, file.relative_to(games))
    else:
        with tarfile.open(to, "w:gz") as tarred:
            for file in files:
                tarred.add(file, file.relative_to(games))
    return to


def contents(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*.tw-pddl")}


def test_archives_and_folders_give_the_same_games(games: Path, tmp_path: Path) -> None:
    sources = [packed(games, tmp_path / "a.zip"), packed(games, tmp_path / "a.tar.gz"), games, games / "json_2.1.1"]
    for number, source in enumerate(sources):
        prepared = prepare("alfworld", source=[str(source)], output=tmp_path / f"out{number}")
        assert contents(prepared.folder) == contents(games) and len(contents(games)) == 7
        kwargs = env_kwargs(prepared)
        env = gymnasium.make("AgentR1/ALFWorld-v0", **kwargs).unwrapped
        assert {split: len(env.tasks[split]) for split in ("train", "validation", "test")} == {
            "train": 3,
            "validation": 2,
            "test": 2,
        }
        assert prepare("alfworld", source=[str(source)], output=tmp_path / f"out{number}").made == ()


def test_the_default_folder_is_found_by_name(games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    prepare("alfworld", source=[str(games)])
    env = gymnasium.make("AgentR1/ALFWorld-v0", data="official", split="valid_seen").unwrapped
    assert env.reset(seed=0)[1]["game"].startswith(str(tmp_path / "cache" / "alfworld"))


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
    with pytest.raises(ConfigError, match="no such file or folder"):
        prepare("alfworld", source=[str(tmp_path / "none.zip")], output=tmp_path / "out")
    (tmp_path / "text.zip").write_text("no zip")
    with pytest.raises(ConfigError, match="neither a folder nor a zip"):
        prepare("alfworld", source=[str(tmp_path / "text.zip")], output=tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no file that is wanted.*valid_unseen"):
        prepare("alfworld", source=[str(tmp_path / "empty")], output=tmp_path / "out1")
    whole = packed(games, tmp_path / "whole.tar.gz").read_bytes()
    (tmp_path / "half.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"half\.tar\.gz cannot be unpacked"):
        prepare("alfworld", source=[str(tmp_path / "half.tar.gz")], output=tmp_path / "out2")


def test_without_a_source_the_official_archive_is_fetched(
    games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    official = RECIPES["alfworld"].archive
    assert official is not None
    folder, lines = forecast("alfworld", output=tmp_path / "out")
    assert not folder.exists() and [line.what for line in lines] == [official.url, "json_2.1.1"]

    def retrieve(url: str, known_hash: None, name: str, folder: Path, **_: object) -> None:
        assert url == official.url
        folder.mkdir(parents=True)
        packed(games, folder / name)

    monkeypatch.setattr("pooch.retrieve", retrieve)
    assert main(["prepare", "alfworld", "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"json_2\.1\.1 +7 +[\d,]+  written", printed)
    assert f'gym.make("AgentR1/ALFWorld-v0", data="{tmp_path}/out/json_2.1.1")' in printed
    assert "--split valid_unseen" in printed
    assert not (tmp_path / "out" / "downloads").exists()


def test_out_of_reach_one_line_says_how_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    official = dataclasses.replace(RECIPES["alfworld"].archive, url="http://127.0.0.1:9/games.zip")  # type: ignore[type-var]
    monkeypatch.setitem(RECIPES, "alfworld", dataclasses.replace(RECIPES["alfworld"], archive=official))
    with pytest.raises(ConfigError) as caught:
        prepare("alfworld", output=tmp_path / "out")
    message = str(caught.value)
    assert (
        "Connection refused" in message
        and "instead of the address" in message
        and 'data="embedded"' in message
        and "\n" not in message
    )


def test_archives_that_cannot_be_unpacked_or_hold_too_much(games: Path, tmp_path: Path) -> None:
    source = packed(games, tmp_path / "a.zip")
    content = bytearray(source.read_bytes())
    for name, at, value, word in (("locked", 8, 1, "password"), ("method", 10, 99, "compression")):
        broken = bytearray(content)
        for start in _headers(content):
            broken[start + at] = value
        (tmp_path / f"{name}.zip").write_bytes(broken)
        with pytest.raises(ConfigError, match=f"cannot be unpacked: .*{word}.*unpack it yourself"):
            prepare("alfworld", source=[str(tmp_path / f"{name}.zip")], output=tmp_path / name)
    small = dataclasses.replace(RECIPES["alfworld"].archive, unpacked=1000)
    with pytest.raises(ConfigError, match="more than 4 times the bytes expected"):
        pieces.unpack(small, source, tmp_path / "small", False)
    with pytest.raises(ConfigError, match="once more; give each file in one source"):
        prepare("alfworld", source=[str(source), str(games)], output=tmp_path / "both")


def _headers(content: bytes) -> list[int]:
    """Where the central directory's entries begin."""
    return [match.start() for match in re.finditer(b"PK\x01\x02", content)]
