"""Rows in the layouts of public data sets: names and shapes are theirs, the texts are made up."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

import agent_gym
from agent_gym import ConfigError, QuestionEnv
from agent_gym.data import load_splits
from agent_gym.row_reader import read_given, rules_of

ABCD = "\n\nA. w\nB. x\nC. y\nD. z"
CHOICES = {"text": ["w", "x", "y", "z"], "label": ["A", "B", "C", "D"]}
NO_DATE = {"day": "", "month": "", "year": ""}


def asked(env: Any, **options: Any) -> str:
    """The last message of an opening."""
    return env.reset(seed=0, options=options)[1]["messages"][-1]["content"]


def four(prefix: str, marks: str) -> dict[str, str]:
    return dict(zip((f"{prefix}{mark}" for mark in marks), "wxyz", strict=True))


LAYOUTS: list[tuple[str, list[dict[str, Any]], str, Any]] = [  # name, rows, question and answer of the first row
    ("gsm8k", [{"question": "q?", "answer": "1+2=<<1+2=3>>3\n#### 3"}], "q?", "1+2=<<1+2=3>>3\n#### 3"),
    ("svamp", [{"ID": "c", "Body": "Jo.", "Question": "q?", "Equation": "3", "Answer": 3.0}], "Jo. q?", "3.0"),
    ("asdiv", [{"body": "Jo.", "question": "q?", "answer": "9 (apples)", "formula": "7+2=9"}], "Jo. q?", "9 (apples)"),
    ("mawps", [{"input": "q?", "target": 8.0}], "q?", "8.0"),
    ("singleop", [{"iIndex": 1, "sQuestion": "q?", "lEquations": ["X=1"], "lSolutions": [1.0]}], "q?", "1.0"),
    ("alpaca", [{"instruction": "Add.", "input": "1 2", "output": "3"}], "Add.\n\n1 2", "3"),
    ("math", [{"problem": "q?", "level": "Level 3", "type": "A", "solution": r"so \boxed{\frac12}"}], "q?", r"\frac12"),
    ("olympiadbench", [{"id": 1, "question": "q?", "solution": ["a\nb"], "final_answer": ["2"]}], "q?", "2"),
    ("aqua", [{"question": "q?", "options": ["A)21", "B)22"], "rationale": "r", "correct": "B"}],
     "q?\n\nA. 21\nB. 22", ["B", "22"]),
    ("mathqa", [{"Problem": "q?", "options": "a ) 3 , b ) 2.5 , c ) none", "correct": "b"}],
     "q?\n\nA. 3\nB. 2.5\nC. none", ["B", "2.5"]),
    ("sat", [{"question": "q?", "options": {"A": "w", "B": "x", "C": "y", "D": "z"}, "answer": "D"}],
     f"q?{ABCD}", ["D", "z"]),
    ("mmlu", [{"question": "q?", "subject": "s", "choices": [*"wxyz"], "answer": n} for n in (3, 0)],
     f"q?{ABCD}", ["D", "z"]),
    ("mmlu-stem", [{"question": "q?", "options": [*"wxyz"], "gold": n} for n in "230"], f"q?{ABCD}", ["C", "y"]),
    ("mmlu-pro", [{"question": "q?", "options": [*"wxyz"], "answer": "C", "answer_index": 2, "cot_content": ""}],
     f"q?{ABCD}", ["C", "y"]),
    ("arc", [{"id": "M", "question": "q?", "choices": CHOICES, "answerKey": "B"}], f"q?{ABCD}", ["B", "x"]),
    ("arc with digits", [{"question": "q?", "choices": {**CHOICES, "label": [*"1234"]}, "answerKey": "2"}],
     "q?\n\n1. w\n2. x\n3. y\n4. z", ["2", "x"]),
    ("arc's file", [{"question": {"stem": "q?", "choices": [{"text": "w", "label": "A"}, {"text": "x", "label": "B"}]},
                     "answerKey": "A"}], "q?\n\nA. w\nB. x", ["A", "w"]),
    ("openbookqa", [{"question_stem": "q?", "choices": CHOICES, "answerKey": "D"}], f"q?{ABCD}", ["D", "z"]),
    ("commonsenseqa", [{"question": "q?", "question_concept": "c", "choices": CHOICES, "answerKey": "A"}],
     f"q?{ABCD}", ["A", "w"]),
    ("sciq", [{"question": "q?", "distractor1": "y", "correct_answer": "w", "support": "P."}], "P.\n\nq?", "w"),
    ("reclor", [{"context": "P.", "question": "q?", "answers": [*"wxyz"], "label": n} for n in (2, 0)],
     f"P.\n\nq?{ABCD}", ["C", "y"]),
    ("quail", [{"context": "P.", "question": "q?", "answers": [*"wxyz"], "correct_answer_id": n} for n in (1, 0)],
     f"P.\n\nq?{ABCD}", ["B", "x"]),
    ("big-bench", [{"input": "q?", "target_scores": {"yes": 1, "no": 0}, "target": "Yes. " * 60}],
     "q?\n\nA. yes\nB. no", ["A", "yes"]),
    ("truthfulqa mc", [{"question": "q?", "mc1_targets": {"choices": [*"wxyz"], "labels": [0, 0, 1, 0]}}],
     f"q?{ABCD}", ["C", "y"]),
    ("truthfulqa", [{"Question": "q?", "Best Answer": "x", "Correct Answers": "w; x; y", "Incorrect Answers": "z"}],
     "q?", ["x", "w", "y"]),
    ("evals", [{"input": [{"role": "system", "content": "s"}, {"role": "user", "content": "q?"}], "ideal": ["3"]}],
     "q?", "3"),
    ("chat for sft", [{"messages": [{"role": "user", "content": "q?"},
                                    {"role": "assistant", "content": "1+2\n#### 3"}]}], "q?", "3"),
    ("sharegpt with a box", [{"conversations": [{"from": "human", "value": "q?"},
                              {"from": "gpt", "value": r"so $\boxed{3}$"}]}], "q?", "3"),
    ("calc-x", [{"question": "q?", "chain": "<g>", "result": "5", "extra_info": {"ground_truth": "5"}}], "q?", "5"),
    ("hybridqa", [{"question_id": "a", "question": "q?", "answer-text": "w"}], "q?", "w"),
    ("model solutions", [{"question": "q?", "ground_truth": "1+2=3\nA: 3"}], "q?", "3"),
    ("math with its solution as the answer", [{"question": "q?", "answer": r"It is $x=\boxed{7}$."}], "q?", "7"),
    ("sat in a line", [{"question": "q?", "options": "A) $f(1)=2$ B) 3 C) 4 D) 5", "Answer": "B"}],
     "q?\n\nA. $f(1)=2$\nB. 3\nC. 4\nD. 5", ["B", "3"]),
    ("medqa", [{"question": "q?", "options": dict(zip("ABCD", "wxyz", strict=True)), "answer": "x", "answer_idx": "B"}],
     f"q?{ABCD}", ["B", "x"]),
    ("medmcqa", [{"question": "q?", **four("op", "abcd"), "cop": n, "exp": "e"} for n in (1, 0)],
     f"q?{ABCD}", ["B", "x"]),
    ("ceval", [{"id": 0, "question": "q?", **four("", "ABCD"), "answer": "B"}], f"q?{ABCD}", ["B", "x"]),
    ("race", [{"article": "P.", "answer": "C", "question": "q?", "options": [*"wxyz"]}],
     f"P.\n\nq?{ABCD}", ["C", "y"]),
    ("logiqa", [{"context": "P.", "query": "q?", "options": [*"wxyz"], "correct_option": n} for n in (3, 0)],
     f"P.\n\nq?{ABCD}", ["D", "z"]),
    ("agieval", [{"passage": None, "question": "q?", "options": ["(A)w", "(B)x"], "label": "A", "answer": None}],
     "q?\n\nA. w\nB. x", ["A", "w"]),
    ("agieval, mathematics", [{"passage": None, "question": "q?", "options": None, "label": None, "answer": "7"}],
     "q?", "7"),
    ("hellaswag", [{"ctx": "q", "endings": [*"wxyz"], "label": n} for n in "10"], f"q{ABCD}", ["B", "x"]),
    ("piqa", [{"goal": "q", "sol1": "w", "sol2": "x", "label": n} for n in (1, 0)], "q\n\nA. w\nB. x", ["B", "x"]),
    ("winogrande", [{"sentence": "q _", "option1": "w", "option2": "x", "answer": n} for n in "12"],
     "q _\n\nA. w\nB. x", ["A", "w"]),
    ("siqa", [{"context": "P.", "question": "q?", **dict(zip(("answerA", "answerB", "answerC"), "wxy", strict=True)),
               "label": n} for n in "13"], "P.\n\nq?\n\nA. w\nB. x\nC. y", ["A", "w"]),
    ("cosmosqa", [{"context": "P.", "question": "q?", **four("answer", "0123"), "label": 1}],
     f"P.\n\nq?{ABCD}", ["B", "x"]),
    ("copa", [{"premise": "P.", "choice1": "w", "choice2": "x", "question": "cause", "label": n} for n in (1, 0)],
     "P.\n\ncause\n\nA. w\nB. x", ["B", "x"]),
    ("nq_open", [{"question": "q?", "answer": ["a", "b"]}], "q?", ["a", "b"]),
    ("natural questions", [{"question": {"text": "q?", "tokens": ["q"]}, "annotations": {
        "short_answers": [{"text": ["a"], "start_token": [1]}, {"text": [], "start_token": []}],
        "yes_no_answer": [-1, -1]}}], "q?", "a"),
    ("natural questions, yes", [{"question": {"text": "q?"}, "annotations": {
        "short_answers": [{"text": []}], "yes_no_answer": [1]}}], "q?", "yes"),
    ("nq's text", [{"question": "q?", "answer": {"text": ["a", "b"]}}], "q?", ["a", "b"]),
    ("triviaqa", [{"question": "q?", "question_source": "s", "entity_pages": {"title": []}, "answer": {
        "aliases": ["b"], "normalized_aliases": ["c"], "normalized_value": "a", "type": "WikipediaEntity", "value": "a",
        "matched_wiki_entity_name": ""}}], "q?", ["a", "b", "c"]),
    ("triviaqa's file", [{"Question": "q?", "QuestionId": "1", "Answer": {
        "Value": "a", "Aliases": ["b"], "NormalizedAliases": ["c"], "NormalizedValue": "a", "Type": "T"}}],
     "q?", ["a", "b", "c"]),
    ("webquestions", [{"url": "u", "question": "q?", "answers": ["a"]}], "q?", "a"),
    ("popqa", [{"subj": "s", "question": "q?", "possible_answers": '["a", "b"]'}], "q?", ["a", "b"]),
    ("squad", [{"title": "T", "context": "P.", "question": "q?",
                "answers": {"text": ["a", "a"], "answer_start": [1, 2]}}], "P.\n\nq?", "a"),
    ("drop", [{"passage": "P.", "question": "q?", "answers_spans": {"spans": ["a"], "types": ["span"]}}],
     "P.\n\nq?", "a"),
    ("drop's file", [{"passage": "P.", "question": "q?", "answer": {"number": "5", "date": NO_DATE, "spans": []}}],
     "P.\n\nq?", "5"),
    ("boolq", [{"question": "q", "answer": True, "passage": "P."}], "P.\n\nq", ["yes", "true"]),
    ("strategyqa", [{"qid": "1", "term": "t", "question": "q?", "answer": False, "facts": ["f"]}],
     "q?", ["no", "false"]),
    ("pubmedqa", [{"question": "q?", "context": {"contexts": ["P.", "R."], "labels": ["A", "B"]}, "long_answer": "l",
                   "final_decision": "maybe"}], "P.\n\nR.\n\nq?", "maybe"),
    ("ms marco", [{"query": "q?", "answers": ["a"], "passages": {"is_selected": [0], "passage_text": ["P."],
                                                                "url": ["u"]}}], "P.\n\nq?", "a"),
    ("ircot", [{"question_text": "q?", "contexts": [{"idx": 0, "title": "T", "paragraph_text": "P."}],
                "answers_objects": [{"number": "", "date": NO_DATE, "spans": ["a"]}]}], "T: P.\n\nq?", "a"),
    ("hotpotqa", [{"question": "q?", "answer": "a", "context": [["T", ["P.", " R."]]], "supporting_facts": [["T", 0]]}],
     "T: P. R.\n\nq?", "a"),
    ("flashrag", [{"id": "1", "question": "q?", "golden_answers": ["a"]}], "q?", "a"),
    ("bamboogle", [{"Question": "q?", "Answer": "a"}], "q?", "a"),
    ("gpqa", [{"Question": "q?", "Correct Answer": "a", "Incorrect Answer 1": "b"}], "q?", "a"),
    ("truthfulqa", [{"question": "q?", "best_answer": "a", "correct_answers": ["a", "b"], "incorrect_answers": ["c"]}],
     "q?", ["a", "b"]),
    ("simpleqa", [{"metadata": "{'topic': 1}", "problem": "q?", "answer": "a"}], "q?", "a"),
    ("mgsm", [{"question": "q?", "answer": None, "answer_number": 18, "equation_solution": None}], "q?", "18"),
    ("metamath", [{"query": "q?", "original_question": "o", "response": "so\nThe answer is: 110"}], "q?", "110"),
    ("openmathinstruct", [{"problem": "q?", "generated_solution": "s", "expected_answer": "3"}], "q?", "3"),
    ("numinamath", [{"problem": "q?", "solution": r"\boxed{3}", "messages": [
        {"role": "user", "content": "q?"}, {"role": "assistant", "content": "so"}]}], "q?", "3"),
    ("carp", [{"content": "q?", "answer": "3"}], "q?", "3"),
    ("bbh", [{"input": "q?\n(A) w\n(B) x", "target": "(A)"}], "q?\n(A) w\n(B) x", "(A)"),
    ("trl", [{"prompt": "q?", "completion": "a"}], "q?", "a"),
    ("trl, messages", [{"prompt": [{"role": "user", "content": "q?"}],
                        "completion": [{"role": "assistant", "content": "a"}]}], "q?", "a"),
    ("parts", [{"prompt": [{"role": "user", "content": [{"type": "text", "text": "q?"}]}], "answer": "a"}], "q?", "a"),
    ("sharegpt", [{"conversations": [{"from": "human", "value": "q?"}], "answer": "a"}], "q?", "a"),
    ("verl", [{"data_source": "d", "prompt": [{"role": "user", "content": "Frame: q? End."}],
               "reward_model": {"style": "rule", "ground_truth": "3"}, "extra_info": {"question": "q?", "index": 0}}],
     "q?", "3"),
]  # fmt: skip
each = pytest.mark.parametrize(
    ("rows", "question", "answer"), [one[1:] for one in LAYOUTS], ids=[one[0] for one in LAYOUTS]
)


@each
def test_a_row_is_read_as_its_data_set_means_it(rows: list[dict[str, Any]], question: str, answer: Any) -> None:
    before = copy.deepcopy(rows)
    env = QuestionEnv(rows)
    read = env.tasks["train"][0]
    assert (read["question"], read["answer"]) == (question, answer) and rows == before
    assert env.rules.again(read) == read, "a row that was read is read as it is"
    assert read_given([json.loads(json.dumps(read))], rules_of(), "again")["train"] == [read], "and so from a file"
    for right in answer if isinstance(answer, list) else [str(answer).rpartition("####")[2].strip()]:
        assert asked(env, index=0) == question
        assert env.step(f"<answer>{right}</answer>")[4]["is_success"]
    env.reset(seed=0, options={"index": 0})
    assert not env.step("<answer>surely not</answer>")[4]["is_success"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": "q", "answer": float("nan")}, "not a number that can be written: nan"),
        ({"question": "q", "answer": float("inf")}, "not a number that can be written: inf"),
        ({"question": "q", "answer": 10**5000}, "not a number that can be written: a int"),
        ({"question": 10**5000, "answer": "a"}, "the question is no text but int"),
        ({"question": "q", "answer": None}, "it names no answer"),
        ({"question": "q", "answer": " "}, "it names no answer"),
        ({"question": "q", "answer": [None, ""]}, "it names no answer"),
        ({"question": "q", "answer": {"functional": "f"}}, r"object of a form that is not known \(keys: functional\)"),
        ({"question": "q", "answer": ["a", {"b": 1}]}, "object of a form that is not known"),
        ({"question": "q", "answer": b"a"}, "the answer is a bytes"),
        ({"question": "q", "answer": {"target": 24, "numbers": [1]}}, r"beside target \(keys: numbers, target\)"),
        ({"question": "q", "target": 24, "nums": [1, 2]}, "to be reached with nums"),
        ({"prompt": "q", "reward_model": {"ground_truth": {"target": 9, "numbers": [1]}}}, "beside target"),
        ({"prompt": "q", "reward_model": {"ground_truth": '{"functional": "f"}'}}, "not known"),
        ({"question": "q", "label": 1}, "label names a choice, and the row shows no choices"),
        ({"question": "q", "answerKey": "B"}, "shows no choices"),
        ({"question": "q", "choices": ["w", "x"], "answer": 2.5}, "none of the choices"),
        ({"question": "q", "choices": ["w", "x"], "answer": "v"}, "none of the choices"),
        ({"question": "q", "choices": ["w", "x"], "answer": ["A", "B"]}, "several choices"),
        ({"question": "q", "choices": ["w", "x"], "answer": 7}, "number of a choice that is not there"),
        ({"question": "q", "choices": ["B", "A"], "answer": "A"}, "label of one choice and the text of another"),
        ({"question": "q", "choices": ["2", "4", "8"], "answer": "2"}, "number of one choice and the text of another"),
        ({"question": "q", "choices": ["w", "x", "y"], "answer": "1"}, "whether the first is 0 or 1"),
        ({"question": "q", "choices": ["w", None], "answer": "A"}, "a choice is empty"),
        ({"question": "q", "choices": {"a": {"b": 1}}, "answer": "A"}, "choices are of a form that is not known"),
        ({"question": "q", "context": {"x": 1}, "answer": "a"}, "context is an object of a form that is not known"),
        ({"question": "q", "context": 5, "answer": "a"}, "context is no text"),
        ({"question": None, "answer": "a"}, "the question is empty"),
        ({"question": ["q"], "answer": "a"}, "question is no text but list"),
        ({"question": {"q": 1}, "answer": "a"}, "question is no text"),
        ({"question": "q one", "problem": "p two", "answer": "a"}, "ask different things.*columns="),
        ({"question": "q", "answer": "a", "final_answer": "b"}, "different answers.*columns="),
        ({"input": "a", "goal": "b", "answer": "c"}, "may both be the question.*columns="),
        ({"text": "q", "answer": "a"}, "no column 'question'; it has: text, answer"),
        ({"question": "q", "reply": "a"}, "no column 'answer'; it has: question, reply"),
        ({"question": "q", "response": "first\nthen"}, "states no answer"),
        ({"prompt": [{"role": "assistant", "content": "q"}], "answer": "a"}, "so that nothing is asked"),
        ({"prompt": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a\nc"}]}, "states no answer"),
        ({"question": "q", "prompt": [{"role": "user", "content": "p"}], "answer": "a"}, "ask different things"),
        ({"prompt": [{"role": "user", "content": "p"}], "extra_info": {"question": "q", "answer": "a"}},
         "extra_info and prompt ask different things"),
        ({"question": "q", "answer": ["Hartland", [4, 2], "/wiki"]}, "a list of lists and other values"),
        ({"question": "q", "answer": "So it is\n" + "and so on " * 30}, "worked out and states no answer"),
        ({"question": "q", "final_answer": ["1", "2"], "is_multiple_answer": True}, "several parts"),
        ({"question": "q", "answer": ["1", "2"], "answer_type": "multi-span"}, "several parts"),
        ({"input": "q", "target_scores": {"yes": 1, "no": 1}}, "several choices"),
        ({"question": "q", "extra_info": {"index": 3}}, "extra_info is empty"),
        ({"prompt": [{"role": "tool", "content": "q"}], "answer": "a"}, "'tool' or of tools"),
        ({"prompt": [{"role": "user", "content": [{"type": "image_url"}]}], "answer": "a"}, "holds an image"),
        ({"prompt": ["q"], "answer": "a"}, "not a message with a role"),
        ({"question": "q", "context": "x" * 70_000, "answer": "a"}, "more than 65,536 characters"),
        ("q", "must be an object"),
    ],
)  # fmt: skip
def test_a_row_that_has_no_reading_or_two_is_refused_with_its_place(row: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"split 'train', row 1: .*{words}") as caught:
        QuestionEnv([{"question": "fine", "answer": "a"}, row])
    assert "\n" not in str(caught.value)


def test_what_is_not_shown_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"question": f"q{n}", "hint": "h", "picture": "p", "id": n, "answer": "a"} for n in range(3)]
    for _ in range(2):
        QuestionEnv(rows)
    said = capsys.readouterr().err
    assert said.count("columns not shown: hint, picture") == 1 and "id" not in said.partition("shown:")[2]
    QuestionEnv([{"question": "q", "choices": ["w", "x"], "rationale": "r", "answer": 1}])
    said = capsys.readouterr().err
    assert "shows choices" in said and "counted from 0" in said and "not shown: rationale" in said


def test_columns_end_the_guessing(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"stem": "q?", "opts": ["w", "x"], "right": 1, "about": "P.", "answer": "no", "question": "no"}] * 2
    columns = {"question": "stem", "choices": "opts", "answer": "right", "context": "about"}
    env = QuestionEnv(rows, columns=columns)
    assert asked(env) == "P.\n\nq?\n\nA. w\nB. x" and env.gold(env.tasks["train"][0]) == ["B", "x"]
    assert asked(env, task=rows[0]) == asked(env, task=env.tasks["train"][1])
    nested = [{"extra": {"ask": "q?", "gold": 5}, "Body": "Jo."}]
    env = QuestionEnv(nested, columns={"question": "Body+extra.ask", "answer": "extra.gold"})
    assert asked(env) == "Jo. q?" and env.step("<answer>5</answer>")[4]["is_success"]
    for wrong, words in (
        ({"question": "nothing"}, "columns names 'nothing', and the row has: stem"),
        ({"quest": "stem"}, "columns names 'quest'; known: question, answer, choices, context"),
        ("question", "it must be a dict"),
    ):
        with pytest.raises(ConfigError, match=words):
            QuestionEnv(rows, columns=wrong)  # type: ignore[arg-type]


CHAT = [
    {"role": "system", "content": "Answer in French."},
    {"role": "user", "content": "My number is 7."},
    {"role": "assistant", "content": "Fine."},
    {"role": "user", "content": "What is my number?"},
]


@pytest.mark.parametrize("name", ["GSM8K", "ReTool", "HotpotQA-Direct", "questions"])
def test_a_conversation_opens_the_episode_as_the_row_has_it(name: str, tokenizer: Any, tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    rows = [{"prompt": CHAT, "answer": "7"}, {"prompt": "Or 8?", "answer": "8"}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(**kwargs: Any) -> Any:
        if name == "questions":
            return QuestionEnv(rows, tokenizer=tokenizer, **kwargs)
        return agent_gym.make(f"AgentR1/{name}-v0", data=str(tmp_path), tokenizer=tokenizer, **kwargs).unwrapped

    env = make()
    _, info = env.reset(seed=0, options={"index": 0})
    system, *others = info["messages"]
    assert system["content"].startswith("Answer in French.") and others == CHAT[1:]
    assert [span.source for span in info["spans"]] == ["system", "user", "user", "user"], "none of it is the policy's"
    assert "Fine." in env.renderer.source.decode(info["token_ids"])
    _, info = env.reset(seed=0, options={"index": 1})
    assert "French" not in str(info["messages"]) and len(info["messages"]) == 2, "the next row has the default again"
    given = make(system_prompt="Mine.")
    _, info = given.reset(seed=0, options={"index": 0})
    assert info["messages"][0]["content"].startswith("Mine.") and "French" not in str(info["messages"])


def test_a_score_of_ones_own_may_read_an_answer_of_any_kind() -> None:
    rows = [{"question": "q", "answer": {"tests": ["x"]}}]
    env = QuestionEnv(rows, score=lambda stated, row: float(stated in row["answer"]["tests"]))
    env.reset(seed=0)
    assert env.step("<answer>x</answer>")[4]["is_success"]
    with pytest.raises(ConfigError, match="not known"):
        QuestionEnv(rows)
    with pytest.raises(ConfigError, match="it names no answer"):
        QuestionEnv([{"question": "q", "answer": None}], score=lambda stated, row: 1.0)


def test_other_trainers_get_the_conversation_too(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    from agent_gym.contrib.lending import ExternalEpisode
    from agent_gym.contrib.trl import FromTRL, to_trl

    (tmp_path / "train.jsonl").write_text(json.dumps({"prompt": CHAT, "answer": "7"}))
    (row,) = to_trl("AgentR1/GSM8K-v0", tasks=1, data=str(tmp_path)).train_dataset
    assert row["prompt"] == [*CHAT[:-1], {"role": "user", "content": ""}], "TRL puts what reset returns into the last"
    episode = ExternalEpisode("AgentR1/GSM8K-v0", {"data": str(tmp_path)})
    opening = episode.reset({"split": "train", "index": 0, "seed": 0})
    assert opening[0]["content"].startswith("Answer in French.") and opening[1:] == CHAT[1:]
    with pytest.raises(ConfigError, match="row 0 of split 'train': prompt is 'text'"):
        FromTRL(object, [{"prompt": "text"}], reward_func=lambda **_: [0.0])


def test_a_verl_row_keeps_its_system_message_and_earlier_turns() -> None:
    """`extra_info.question` asks; the prompt around it opens the episode."""
    prompt = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 1+1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "What is 2+2? Put it in a box."},
    ]
    row = {"prompt": prompt, "extra_info": {"question": "What is 2+2?", "answer": "4"}}
    chosen = {**row, "choices": ["w", "y"], "extra_info": {"question": "What is 2+2?", "answer": "A"}}
    for one in (row, chosen):
        opening = QuestionEnv([one]).reset(seed=0)[1]["messages"]
        assert [message["content"] for message in opening[:-1]] == ["Be brief.", "What is 1+1?", "2"]
        assert opening[-1]["content"].startswith("What is 2+2?") and "box" not in opening[-1]["content"]


def test_several_columns_of_answers_and_choices_are_several() -> None:
    rows = [{"q": "q?", "a1": "w", "a2": "", "o1": "w", "o2": "v"}]
    (row,) = read_given(rows, rules_of({"question": "q", "answer": "a1+a2", "choices": "o1+o2"}), "x")["train"]
    assert (row["question"], row["answer"]) == ("q?\n\nA. w\nB. v", ["A", "w"])
    (row,) = read_given([{"q": "q?", "a1": "w", "a2": "v"}], rules_of({"question": "q", "answer": "a1+a2"}), "x")[
        "train"
    ]
    assert row["answer"] == ["w", "v"]


def test_numbers_of_choices_are_counted_over_all_rows_wherever_the_first_is() -> None:
    """The rows before the first 0 or the last number are read again when all are known, and keep their places."""
    choices = [*"wxyz"]
    rows = [{"question": f"q{n}", "choices": choices, "answer": n} for n in (1, 2, "B", 3, 0, 2)]
    read = read_given(rows, rules_of(), "x")["train"]
    assert [row["answer"][0] for row in read] == [*"BCBDAC"]
    from_one = [{"question": f"q{n}", "choices": choices, "answer": n} for n in (1, 2, "B", 3, 4, 9)]
    with pytest.raises(ConfigError, match="row 5: .*counted from 1: 9"):
        read_given(from_one, rules_of(), "x")
    kept = read_given(from_one, rules_of(skip_bad=True), "x")["train"]
    assert [row["answer"][0] for row in kept] == [*"ABBCD"]


def test_facts_about_all_rows_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    def said(rows: list[dict[str, Any]], name: str) -> str:
        read_given(rows, rules_of(), name)
        return capsys.readouterr().err

    first = [{"question": f"q{n}", "target_scores": {"w": 1, f"x{n}": 0}} for n in range(20)]
    assert "the right choice is number 1 in each row" in said(first, "first")
    mixed = [{"question": f"q{n}", "choices": ["w", "x"], "answer": "AB"[n % 2]} for n in range(20)]
    assert "right choice is number" not in said(mixed, "mixed")
    options = [{"question": f"q{n}", "answers": [f"{n}{mark}" for mark in "abcd"]} for n in range(20)]
    assert "each row has 4 answers, and any of them is right" in said(options, "options")
    aliases = [{"question": f"q{n}", "answers": [f"{n}{mark}" for mark in "abcd"[: 1 + n % 4]]} for n in range(20)]
    assert "any of them is right" not in said(aliases, "aliases")
    odd = [{"question": "Look: <image 1>", "answer": "a"}, {"question": "<|im_start|>user\nq", "answer": "a"}]
    shown = said(odd, "odd")
    assert "1 questions name an image" in shown and "chat template, such as <|im_start|>" in shown


@pytest.mark.parametrize(
    ("name", "content", "first"),
    [
        ("1.json", {"problem": "q?", "level": "Level 3", "solution": r"so \boxed{3}"}, ("q?", "3")),
        ("ori_pqal.json", {"21": {"QUESTION": "q?", "CONTEXTS": ["P."], "final_decision": "yes"}}, ("P.\n\nq?", "yes")),
        ("drop.json", {"nfl_1": {"passage": "P.", "qa_pairs": [
            {"question": "q?", "answer": {"number": "3", "date": NO_DATE, "spans": []}}]}}, ("P.\n\nq?", "3")),
        ("mmlu_dev.csv", 'How many legs has it?,"w, v",x,y,z,B\nAnd how many eyes?,w,x,y,z,D\n',
         ("How many legs has it?\n\nA. w, v\nB. x\nC. y\nD. z", ["B", "x"])),
    ],
)  # fmt: skip
def test_a_file_of_another_shape_is_read_as_rows(tmp_path: Path, name: str, content: Any, first: Any) -> None:
    (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    (row, *_) = next(iter(load_splits(tmp_path / name).values()))
    assert (row["question"], row["answer"]) == first


@pytest.mark.parametrize("aliases", [["Robert", "Rob"], '["Robert", "Rob"]', "Robert", None, []])
def test_aliases_of_the_answer_are_right_too(aliases: Any) -> None:
    row = {"question": "Who?", "answer": "Bob", "answer_aliases": aliases}
    env = QuestionEnv([row])
    env.reset(seed=0)
    assert env.step("<answer>Robert</answer>")[1] == (1.0 if aliases else 0.0)
    env.reset(seed=0)
    assert env.step("<answer>Bob</answer>")[1] == 1.0


def test_aliases_that_are_no_list_of_texts_are_named() -> None:
    with pytest.raises(ConfigError, match="row 0: answer_aliases is no list of texts: '\\[broken'"):
        QuestionEnv([{"question": "Who?", "answer": "Bob", "answer_aliases": "[broken"}])
