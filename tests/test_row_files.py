"""Files and folders of rows as others bring them: formats, names, layouts, and what is wrong with them."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import agent_gym
from agent_gym import ConfigError, row_files, untrusted
from agent_gym.data import load_splits
from agent_gym.row_splits import split_of, split_word

ROWS = [{"question": f"q{n}, “é”", "answer": f"a{n}", "id": str(n)} for n in range(3)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def put(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def table(separator: str, end: str = "\n") -> str:
    cells = [["question", "answer", "id"], *([row["question"], row["answer"], row["id"]] for row in ROWS)]
    return end.join(separator.join(f'"{cell}"' if separator in cell else cell for cell in line) for line in cells) + end


SQUAD = {
    "version": "1.1",
    "data": [{"title": "T", "paragraphs": [{"context": "P.", "qas": [
        {"id": "1", "question": "q?", "answers": [{"text": "a", "answer_start": 0}]}]}]}],
}  # fmt: skip


@pytest.mark.filterwarnings("error")  # an unclosed file would warn
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.jsonl", LINES),
        ("Train.JSONL", LINES),
        ("train.ndjson", LINES),
        ("train.jsonl", "\ufeff" + LINES.replace("\n", "\r\n")),
        ("train.jsonl", LINES.replace("\n", "\r")),
        ("train.jsonl", "\n\n" + LINES.rstrip()),
        ("train.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)),
        ("train.json.gz", gzip.compress(json.dumps(ROWS).encode(), mtime=0)),
        ("train.csv.gz", gzip.compress(table(",").encode(), mtime=0)),
        ("train.json", json.dumps(ROWS, indent=1)),
        ("train.json", LINES),
        ("train.json", "\ufeff\n" + json.dumps(ROWS)),
        ("train.json", json.dumps({"data": ROWS})),
        ("train.json", json.dumps({"version": 1, "Examples": ROWS, "license": "mit"}, indent=2)),
        ("train.json", json.dumps({"rows": [{"row_idx": n, "row": row} for n, row in enumerate(ROWS)]})),
        ("train.json", json.dumps({name: [row[name] for row in ROWS] for name in ROWS[0]})),
        ("train.json", json.dumps({"columns": [*ROWS[0]], "data": [[*row.values()] for row in ROWS]})),
        ("train.csv", table(",")),
        ("train.csv", "\ufeff" + table(";", "\r\n")),
        ("train.tsv", table("\t")),
        ("train.csv", table("\t")),
        ("train.csv", table(",").encode("utf-16")),
    ],
)
def test_every_format_gives_the_same_rows(tmp_path: Path, name: str, content: str | bytes) -> None:
    file = put(tmp_path / name, content)
    for data in (file, tmp_path):
        assert load_splits(data) == {"train": ROWS}


def test_a_list_of_hundreds_of_megabytes_is_read_example_by_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_gym.row_files._STREAMED", 10)
    assert load_splits(put(tmp_path / "a.json", json.dumps(ROWS))) == {"train": ROWS}
    with pytest.raises(ConfigError, match="a.json, example 1: not valid JSON"):
        load_splits(put(tmp_path / "a.json", '[{"question": "q", "answer": "a"}, {"question"'))


def test_tables_of_other_libraries(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    datasets, parquet = pytest.importorskip("datasets"), pytest.importorskip("pyarrow.parquet")
    for n, row in enumerate(ROWS):
        folder = tmp_path / "snapshot" / "snapshots" / "0a1b" / "data"
        folder.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.Table.from_pylist([row]), folder / f"train-0000{n}-of-00003.parquet")
    put(tmp_path / "snapshot" / "snapshots" / "0a1b" / "README.md", "---\nlicense: mit\n---")
    put(tmp_path / "snapshot" / "refs" / "main", "0a1b")
    put(tmp_path / "snapshot" / "blobs" / "abc", "bytes")
    assert load_splits(tmp_path / "snapshot") == {"train": ROWS}
    one = datasets.Dataset.from_list(ROWS)
    one.save_to_disk(tmp_path / "one")
    both = datasets.DatasetDict({"train": one, "test": one.select([0])})
    both.save_to_disk(tmp_path / "both", num_shards={"train": 2, "test": 1})
    assert load_splits(tmp_path / "one") == {"train": ROWS}
    assert load_splits(tmp_path / "both") == {"train": ROWS, "test": ROWS[:1]}
    assert list(load_splits(tmp_path / "both" / "test")) == ["test"]
    os.remove(tmp_path / "both" / "train" / "data-00001-of-00002.arrow")
    with pytest.raises(ConfigError, match="data-00001-of-00002.arrow is not there"):
        load_splits(tmp_path / "both")
    env = agent_gym.QuestionEnv(both)
    assert [len(env.tasks[split]) for split in ("train", "test")] == [3, 1]


def test_questions_of_articles_keep_their_contexts(tmp_path: Path) -> None:
    (row,) = load_splits(put(tmp_path / "train-v1.1.json", json.dumps(SQUAD)))["train"]
    assert row["question"] == "P.\n\nq?" and row["answer"] == "a"


def test_one_file_may_hold_all_splits(tmp_path: Path) -> None:
    file = put(tmp_path / "rows.json", json.dumps({"version": 2, "train": ROWS[:2], "test": ROWS[2:]}))
    assert load_splits(file) == {"train": ROWS[:2], "test": ROWS[2:]}
    put(tmp_path / "rows.json", json.dumps({"train": ROWS, "test": [{"question": "q", "answer": None}, 5]}))
    with pytest.raises(ConfigError, match="rows.json, test, example 0: it names no answer.*example 1: a row must be"):
        load_splits(file)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        *((name, "train") for name in "train Train TRAIN nq-train my.train train_0 gsm8kTrain trn trainset".split()),
        *((name, "train") for name in "training_data train-00000-of-00002 hotpot_train_v1.1".split()),
        *((name, "test") for name in "test gsm8k_test Test GSM8KTest testing lm-eval-test test_set".split()),
        *((name, "validation") for name in "validation val my_val_2 Validation eval evaluation".split()),
        *((name, "dev") for name in "dev musique_ans_v1.0_dev hotpot_dev_distractor_v1 development".split()),
        *((name, name) for name in "valid valid_seen valid_unseen".split()),
        *((name, None) for name in "latest contest data MATH-500 device retrain attestation".split()),
    ],
)
def test_a_name_holds_a_split_in_any_place_and_case(name: str, split: str | None) -> None:
    assert split_word(name) == split
    for suffix in (".jsonl", ".PARQUET", ".csv.gz"):
        assert split_of(Path(f"{name}{suffix}")) == (split or "train")


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["gsm8k_train.jsonl", "gsm8k_test.jsonl"], ["train", "test"]),
        (["nq-train.jsonl", "nq-test.jsonl", "nq-dev.jsonl"], ["train", "dev", "test"]),
        (["Test.jsonl", "Train.jsonl"], ["train", "test"]),
        (["my.train.jsonl", "my.test.jsonl"], ["train", "test"]),
        (["train_0.jsonl", "train_1.jsonl", "test_0.jsonl"], ["train", "test"]),
        (["test/0000.jsonl", "train/0000.jsonl", "train/0001.jsonl"], ["train", "test"]),
        (["data/train-00000-of-00001.jsonl", "data/test-00000-of-00001.jsonl", "README.md"], ["train", "test"]),
        (["a/b/train.jsonl", "a/b/test.jsonl", ".git/train.jsonl"], ["train", "test"]),
        (["part-00000.jsonl", "part-00001.jsonl"], ["train"]),
        (["questions.jsonl"], ["train"]),
        (["train.jsonl", "._train.jsonl", ".DS_Store", "LICENSE", "dataset_info.json", "code.py"], ["train"]),
        (["train.jsonl", "valid_seen.jsonl", "valid_unseen.jsonl"], ["train", "valid_seen", "valid_unseen"]),
        (["train.jsonl", "hard.jsonl"], ["train", "hard"]),
        (["easy.jsonl", "hard.jsonl"], ["easy", "hard"]),
        (["train.jsonl", "dev.jsonl", "validation.jsonl", "test.jsonl"], ["train", "validation", "dev", "test"]),
    ],
)
def test_a_folder_has_its_splits_in_order(tmp_path: Path, names: list[str], splits: list[str]) -> None:
    for name in names:
        put(tmp_path / name, LINES if name.endswith(".jsonl") and "._" not in name else b"\x00\x05\x16\x07")
    assert list(load_splits(tmp_path)) == splits


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["train.jsonl", "train.json"], "two files of the split 'train', train.json, train.jsonl; give one of them"),
        (["train.jsonl", "train.jsonl.gz"], "two files of the split 'train'"),
        (["nq-train.jsonl", "tqa-train.jsonl"], "two files of the split 'train'"),
        (["train_v1.jsonl", "train_v2.jsonl"], "two files of the split 'train'"),
        (["main/train-0-of-1.jsonl", "socratic/train-0-of-1.jsonl"], "two files.*give the folder of one"),
        (["train-00000-of-00003.jsonl", "train-00002-of-00003.jsonl"], "2 of 3; fetch the others"),
        (["train_0.jsonl", "train_2.jsonl"], "those numbered 0, 2; fetch the others"),
        (["train_test.jsonl"], "holds two splits, train and test"),
        (["notes.txt"], "holds no .jsonl.*expected for example train.jsonl"),
    ],
)
def test_what_names_leave_open_is_refused(tmp_path: Path, names: list[str], words: str) -> None:
    for name in names:
        put(tmp_path / name, LINES)
    with pytest.raises(ConfigError, match=words):
        load_splits(tmp_path)


def one_each(folder: Path, numbers: range, split: str = "") -> None:
    """Write problems as MATH's archive has them: a folder per subject, and a file of one object per problem."""
    for number in numbers:
        row = {"problem": f"{number}+1?", "level": "Level 1", "type": "Algebra", "solution": f"\\boxed{{{number + 1}}}"}
        subject = "prealgebra" if number % 3 else "counting_and_probability"
        put(folder / split / subject / f"{number}.json", json.dumps(row, indent=4))


