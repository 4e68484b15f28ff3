"""A folder that is prepared already, damaged, half finished, or of another source; and processes that are killed."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
from pathlib import Path

import gymnasium
import pytest

pytest.importorskip("pyarrow")

from prepare_tools import contents, multi_hop_rows, word_problems, write_lines, write_list
from process_tools import in_a_fork
from slow_build import kill_at

from agent_gym.errors import ConfigError
from agent_gym.prepare import Options, env_kwargs, prepare, rows
from agent_gym.prepare.run import MANIFEST
from agent_gym.search.files import locked


@pytest.fixture
def hotpot(tmp_path):
    """A source with two splits."""
    write_list(tmp_path / "source" / "hotpot_train_v1.1.json", multi_hop_rows(30))
    write_list(tmp_path / "source" / "hotpot_dev_distractor_v1.json", multi_hop_rows(10, start=30))
    return tmp_path / "source"


def again(folder: Path, source: Path | None = None, index: str = "bm25", encoder: str = ""):
    options = Options(index=index, encoder=encoder)
    return prepare("hotpotqa", source=[str(source)] if source else [], output=folder, options=options)


def test_what_is_there_is_compared_and_not_made_again(tmp_path, hotpot):
    folder = tmp_path / "out"
    first = again(folder, hotpot)
    assert first.made == ("data/train.parquet", "data/validation.parquet", "corpus", "bm25")
    before, times = contents(folder), {file: file.stat().st_mtime_ns for file in folder.rglob("*.*")}
    moved = hotpot.rename(tmp_path / "elsewhere")
    for source in (None, moved):  # where the files lie does not count, and they may be gone
        assert again(folder, source).made == ()
    assert contents(folder) == before
    assert all(file.stat().st_mtime_ns == times[file] for file in times if file.name != MANIFEST)
    manifest = json.loads((folder / MANIFEST).read_text())
    assert (manifest["recipe"], manifest["pieces"]["bm25"]["config"]) == ("hotpotqa", {"index": "bm25"})
    assert [part["file"] for part in manifest["source"]] == ["hotpot_train_v1.1.json", "hotpot_dev_distractor_v1.json"]
    assert [piece["rows"] for piece in manifest["pieces"].values()] == [30, 10, 81, None]
    described = {name: file for piece in manifest["pieces"].values() for name, file in piece["files"].items()}
    assert set(described) == set(before) - {MANIFEST}
    for name, file in described.items():
        assert file == {"bytes": len(before[name]), "sha256": hashlib.sha256(before[name]).hexdigest()}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("data/validation.parquet", "cut"),
        ("corpus/corpus.jsonl", "flip"),
        ("bm25/vocab.index.json", "gone"),
    ],
)
def test_a_damaged_file_is_named_with_the_cure_which_works(tmp_path, hotpot, name, damage):
    folder = tmp_path / "out"
    again(folder, hotpot)
    before = contents(folder)
    file = folder / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.unlink() if damage == "gone" else file.write_bytes(data[:-3] if damage == "cut" else data)
    for source in (None, hotpot):
        with pytest.raises(ConfigError) as caught:
            again(folder, source)
        assert str(file) in str(caught.value)
    to_delete = Path(str(caught.value).split("; delete ")[1].split(" and run")[0])
    shutil.rmtree(to_delete) if to_delete.is_dir() else to_delete.unlink()
    assert again(folder, hotpot).made == (str(to_delete.relative_to(folder)),)
    assert contents(folder) == before


def test_two_sources_are_not_mixed_and_a_damaged_manifest_is_named(tmp_path, hotpot):
    folder = tmp_path / "out"
    again(folder, hotpot)
    write_list(hotpot / "hotpot_dev_distractor_v1.json", multi_hop_rows(11, start=30))
    with pytest.raises(ConfigError, match="is made from hotpot_train.*, hotpot_dev.* another state of it; give"):
        again(folder, hotpot)
    with pytest.raises(ConfigError, match="written for recipe 'hotpotqa', and this is 'gsm8k'"):
        prepare("gsm8k", output=folder)
    text = (folder / MANIFEST).read_text()
    for damaged, message in (
        ("{", r"manifest\.json cannot be read.*delete .*out, or give another folder"),
        (json.dumps(json.loads(text) | {"format": 2}), "written for format 2, and this is 1"),
    ):
        (folder / MANIFEST).write_text(damaged)
        with pytest.raises(ConfigError, match=message):
            again(folder)
    # A preparation that was begun binds as soon as a piece is finished, and not before.
    manifest = json.loads(text)
    (folder / MANIFEST).write_text(json.dumps(manifest | {"pieces": {}, "unfinished": True}))
    with pytest.raises(ConfigError, match="is made from hotpot_train"):
        again(folder, hotpot)
    for name in ("data", "corpus", "bm25"):
        shutil.rmtree(folder / name)
    (folder / "data").mkdir()
    (folder / "data" / "train.parquet.partial").write_bytes(b"PAR1")
    assert again(folder, hotpot).pieces["data/validation.parquet"]["rows"] == 11
    assert not list(folder.rglob("*.partial"))


def test_a_folder_with_other_files_is_left_alone(tmp_path, hotpot):
    mine = write_lines(tmp_path / "out" / "data" / "train.parquet", [{"mine": 1}])
    with pytest.raises(ConfigError, match="holds files, and no manifest describes them"):
        again(tmp_path / "out", hotpot)
    assert [file for file in (tmp_path / "out").rglob("*") if file.is_file()] == [mine]
    with pytest.raises(ConfigError, match="cannot load hotpotqa/hotpot_qa"):  # which leaves a folder that is free
        again(tmp_path / "other")
    with locked(tmp_path / "other"), pytest.raises(ConfigError, match="another process is writing to"):
        again(tmp_path / "other", hotpot)
    assert again(tmp_path / "other", hotpot).made


def test_a_folder_of_the_user_that_is_called_downloads_stays(tmp_path):
    mine = write_lines(tmp_path / "data" / "downloads" / "train.jsonl", word_problems(3))
    with pytest.raises(ConfigError, match="holds files, and no manifest describes them"):
        prepare("gsm8k", source=[str(mine.parent)], output=tmp_path / "data")
    prepare("gsm8k", source=[str(mine)], output=tmp_path / "other")
    (tmp_path / "other" / "downloads").mkdir()
    prepare("gsm8k", source=[str(mine)], output=tmp_path / "other")
    assert mine.is_file() and (tmp_path / "other" / "downloads").is_dir()


def test_another_index_is_added_to_what_is_there(tmp_path, hotpot):
    pytest.importorskip("faiss")
    pytest.importorskip("sentence_transformers")
    from tiny_encoder import make_tiny_encoder

    encoder = str(make_tiny_encoder(tmp_path / "encoder"))
    folder = tmp_path / "out"
    again(folder, hotpot)
    shutil.rmtree(hotpot)  # only the corpus is needed
    dense = again(folder, index="flat", encoder=encoder)
    assert dense.made == ("dense-encoder",) and "bm25" not in dense.pieces
    assert again(folder, index="auto", encoder=encoder).made == ()
    assert again(folder, index="sq8", encoder=encoder).made == ("dense-encoder",)
    shutil.rmtree(folder / "dense-encoder" / "vectors")  # as the documentation allows
    last = again(folder, index="sq8", encoder=encoder)
    assert last.made == ()
    env = gymnasium.make("AgentR1/HotpotQA-v0", **env_kwargs(last)).unwrapped
    env.reset(options={"split": "train", "index": 0})
    assert "[1]" in env.step(env.expert_action())[0]
    assert again(folder).made == () and "bm25" in again(folder).pieces
    assert again(folder, index="none").pieces.keys() == {"data/train.parquet", "data/validation.parquet", "corpus"}


# Killed.


def run(folder: Path, source: Path, kill: int = 10**9) -> tuple[int, list[str]]:
    """Prepare in a fork, which kills itself at one of the moments in which a file comes into being."""

    def prepared() -> int:
        rows.ROWS_AT_ONCE = 5
        kill_at(kill)
        print(*prepare("hotpotqa", source=[str(source)], output=str(folder)).made)
        return 0

    code, made, _ = in_a_fork(prepared)
    return code, made.split()


@pytest.mark.slow
def test_a_kill_at_every_moment_in_which_a_file_comes_into_being(tmp_path, hotpot):
    assert run(tmp_path / "whole", hotpot)[0] == 0
    expected = contents(tmp_path / "whole")
    kill, code, points = 1, -signal.SIGKILL, 0
    while code == -signal.SIGKILL:
        folder = tmp_path / f"killed{kill}"
        code, _ = run(folder, hotpot, kill)
        finished = {name for name in ("data/train.parquet", "data/validation.parquet") if (folder / name).exists()}
        manifest = json.loads((folder / MANIFEST).read_text()) if (folder / MANIFEST).exists() else {"unfinished": True}
        assert "unfinished" in manifest or contents(folder) == expected
        code_again, made = run(folder, hotpot)
        assert code_again == 0 and not finished & set(made), f"killed at {kill}"
        assert contents(folder) == expected, f"killed at {kill}"
        points += code != 0
        kill += 1
    assert points > 20


def test_a_few_of_these_kills(tmp_path, hotpot):
    assert run(tmp_path / "whole", hotpot)[0] == 0
    for kill in (4, 9, 14, 19):  # one after the other, in the same folder: each goes on where the last one died
        assert run(tmp_path / "out", hotpot, kill)[0] in (0, -signal.SIGKILL)
    assert run(tmp_path / "out", hotpot)[0] == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_split_that_is_finished_stays_and_binds_the_source(tmp_path):
    write_lines(tmp_path / "source" / "train.jsonl", word_problems(40))
    test = write_lines(tmp_path / "source" / "test.jsonl", word_problems(20))
    rest, out = test.read_text(), tmp_path / "out"
    test.write_text(rest[:-9])  # breaks off in the last row: the first split is finished, the second is not
    with pytest.raises(ConfigError, match="test.jsonl, line 20: not valid JSON"):
        prepare("gsm8k", source=[str(test.parent)], output=out)
    written = (out / "data" / "train.parquet").stat().st_mtime_ns
    assert json.loads((out / MANIFEST).read_text())["unfinished"]
    test.write_text(rest)
    with pytest.raises(ConfigError, match="or from another state of it"):
        prepare("gsm8k", source=[str(test.parent)], output=out)
    assert (out / "data" / "train.parquet").stat().st_mtime_ns == written
