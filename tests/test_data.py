"""Loading tasks: files, folders, the hub, and the errors that name what is wrong."""

from __future__ import annotations

import json
import os
import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from toy_envs import CountingEnv

from agent_gym import ConfigError
from agent_gym.data import DistinctRows, load_splits

ROWS = [{"question": f"q{i}\u2028é", "answer": f"#### {i}", "id": i} for i in range(3)]
COLUMNS = ("question", "answer")


def write(path: Path, rows: Any = ROWS) -> Path:
    """Write rows in the format of the suffix."""
    if path.suffix == ".parquet":
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet

        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n", encoding="utf-8")
    else:
        path.write_text(json.dumps(rows), encoding="utf-8")
    return path


@pytest.mark.filterwarnings("error")  # an unclosed file would warn
@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
@pytest.mark.parametrize(
    ("name", "split"),
    [("hotpot_dev_distractor_v1", "dev"), ("latest", "train"), ("validation-00000-of-00001", "validation")],
)
def test_a_file_is_one_split(tmp_path: Path, suffix: str, name: str, split: str) -> None:
    assert load_splits(str(write(tmp_path / f"{name}{suffix}")), columns=COLUMNS) == {split: ROWS}


def test_a_folder_has_a_file_per_split(tmp_path: Path) -> None:
    write(tmp_path / "test.jsonl", ROWS[:1])
    write(tmp_path / "train-00000-of-00002.parquet", ROWS[:2])  # named as on the hub
    write(tmp_path / "train-00001-of-00002.parquet", ROWS[2:])
    (tmp_path / "README.md").write_text("not data")
    splits = load_splits(str(tmp_path), columns=COLUMNS)
    assert splits == {"test": ROWS[:1], "train": ROWS}


@pytest.mark.parametrize("in_folder", [False, True])
def test_rows_are_read_once_and_again_after_a_change(tmp_path: Path, in_folder: bool) -> None:
    file = write(tmp_path / "train.jsonl")
    data = str(tmp_path if in_folder else file)
    first = load_splits(data, columns=COLUMNS)
    assert load_splits(data, columns=COLUMNS) is first
    write(file, ROWS[:1])
    os.utime(file, ns=(1, 1))
    assert len(load_splits(data, columns=COLUMNS)["train"]) == 1


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", '{"question": "q", "answer": "a"}\n{"question": "q"}\n', ["line 2", "'answer'", "question"]),
        ("a.jsonl", '{"question": "q", "answer": "a"}\n{"question": \n', ["line 2", "not valid JSON"]),
        ("a.jsonl", "[1, 2]\n", ["line 1", "must be an object"]),
        ("a.json", '{"topic": "q", "answer": "a"}', ["no list of rows", "ends in .jsonl"]),
        ("a.json", '{"question": "q",\n "answer": "a"}\n{"question": "q"}', ["Extra data", ".jsonl"]),
        ("a.json", "[]", ["no rows"]),
        ("a.parquet", "not parquet", ["cannot be read"]),
        ("a.csv", "question,answer\n", ["holds no rows"]),
        ("a.txt", "question,answer\n", [".jsonl, .ndjson, .json, .csv"]),
        ("a.jsonl", b"\xff\xfe\x00", ["line 1", "not UTF-8"]),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, text: str | bytes, words: list[str]) -> None:
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load_splits(str(tmp_path / name), columns=COLUMNS)
    assert all(word in str(caught.value) for word in [*words, name])


def test_missing_places_are_named(tmp_path: Path) -> None:
    # A path is never a name on the hub.
    for data in ("./nowhere", "~/nowhere-at-all.jsonl", "rows.jsonl", "a/b/c", Path("/missing"), Path("a/b")):
        with pytest.raises(ConfigError, match=f"no such file or folder: '{data}'"):
            load_splits(data, columns=COLUMNS)
    with pytest.raises(ConfigError, match="expected for example train.jsonl"):
        load_splits(str(tmp_path), columns=COLUMNS)


def test_an_unreachable_hub_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the hub switched off (conftest) and nothing in the cache."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(ConfigError, match="cannot load the data set 'nobody/nothing' from the hub.*embedded"):
        load_splits("nobody/nothing", columns=COLUMNS)


def test_a_hub_data_set_is_checked_for_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real `datasets` objects; only the download is replaced."""
    datasets = pytest.importorskip("datasets")
    made = datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config: made)
    splits = load_splits("some/rows", columns=COLUMNS, config="main")
    assert splits["train"][2] == ROWS[2] and len(splits["train"]) == 3
    with pytest.raises(ConfigError, match="some/rows, split train, row 0: no column 'hint'.*and 2 more rows"):
        load_splits("some/rows", columns=("hint",), config="main")


class Draws(DistinctRows):
    """Row i has i // 3, or another number at another attempt, below a bound."""

    def __init__(self, size: int, bound: int, key: str | None = "word") -> None:
        super().__init__(size, key)
        self.bound = bound

    def draw(self, index: int, attempt: int) -> dict[str, Any]:
        return {"word": str((index // 3 + attempt) % self.bound), "index": index}


def test_no_row_repeats_and_a_split_ends_where_there_are_no_more() -> None:
    rows = Draws(50, 1000)
    assert [row["word"] for row in rows] == list(map(str, range(50))) and len(rows) == 50
    assert Draws(10**12, 10**9)[7] == rows[7], "at any size, not drawn to the end"
    few = Draws(50, 20)
    assert len(few) == 20 and few[-1] == few[19] and few[:2] == [few[0], few[1]]
    with pytest.raises(IndexError, match="row 20 of a split of 20"):
        few[20]
    rows[3]["word"] = "changed"
    assert rows[3]["word"] == "3", "each caller has a row of its own"
    assert len(Draws(50, 20, key=None)) == 50 and Draws(50, 20, key=None)[4]["word"] == "1"


def test_rows_are_drawn_once_by_all_threads_and_again_after_pickling() -> None:
    rows, drawn = Draws(250, 1000), []
    draw = rows.draw
    rows.draw = lambda index, attempt: drawn.append((index, attempt)) or draw(index, attempt)  # type: ignore[method-assign]
    with ThreadPoolExecutor(8) as threads:
        words = list(threads.map(lambda index: rows[index]["word"], reversed(range(250))))
    assert words == list(map(str, reversed(range(250)))) and len(drawn) == len(set(drawn))
    del rows.draw
    assert len(pickle.dumps(rows)) < 300 and list(pickle.loads(pickle.dumps(rows))) == list(rows)


def test_all_tasks_of_a_split_are_as_likely_as_each_other() -> None:
    env = CountingEnv(n_tasks=5)
    env.reset(seed=0)
    drawn = Counter(env.reset()[1]["task_id"] for _ in range(5_000))
    assert drawn.keys() == {f"train/{index}" for index in range(5)}
    assert all(900 < count < 1_100 for count in drawn.values())  # 1,000 with a standard deviation of 28
    first, second, third = (env.reset(seed=seed, options={"split": None})[1]["task_id"] for seed in (3, 3, 5))
    assert first == second != third