def test_a_folder_may_have_a_file_per_row(tmp_path: Path) -> None:
    one_each(tmp_path, range(1, 1200, 7), "train")
    one_each(tmp_path, range(5, 50), "test")
    splits = load_splits(tmp_path)
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 172, "test": 45}
    assert [row["question"] for row in splits["test"]][:3] == ["6+1?", "9+1?", "12+1?"]  # 6.json before 12.json
    assert splits["train"][0]["answer"] == "16"
    assert list(load_splits(tmp_path / "test")) == ["test"] and list(load_splits(tmp_path / "train")) == ["train"]
    assert len(load_splits(tmp_path / "train" / "prealgebra")["train"]) == 115


@pytest.mark.parametrize("content", ['{"problem": ', '{"solution": "\\\\boxed{3}"}', "", "\x00", '{"problem": "?"}'])
def test_a_broken_file_of_one_row_is_one_bad_row(tmp_path: Path, content: str) -> None:
    one_each(tmp_path, range(20), "train")
    put(tmp_path / "train" / "prealgebra" / "13.json", content)
    with pytest.raises(ConfigError, match=r"prealgebra.13\.json.*skip_bad=True"):
        load_splits(tmp_path)
    assert len(load_splits(tmp_path, skip_bad=True)["train"]) == 19


