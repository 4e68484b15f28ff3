"""Preparing data sets from local files, in Python and by the command: what is recognised, written, and refused."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

pytest.importorskip("pyarrow")

from prepare_tools import (
    as_on_the_hub,
    contents,
    multi_hop_rows,
    musique_rows,
    read_table,
    word_problems,
    write_lines,
    write_list,
)
from search_tools import hotpotqa_sample

import agent_gym.prepare.rows as prepared_rows
from agent_gym.cli.main import main
from agent_gym.errors import ConfigError
from agent_gym.prepare import RECIPES, Options, cache_folder, env_kwargs, prepare
from agent_gym.search import Corpus, Document

# What is written.


def test_word_problems_become_a_file_per_split_that_the_environment_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(prepared_rows, "ROWS_AT_ONCE", 4)
    rows = word_problems(11)
    source = write_lines(tmp_path / "source" / "train.jsonl", rows).parent
    write_lines(source / "test.jsonl", rows[:3])
    write_lines(source / "train_socratic.jsonl", rows)  # as in the official repository
    (source / "licences.json").write_text("{}")
    prepared = prepare("gsm8k", source=[str(source)], output=tmp_path / "out")
    assert read_table(tmp_path / "out" / "data" / "train.parquet") == rows
    assert sorted(prepared.pieces) == ["data/test.parquet", "data/train.parquet"]
    assert [prepared.pieces[path]["rows"] for path in sorted(prepared.pieces)] == [3, 11]
    tasks = gymnasium.make("AgentR1/GSM8K-v0", **env_kwargs(prepared)).unwrapped.tasks
    for split, expected in (("train", rows), ("test", rows[:3])):
        assert [task["question"] for task in tasks[split]] == [row["question"] for row in expected]


def test_every_form_of_a_data_set_gives_the_same_bytes(tmp_path):
    rows = multi_hop_rows(5)
    hub = [as_on_the_hub(row) for row in rows]
    texts = [{**row, **{name: json.dumps(row[name]) for name in ("supporting_facts", "context")}} for row in rows]
    sources = {
        "official": write_list(tmp_path / "hotpot_dev_distractor_v1.json", rows),
        "hub": write_lines(tmp_path / "validation-00000-of-00001.jsonl", hub),
        "texts": write_lines(tmp_path / "dev.jsonl", texts),
        "prepared": tmp_path / "official" / "data" / "validation.parquet",
    }
    for name, source in sources.items():
        prepare("hotpotqa", source=[str(source)], output=tmp_path / name)
    expected = contents(tmp_path / "official")
    assert {"data/validation.parquet", "corpus/corpus.jsonl", "bm25/bm25.json"} < set(expected)
    for name in sources:
        found = contents(tmp_path / name)
        assert {path for path in expected if found.get(path) != expected[path]} - {"manifest.json"} == set()
    assert read_table(sources["prepared"]) == hub


def test_paragraphs_become_a_corpus_and_an_index_that_the_environment_searches(tmp_path):
    write_list(tmp_path / "hotpot_train_v1.1.json", multi_hop_rows(4))
    write_list(tmp_path / "hotpot_dev_distractor_v1.json", multi_hop_rows(3, start=4))
    write_list(tmp_path / "hotpot_dev_fullwiki_v1.json", multi_hop_rows(9))
    write_list(tmp_path / "hotpot_test_fullwiki_v1.json", multi_hop_rows(9))
    prepared = prepare("hotpotqa", source=[str(tmp_path)], output=tmp_path / "out")
    titles = [document.title for document in Corpus(tmp_path / "out" / "corpus")]
    assert titles[:3] == ["Film 0", "Person 0", "Film 1"], "train comes first, whatever the files are called"
    assert sorted(titles) == sorted([f"Film {n}" for n in range(8)] + [f"Person {n}" for n in range(7)])
    kwargs = env_kwargs(prepared)
    assert kwargs == {key: str(tmp_path / "out" / key) for key in ("data", "corpus")} | {
        "retriever": str(tmp_path / "out" / "bm25")
    }
    env = gymnasium.make("AgentR1/HotpotQA-v0", **kwargs).unwrapped
    assert len(env.tasks["train"]) == 4 and len(env.tasks["test"]) == 3
    env.reset(options={"split": "test", "index": 2})
    observation, *_ = env.step(env.expert_action())
    assert "Film 6 is by Person 6." in observation


def test_three_data_sets_are_told_apart_by_their_columns(tmp_path):
    hotpot = write_list(tmp_path / "a" / "hotpot_dev_distractor_v1.json", multi_hop_rows(3))
    wiki = write_list(tmp_path / "b" / "dev.json", [{**row, "evidences": []} for row in multi_hop_rows(2, start=50)])
    write_list(tmp_path / "b" / "test.json", [{**row, "evidences": []} for row in multi_hop_rows(2, start=90)])
    musique = write_lines(tmp_path / "c" / "musique_ans_v1.0_dev.jsonl", musique_rows(4))
    write_lines(tmp_path / "c" / "musique_full_v1.0_dev.jsonl", musique_rows(4, answerable=False))
    source = [str(path) for path in (hotpot, wiki.parent, musique.parent)]
    prepared = prepare("multihopqa", source=source, output=tmp_path / "out")
    names = ("musique", "2wikimultihopqa", "hotpotqa")
    assert env_kwargs(prepared)["data"] == [str(tmp_path / "out" / "data" / name) for name in names]
    assert [piece["rows"] for piece in prepared.pieces.values()] == [4, 2, 3, 4 * 2 + 1 + 5 + 7, None]
    env = gymnasium.make("AgentR1/MultiHopQA-v0", **env_kwargs(prepared)).unwrapped
    solved = 0
    for index in range(len(env.tasks["validation"])):
        env.reset(options={"split": "validation", "index": index})
        over = False
        while not over:
            *_, terminated, truncated, info = env.step(env.expert_action())
            over = terminated or truncated
        solved += info["is_success"] and info["metrics"]["gold_recall"] == 1
    assert solved == 9


def test_math_problems_are_unwrapped_and_each_is_kept_once(tmp_path):
    def wrapped(problem: str, answer: str) -> dict[str, Any]:
        before = (
            "Solve the following math problem step by step. The last line of your response should be of the form "
            "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
        )
        after = '\n\nRemember to put your answer on its own line after "Answer:".'
        prompt = [{"content": before + problem + after, "role": "user"}]
        return {"data_source": "math_dapo", "prompt": prompt, "reward_model": {"ground_truth": answer, "style": "rule"}}

    problems = [("What is $1+1$?", "2"), ("Compute 3·4.", "12")]
    rows = [wrapped(*problem) for _ in range(100) for problem in problems]
    source = write_lines(tmp_path / "dapo-math-17k.jsonl", rows)
    prepare("retool", source=[str(source)], output=tmp_path / "dapo")
    expected = [{"problem": problem, "answer": answer} for problem, answer in problems]
    assert read_table(tmp_path / "dapo" / "data" / "all.parquet") == expected
    half = {"problem": "a \ud800 b", "answer": "1"}  # half a surrogate pair becomes a question mark
    own = write_lines(tmp_path / "train.jsonl", [{"problem": "What is $1+1$?", "answer": 2}, expected[1], half])
    prepare("retool", source=[str(own)], output=tmp_path / "own")
    assert read_table(tmp_path / "own" / "data" / "train.parquet") == [*expected, half | {"problem": "a ? b"}]


def test_the_full_wiki_takes_questions_and_documents(tmp_path):
    dev = write_list(tmp_path / "hotpot_dev_distractor_v1.json", multi_hop_rows(2))
    documents = [Document("12", "Film 0", "It is by Person 0."), Document("7", "", "Untitled.")]
    corpus = write_lines(
        tmp_path / "corpus.jsonl", [{"_id": d.id, "title": d.title, "text": d.text} for d in documents]
    )
    prepared = prepare("hotpotqa-fullwiki", source=[str(dev), str(corpus)], output=tmp_path / "out")
    assert list(Corpus(tmp_path / "out" / "corpus")) == documents
    env = gymnasium.make("AgentR1/HotpotQA-FullWiki-v0", **env_kwargs(prepared)).unwrapped
    env.reset(options={"split": "validation", "index": 0})
    assert "[1] Film 0: It is by Person 0." in env.step(env.expert_action())[0]
    with pytest.raises(ConfigError, match="needs one file of documents .* and got none"):
        prepare("hotpotqa-fullwiki", source=[str(dev)], output=tmp_path / "other")


def test_shards_are_one_split_and_other_files_are_not(tmp_path):
    rows = word_problems(5)
    write_lines(tmp_path / "a" / "train-00001-of-00002.jsonl", rows[3:])
    write_lines(tmp_path / "a" / "train-00000-of-00002.jsonl", rows[:3])
    prepare("gsm8k", source=[str(tmp_path / "a")], output=tmp_path / "out")
    assert read_table(tmp_path / "out" / "data" / "train.parquet") == rows
    for name in ("train_old.jsonl", "train_new.jsonl"):
        write_lines(tmp_path / "b" / name, rows)
    with pytest.raises(ConfigError, match=r"train_new.*train_old.* would be the same split \(train\)"):
        prepare("gsm8k", source=[str(tmp_path / "b")], output=tmp_path / "out2")


# What is refused.


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "x"}', "no column 'answer'"),
        ('{"question": "x", "answer": "3/4"}', "the answer is not one number"),
        ('{"question": "x", "answer": [3, 4]}', "there are several answers"),
        ('{"question": "x", "answer": {"one": 3}}', "an object of a form that is not known"),
        ("[]", "must be an object"),
    ],
)
def test_a_row_that_is_wrong_is_named_with_its_line(tmp_path, line, message):
    source = write_lines(tmp_path / "train.jsonl", word_problems(2))
    source.write_text(source.read_text() + line + "\n")
    with pytest.raises(ConfigError) as caught:
        prepare("gsm8k", source=[str(source)], output=tmp_path / "out")
    assert str(caught.value).startswith(f"{source}, line 3: ") and message in str(caught.value)
    assert not (tmp_path / "out" / "data" / "train.parquet").exists()


def test_a_question_of_another_form_is_named_with_its_place(tmp_path):
    (good,) = multi_hop_rows(1)
    for change in ({"context": [["A", "text"]]}, {"context": "no JSON"}, {"supporting_facts": [["A", "0"]]}):
        source = write_list(tmp_path / "train.json", [good, good | change])
        with pytest.raises(ConfigError, match=r"train\.json, example 1: .*; expected the official JSON"):
            prepare("hotpotqa", source=[str(source)], output=tmp_path / "out")


def test_files_that_are_nothing_of_the_recipe(tmp_path):
    problems = write_lines(tmp_path / "train.jsonl", word_problems(1))
    empty, more = tmp_path / "empty.jsonl", tmp_path / "more.jsonl"
    empty.write_text("")
    for recipe, source, message in (
        ("hotpotqa", [problems], "is nothing that hotpotqa is made of: it has the columns answer, question"),
        ("hotpotqa", [tmp_path], "holds nothing that hotpotqa is made of; expected the official JSON"),
        ("gsm8k", [tmp_path / "none"], "no such file"),
        ("gsm8k", [empty], "it has no rows"),
        ("gsm8k", [problems, write_lines(more, word_problems(1))], "cannot tell which split .*more.jsonl is"),
    ):
        with pytest.raises(ConfigError, match=message):
            prepare(recipe, source=[str(path) for path in source], output=tmp_path / "out")
    for recipe, index, message in (
        ("gsm", None, "no recipe 'gsm'; known: gsm8k, hotpotqa"),
        ("hotpotqa", "lucene", "index is 'lucene'; it must be one of bm25, auto, flat"),
        ("gsm8k", "flat", "gsm8k has nothing to search"),
    ):
        with pytest.raises(ConfigError, match=message):
            prepare(recipe, output=tmp_path / "out", options=Options(index=index))


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("AGENT_GYM_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder() == Path("/a")
    monkeypatch.delenv("AGENT_GYM_CACHE")
    assert cache_folder() == Path("/b/agent-gym")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/h")
    assert cache_folder() == Path("/h/.cache/agent-gym")


# The command; the lines that it prints must work as they stand.


@pytest.fixture
def try_lines(tmp_path, monkeypatch, capsys, tiny_model):
    """Run the lines that were printed, in another folder, because paths must be whole."""

    def run(printed: str) -> None:
        _, imports, make, commands = printed.strip().split("\n\n")
        (_, *play), (_, *evaluate) = map(shlex.split, commands.splitlines())
        monkeypatch.chdir(tmp_path)
        exec(f"{imports}\n{make}\nassert env.reset(seed=0)[0] and env.unwrapped.expert_action()", {})
        monkeypatch.setattr(sys, "stdin", io.StringIO("/expert\n" * 20))
        assert main(play) == 0 and "done: solved" in capsys.readouterr().out
        words = [tiny_model if word == "Qwen/Qwen2.5-1.5B-Instruct" else word for word in evaluate]
        assert main([*words, "--episodes", "2", "--max_turn_tokens", "4", "--engine", "transformers"]) == 0
        assert f"{tiny_model}: 2 tasks" in capsys.readouterr().out

    return run


def test_real_word_problems(tmp_path, gsm8k_folder, try_lines, monkeypatch, capsys):
    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path / "a cache"))
    assert main(["prepare", "gsm8k", "--from", str(gsm8k_folder)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"data/train\.parquet +7,473 +[\d,]+  written", printed)
    assert re.search(r"data/test\.parquet +1,319 +[\d,]+  written", printed)
    try_lines(printed)
    assert main(["prepare", "gsm8k"]) == 0
    assert capsys.readouterr().out.count("already there, checksums agree") == 2


def test_the_lines_for_questions_work_also_without_an_index_or_train(tmp_path, capsys, try_lines):
    folder = tmp_path / "Who's out"  # with a quote and a blank, for the shell
    words = ["--from", str(hotpotqa_sample()), "--index", "none", "--output", str(folder)]
    assert main(["prepare", "hotpotqa", *words]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"data/all\.parquet +60 ", printed) and re.search(r"corpus +600 ", printed)
    try_lines(printed)
    source = write_list(tmp_path / "hotpot_dev_distractor_v1.json", multi_hop_rows(3))
    assert main(["prepare", "multihopqa", "--from", str(source), "--output", str(tmp_path / "dev")]) == 0
    try_lines(capsys.readouterr().out)


def test_every_recipe_is_in_the_help(capsys):
    with pytest.raises(SystemExit):
        main(["prepare", "--help"])
    text = capsys.readouterr().out
    for recipe in RECIPES.values():
        assert f"\n  {recipe.name} " in text and gymnasium.spec(recipe.env_id)
        assert all(len(table.hub.revision) == 40 for table in recipe.tables)


def test_a_dry_run_prints_bytes_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path / "cache"))
    local = write_list(tmp_path / "hotpot_dev_distractor_v1.json", multi_hop_rows(7))
    made = r"validation\.parquet\nwrite +corpus\nwrite +dense-bge-large-en-v1\.5\nto fetch: "
    hub = r"fetch +hotpotqa/hotpot_qa \(distractor\) +359,239,231 .*\nwrite +data/train\.parquet\nwrite +data/"
    for source, printed in (
        ([], rf"{hub}{made}359,239,231 bytes"),
        ([str(local)], rf"read +{local} +{local.stat().st_size:,}\nwrite +data/{made}0 bytes"),
        (["http://127.0.0.1:9/a"], rf"fetch +http://127\.0\.0\.1:9/a\nwrite +{tmp_path}"),
    ):
        words = ["--from", *source] if source else []
        assert main(["prepare", "hotpotqa", "--dry-run", "--index", "flat", *words]) == 0
        assert re.search(printed, capsys.readouterr().out) and not (tmp_path / "cache").exists()


def test_columns_are_named_and_bad_rows_left_out_and_the_environment_reads_all_that_is_written(tmp_path, capsys):
    rows = [{"Body": "Jo.", "ask": f"q{n}?", "right": n, "Question": "no"} for n in range(4)]
    rows += [{"Body": "Jo.", "ask": "half?", "right": "3/4"}, {"Body": "Jo.", "ask": "none?", "right": None}]
    source = write_lines(tmp_path / "Train.jsonl", rows)
    source.write_text(source.read_text() + '{"broken\n')
    columns = {"question": "Body+ask", "answer": "right"}
    with pytest.raises(ConfigError, match=r"3 of 7 rows cannot be used.*line 5: the answer is not one number.*line 7"):
        prepare("gsm8k", source=[str(source)], output=tmp_path / "out", options=Options(columns=columns))
    shutil.rmtree(tmp_path / "out")
    words = ["--from", str(source), "--output", str(tmp_path / "out"), "--columns", "question=Body+ask,answer=right"]
    assert main(["prepare", "gsm8k", *words, "--skip_bad"]) == 0
    assert "3 of 7 rows are left out" in capsys.readouterr().err
    expected = [{"question": f"Jo. q{n}?", "answer": str(n)} for n in range(4)]
    assert read_table(tmp_path / "out" / "data" / "train.parquet") == expected
    assert len(gymnasium.make("AgentR1/GSM8K-v0", data=str(tmp_path / "out" / "data")).unwrapped.tasks["train"]) == 4
    for recipe in ("smollm2", "alfworld"):
        with pytest.raises(ConfigError, match="made of no rows"):
            prepare(recipe, source=[str(source)], output=tmp_path / recipe, options=Options(skip_bad=True))
