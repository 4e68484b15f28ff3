"""One row of each form in which other projects write questions; tests/data/rows.json says where each is from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import agent_gym
from agent_gym import ConfigError
from agent_gym.data import load_splits
from agent_gym.row_forms import answers_of, question_of
from agent_gym.row_reader import MappedRows
from agent_gym.testing import expert_episode
from agent_gym.tool_env import QuestionEnv

pytest.importorskip("bm25s")
pytest.importorskip("math_verify")
ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "rows.json").read_text(encoding="utf-8"))
each = pytest.mark.parametrize("form", ROWS, ids=[form["name"] for form in ROWS])


@each
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_row_is_read_and_played(form: dict[str, Any], suffix: str, tmp_path: Path) -> None:
    row, path = form["row"], tmp_path / f"train{suffix}"
    assert (question_of(row), list(answers_of(row))) == (form["question"], form["answers"])
    if suffix == ".parquet":
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist([row]), path)
    else:
        path.write_text(json.dumps(row) + "\n")
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(json.dumps({"_id": "1", "title": "Somewhere", "text": "Nothing."}))
    for name in form["envs"]:
        # NQ and its like bring no paragraphs to search in.
        needs = name in ("HotpotQA", "MultiHopQA") and "context" not in json.dumps(row)
        env: Any = agent_gym.make(f"AgentR1/{name}-v0", data=str(path), **({"corpus": str(corpus)} if needs else {}))
        (loaded,) = env.tasks["train"]
        assert question_of(loaded) == form["question"] and loaded["question"] and loaded["answer"]
        opening, *steps = expert_episode(env, seed=0)
        assert opening[0].endswith(form["question"]) and steps[-1][-1]["is_success"]
        for answer in answers_of(row):
            env.reset(seed=0)
            stated = answer.rpartition("####")[2].strip()
            text = f"\\boxed{{{stated}}}" if name == "ReTool" else f"<answer>{stated}</answer>"
            assert env.step(text)[-1]["is_success"]


def test_the_best_of_several_answers_counts() -> None:
    task = {"question": "q", "golden_answers": ["The Beatles", "John Lennon"], "world": 0}
    env: Any = agent_gym.make("AgentR1/HotpotQA-v0")
    env.reset(seed=0, options={"task": task})
    metrics = env.step("<answer>Lennon</answer>")[-1]["metrics"]
    assert metrics["em"] == 0.0 and metrics["f1"] == pytest.approx(2 / 3)
    questions = QuestionEnv([{"question": "q", "answer": ["three", 3]}])
    questions.reset(seed=0)
    info = questions.step("<answer>3</answer>")[-1]
    assert info["is_success"] and info["metrics"] == {"em": 1.0, "f1": 1.0}


def test_a_row_without_an_answer_lists_its_columns_and_the_forms(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps({"question": "q", "reply": "a"}))
    for name in ("GSM8K", "HotpotQA", "ReTool"):
        with pytest.raises(ConfigError, match=r"no column 'answer'; it has: question, reply; .*golden_answers"):
            agent_gym.make(f"AgentR1/{name}-v0", data=str(tmp_path))


def test_questions_without_paragraphs_need_something_to_search(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps({"question": "q", "golden_answers": ["a"]}))
    with pytest.raises(ConfigError, match="corpus= or retriever="):
        agent_gym.make("AgentR1/HotpotQA-v0", data=str(tmp_path)).reset(seed=0)
    direct = agent_gym.make("AgentR1/HotpotQA-Direct-v0", data=str(tmp_path))
    direct.reset(seed=0)
    assert direct.step("<answer>A.</answer>")[-1]["is_success"]


def test_rows_of_the_hub_are_read_when_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    math = next(form for form in ROWS if form["name"] == "math")
    rows = [math["row"], math["row"], {**math["row"], "problem": "What is $1+1$?"}]
    loaded = datasets.DatasetDict({"train": datasets.Dataset.from_list(rows)})
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config: loaded)
    splits = load_splits("some/math-rows", columns=("question", "answer"))
    assert isinstance(splits["train"], MappedRows) and [row["answer"] for row in splits["train"]] == ["2"] * 3
    env: Any = agent_gym.make("AgentR1/ReTool-v0", data="some/math-rows")
    assert [row["question"] for row in env.tasks["train"]] == [math["question"], "What is $1+1$?"]


@pytest.mark.parametrize(
    ("row", "answers"),
    [
        ({"solution": r"so it is \fbox{3}"}, ("3",)),
        ({"solution": r"so it is $\boxed 5$."}, ("5",)),
        ({"reward_model": '{"ground_truth": {"target": ["a", "b"]}, "style": "rule"}'}, ("a", "b")),
        ({"reward_model": "{no JSON"}, ()),
    ],
)
def test_odd_but_legal_spellings_of_answers_are_read(row: dict, answers: tuple[str, ...]) -> None:
    assert answers_of(row) == answers


def test_a_mark_of_byte_order_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(b'\xef\xbb\xbf{"question": "q", "answer": "2"}\r\n\r\n')
    splits = load_splits(str(tmp_path / "train.jsonl"), columns=("question", "answer"))
    assert splits["train"][0]["question"] == "q"


@pytest.mark.parametrize("empty", [[], None, [""]])
def test_a_row_without_an_answer_says_what_it_has_in_its_place(tmp_path: Path, empty: object) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps({"question": "q", "golden_answers": empty}))
    with pytest.raises(ConfigError, match="it names no answer: golden_answers is .*; leave such rows out"):
        load_splits(str(tmp_path / "train.jsonl"), columns=("question", "answer"))


def test_data_that_is_no_name_is_the_users_mistake() -> None:
    with pytest.raises(ConfigError, match="data is 5; allowed: a file"):
        load_splits(5, columns=("question", "answer"))  # type: ignore[arg-type]