def test_another_coding_is_named_with_its_cure(tmp_path: Path) -> None:
    put(tmp_path / "old.csv", "question,answer\nGröße?,é\n".encode("cp1252"))
    with pytest.raises(ConfigError, match=r"old\.csv: .*not UTF-8 .* at byte 18\); save it as UTF-8"):
        load_splits(tmp_path / "old.csv")


def test_lists_of_rows_are_no_files_of_one_row(tmp_path: Path) -> None:
    one_each(tmp_path, range(20), "train")
    put(tmp_path / "train" / "prealgebra" / "all.json", '[{"problem": "1+1?", "solution": "2"}]')
    with pytest.raises(ConfigError, match="holds 21 files of the split 'train'"):
        load_splits(tmp_path)


def test_other_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / "train.jsonl", LINES)
    put(tmp_path / "corpus.jsonl", '{"_id": "1", "text": "t"}\n')
    put(tmp_path / "notes.txt", "hello")
    assert list(load_splits(tmp_path)) == ["train"]
    said = capsys.readouterr().err
    assert "not read: corpus.jsonl, which has no rows of this kind" in said and "not read: notes.txt" in said


def test_a_folder_without_train_is_never_played_by_its_first_split(tmp_path: Path) -> None:
    for name in ("dev", "test"):
        put(tmp_path / f"{name}.jsonl", '{"question": "1+1?", "answer": "#### 2"}\n')
    for made in (
        lambda: gymnasium.make("AgentR1/GSM8K-v0", data=str(tmp_path)),
        lambda: gymnasium.make_vec("AgentR1/GSM8K-v0", num_envs=1, vectorization_mode="sync", data=str(tmp_path)),
    ):
        env: Any = made()
        with pytest.raises(ConfigError, match="there is no split 'train'; this environment has: dev, test; choose"):
            env.reset(seed=0)
    env = gymnasium.make("AgentR1/GSM8K-v0", data=str(tmp_path), split="test")
    assert "1+1?" in env.reset(seed=0)[0]
    os.remove(tmp_path / "dev.jsonl")
    with pytest.raises(ConfigError, match="no split 'train'"):
        gymnasium.make("AgentR1/GSM8K-v0", data=str(tmp_path)).reset(seed=0)
    # A file was asked for, and there is no doubt which rows are meant.
    assert gymnasium.make("AgentR1/GSM8K-v0", data=str(tmp_path / "test.jsonl")).reset(seed=0)


# Rows that cannot be used.


def test_bad_rows_are_grouped_and_counted_with_the_first_of_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = '{"question": "q", "answer": "#### 1"}\n'
    bad = ['{"question": "q", "answer": null}', '{"question": "q", "answer": "#### 3/4"}', '{"question": "q"', "5"]
    file = put(tmp_path / "train.jsonl", good * 7 + "\n".join([*bad, bad[1]]) + "\n" + good)
    with pytest.raises(ConfigError) as caught:
        agent_gym.make("AgentR1/GSM8K-v0", data=str(file))
    told = str(caught.value)
    assert told.startswith("5 of 13 rows cannot be used. ") and told.endswith("or leave them out: skip_bad=True")
    for words in ("line 8: it names no answer", "line 9: the answer is not one number", "(and 1 more rows)",
                  "line 10: not valid JSON", "line 11: a row must be an object"):  # fmt: skip
        assert words in told
    env: Any = agent_gym.make("AgentR1/GSM8K-v0", data=str(file), skip_bad=True)
    assert len(env.tasks["train"]) == 8 and "5 of 13 rows are left out" in capsys.readouterr().err
    for index in range(8):
        env.reset(seed=0, options={"index": index})
    put(file, bad[0] + "\n")
    with pytest.raises(ConfigError, match="split 'train' has no row that can be used.*it names no answer"):
        agent_gym.make("AgentR1/GSM8K-v0", data=str(file), skip_bad=True)
    with pytest.raises(ConfigError, match="skip_bad is 'yes'"):
        agent_gym.make("AgentR1/GSM8K-v0", data=str(file), skip_bad="yes")


def test_a_test_split_that_hides_its_answers_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path / "train.jsonl", LINES)
    put(tmp_path / "test.jsonl", '{"question": "q", "answer": ""}\n{"question": "r", "answer": null}\n')
    assert list(load_splits(tmp_path)) == ["train"]
    assert "split test is left out, since it hides its answers" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="it names no answer"):
        load_splits(tmp_path / "test.jsonl")


def test_rows_of_the_hub_are_all_checked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The real `datasets` objects; only the download is replaced."""
    datasets = pytest.importorskip("datasets")
    rows = [{"question": f"q{n}", "choices": ["w", "x"], "answer": n % 2 if n != 2400 else 9} for n in range(2500)]
    loaded = datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)})
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config: loaded)
    with pytest.raises(ConfigError, match="some/mcq, split train, row 2400: .*not there, counted from 0: 9"):
        load_splits("some/mcq")
    kept = load_splits("some/mcq", skip_bad=True)["train"]
    assert len(kept) == 2499 and kept[2400]["question"].startswith("q2401") and kept[-1]["answer"] == ["B", "x"]
    assert "1 of 2,500 rows are left out" in capsys.readouterr().err
    assert [row["answer"] for row in kept] == [kept[n]["answer"] for n in range(len(kept))]


# Whatever a file holds, it is read or refused in one line.

ODD_ROWS = [
    {"question": "q", "choices": {"text": ["w", "x"], "label": ["A", "B"]}, "answerKey": "A"},
    {
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "q"}]}],
        "reward_model": {"ground_truth": {"target": ["a"]}},
        "extra_info": {"index": 0},
    },
    {
        "question": {"text": "q"},
        "context": {"title": ["T"], "sentences": [["P."]]},
        "annotations": {"short_answers": [{"text": ["a"]}], "yes_no_answer": [0]},
    },
]
SEEDS: list[tuple[str, bytes]] = [
    ("a.jsonl", LINES.encode()),
    ("a.json", json.dumps({"data": ROWS}).encode()),
    ("a.json", json.dumps(SQUAD).encode()),
    ("a.csv", table(",").encode()),
    ("a.tsv", table("\t").encode()),
    ("a.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)),
    *(("a.jsonl", json.dumps(row).encode()) for row in ODD_ROWS),
]
VALUES = [
    *("null", "NaN", "-Infinity", "1e999", "true", '""', "[]", "{}", "[[[]]]", '{"value": 1}', "-0"),
    *('"\\ud800"', '"\\u0000"', "\x00", "\ufeff", "\u2028", "9" * 5000, f'"{"x" * 70_000}"'),
    *("[" * 5000, '{"a":' * 3000 + "1" + "}" * 3000, "[" * 400 + "]" * 400),
    *('[{"role": 5}]', '{"text": []}', '["a", {"b": []}]', '{"target": 1, "numbers": []}'),
]


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Change a file: bytes, cuts, repetitions, or a JSON value for another."""
    for _ in range(rng.randint(1, 3)):
        place, kind = rng.randrange(len(content) + 1), rng.randrange(6)
        if kind == 0:
            content = content[:place] + bytes([rng.randrange(256)]) + content[place + 1 :]
        elif kind == 1:
            content = content[:place]
        elif kind == 2:
            content = content[:place] + content[rng.randrange(len(content) + 1) :]
        elif kind == 3:
            content = content[:place] + rng.choice(VALUES).encode("utf-8", "surrogatepass") + content[place:]
        else:
            ends = [n for n, byte in enumerate(content) if byte in b":,[{}]"]
            if len(ends) > 1:
                start = rng.randrange(len(ends) - 1)
                value = rng.choice(VALUES).encode("utf-8", "surrogatepass")
                content = content[: ends[start] + 1] + value + content[ends[start + 1] :]
    return content


def fuzz(tmp_path: Path, rounds: int, seed: int) -> int:
    """Return how many mutations could be read; each of them is played, and the others are refused in one line."""
    rng, read = random.Random(seed), 0
    for _ in range(rounds):
        name, content = rng.choice(SEEDS)
        file = put(tmp_path / name, mutated(content, rng))
        try:
            env = agent_gym.QuestionEnv(file)
        except ConfigError as error:
            assert "\n" not in str(error) and len(str(error)) < 4_000 and "a.j" in str(error) + "a.j"
            continue
        read += 1
        (split,) = env.tasks
        env.reset(seed=0, options={"split": split, "index": len(env.tasks[split]) - 1})
        env.step("<answer>a</answer>")
        json.dumps([dict(row) for row in env.tasks[split]])
    return read


def test_any_file_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    read = fuzz(tmp_path, 1_500, seed=0)
    assert 100 < read < 1_400


@pytest.mark.slow
def test_any_of_twenty_thousand_files_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    assert fuzz(tmp_path, 20_000, seed=1) > 1_000


@pytest.mark.parametrize(
    "content", [f'{{"question": "q", "answer": {deep}' for deep in ("[" * 100_000, "[" * 90 + "]" * 90 + "}")]
)
def test_what_is_nested_too_deeply_is_refused_with_its_line(tmp_path: Path, content: str) -> None:
    file = put(tmp_path / "a.jsonl", LINES + content + "\n")
    with pytest.raises(ConfigError, match=r"a\.jsonl, line 4: .*nested"):
        load_splits(file)
    put(tmp_path / "a.json", f"[{content}]")
    with pytest.raises(ConfigError, match=r"a\.json.*(nested|not valid)"):
        load_splits(tmp_path / "a.json")


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.json.gz", "rows.csv.gz"])
def test_a_compressed_file_that_unpacks_to_too_much_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untrusted, "MAX_LINE", 1 << 16)
    monkeypatch.setattr(row_files, "_LARGEST", 1 << 16)
    begin, end = ("question,answer\n", ",1\n") if "csv" in name else ('[{"question": "', '", "answer": "1"}]\n')
    content = begin + "a" * (1 << 20) + end
    (path := tmp_path / name).write_bytes(gzip.compress(content.encode()))
    assert path.stat().st_size < 2000
    with pytest.raises(ConfigError, match="more than 65,536 bytes"):
        list(row_files.read_rows(path))
