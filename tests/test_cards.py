"""Rollout cards: what is in them, what they forbid to compare, and the leaderboard that is built from them."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

from browser import CHROMIUM, Browser  # noqa: E402
from cli_tools import complaint, small_disk  # noqa: E402
from rollout_tools import counting, scripted  # noqa: E402
from tiny import make_tiny_model  # noqa: E402

from agent_gym.cli.main import main  # noqa: E402
from agent_gym.data import MODELS  # noqa: E402
from agent_gym.evaluate import evaluate, make_specs  # noqa: E402
from agent_gym.evaluate.cards import describe_model, differences, read_cards, write_cards  # noqa: E402
from agent_gym.evaluate.panels import read_panel  # noqa: E402
from agent_gym.evaluate.statistics import mean, share  # noqa: E402
from agent_gym.rollout import Budget, Runner, make_env, read_trajectories, write_trajectories  # noqa: E402

BISECT = "AgentR1/Bisect-v0"
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def played(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The panel of Bisect, twice each, by the expert and at random."""
    file = tmp_path_factory.mktemp("run") / "run.jsonl"
    words = ["eval", BISECT, "--panel", "test", "--policy", "expert", "random", "--samples", "2", "--max_turns", "4"]
    assert main([*words, "--tokenizer", tiny_model, "--output", str(file), "--price_in", "2", "--price_out", "10"]) == 0
    return file


def cards_of(file: Path) -> list[dict[str, Any]]:
    return read_cards(file.with_suffix(".card.json"))


# What is in them.


def test_a_card_counts_what_its_file_holds(played: Path) -> None:
    records, (expert, random) = list(read_trajectories(played)), cards_of(played)
    assert [expert["policy"], random["policy"]] == ["expert", "random"]
    panel = read_panel("test", BISECT)
    assert expert["panel"] == {**vars(panel), "tasks": 96}
    weights = make_env(BISECT).get_wrapper_attr("weights")
    assert expert["environment"] == {"id": BISECT, "kwargs": {}, "weights": weights, "max_turns": 5}
    assert expert["protocol"] is None and expert["model"] is None
    assert expert["decoding"]["limits"]["max_turns"] == 4 and expert["decoding"]["seed"] == 0
    assert {"python", "agent-gym", "gymnasium", "transformers"} <= set(expert["harness"])
    for card in (expert, random):
        mine = [record for record in records if record["policy"] == card["policy"]]
        truncated = sum(record["truncated"] for record in mine)
        counts = {"asked": 192, "played": 192, "failed": 0, "truncated": truncated, "skipped": 0, "attempts": 2}
        counts["prompts"] = 4
        assert card["counts"] == counts and truncated > 0
        spans = [(row["spans"], row) for record in mine for row in record["rows"]]
        sampled = sum(stop - start for some, _ in spans for start, stop, source, _ in some if source == "agent")
        read = sum(step["start"] for record in mine for step in record["steps"])
        assert card["tokens"] == {"read": read, "sampled": sampled}
        assert card["cost"] == pytest.approx((2 * read + 10 * sampled) / 1e6)
        success = card["measures"]["episode/success"]
        assert success["value"] == np.mean([record["success"] for record in mine])
        assert success["low"] < success["value"] < success["high"]
        assert card["seconds"]["wall"] > 0 and card["seconds"]["cpu"] > 0


def test_failed_episodes_are_in_the_card_and_a_protocol_is_an_argument(tokenizer: Any, tmp_path: Path) -> None:
    runner = Runner(scripted(tokenizer), tokenizer, Budget(40, 600))
    evaluate(runner, counting(4, "Toy/Broken-v0", tasks=(1,)), output=tmp_path / "run.jsonl")
    specs = make_specs("AgentR1/HotpotQA-v0", {"protocol": "search-r1"}, episodes=1)
    evaluate(runner, specs, output=tmp_path / "protocol.jsonl")
    assert cards_of(tmp_path / "protocol.jsonl")[0]["protocol"] == "search-r1"
    runner.close()
    (card,) = cards_of(tmp_path / "run.jsonl")
    counts = {"asked": 4, "played": 3, "failed": 1, "truncated": 0, "skipped": 0, "attempts": 1}
    counts["prompts"] = 3
    assert card["counts"] == counts and len(card["failures"]) == 1 and card["panel"]["name"] == ""


@pytest.mark.slow
def test_a_run_that_breaks_off_says_what_it_skipped_and_gone_on_with_nothing(tiny_model: str, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    words = ["eval", BISECT, "--expert", "--episodes", "40", "--tokenizer", tiny_model, "--output", str(file)]
    assert "continue with --resume" in small_disk(words, 60_000)
    (card,) = cards_of(file)
    counts = card["counts"]
    assert 0 < counts["played"] < 40 and counts["skipped"] == 40 - counts["played"] and counts["asked"] == 40
    assert main([*words, "--resume"]) == 0
    (card,) = cards_of(file)
    assert card["counts"]["played"] == 40 and card["counts"]["skipped"] == 0 and card["panel"]["tasks"] == 40


def test_a_model_is_known_by_its_weights(tiny_model: str, tmp_path: Path) -> None:
    again = describe_model(str(make_tiny_model(tmp_path / "again")))
    first, other = describe_model(tiny_model), describe_model(str(make_tiny_model(tmp_path / "other", seed=1)))
    assert first and again and other
    assert first["sha256"] == again["sha256"] != other["sha256"]
    assert again["name"] == "again" and describe_model("org/model") == {"name": "org/model", "sha256": None}
    assert describe_model(None) is None


def test_a_prepared_model_has_the_hash_of_its_folder(
    tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_GYM_CACHE", str(tmp_path))
    shutil.copytree(tiny_model, tmp_path / "smollm2" / MODELS["smollm2"])
    found, first = describe_model("smollm2"), describe_model(tiny_model)
    assert found and first and found == {"name": MODELS["smollm2"], "sha256": first["sha256"]}


def test_an_adapter_with_another_scale_is_another_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    hashes = set()
    for scale in (16, 32):
        (tmp_path / "adapter_config.json").write_text(json.dumps({"lora_alpha": scale}))
        hashes.add((describe_model(str(tmp_path)) or {})["sha256"])
    assert len(hashes) == 2


# Intervals.


def test_the_intervals_are_those_of_a_cluster_bootstrap() -> None:
    """Attempts at a task are alike here: drawn whole tasks at a time, they agree with the formulas and not with n."""
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 9, 120)
    wins = rng.binomial(counts, rng.beta(0.4, 0.4, 120))
    drawn = rng.integers(120, size=(4000, 120))
    estimates = wins[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.quantile(estimates, [0.025, 0.975])
    for found in (share(list(wins), list(counts), int(counts.sum())), mean(list(wins), list(counts))):
        assert found.low == pytest.approx(low, abs=0.015) and found.high == pytest.approx(high, abs=0.015)
    naive = 2 * 1.96 * (estimates.mean() * (1 - estimates.mean()) / counts.sum()) ** 0.5
    assert high - low > 1.5 * naive, "episodes that are taken for independent would seem surer"


# What they forbid.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda card: card["panel"].update(prompts_sha256="0" * 64), "other tasks: "),
        (lambda card: card["panel"].update(golds_sha256="0" * 64), "other gold answers: "),
        (lambda card: card.update(protocol="react"), 'other protocol: null and "react"'),
        (lambda card: card["environment"].update(id="AgentR1/Bisect-v1"), "other environment: "),
        (lambda card: card["environment"].update(weights={"found": 2.0}), "other reward weights: "),
        (lambda card: card["environment"].update(kwargs={"rendering": "inline"}), "other arguments: "),
        (lambda card: card["environment"].update(max_turns=6), "other turns: 5 and 6"),
        (lambda card: card["decoding"]["limits"].update(max_tokens=9), "other limits: "),
        (lambda card: card["environment"].update(kwargs={"data": "mine"}), None),
        (lambda card: card["decoding"].update(temperature=1.0), None),
        (lambda card: card["environment"].update(id="AgentR1/Bisect-Long-v0", max_turns=9), None),
    ],
)
def test_what_makes_two_numbers_incomparable(change: Any, words: str | None, played: Path) -> None:
    card = cards_of(played)[0]
    other = copy.deepcopy(card)
    assert differences(card, other) == []
    change(other)
    reasons = differences(card, other)
    assert (reasons == []) if words is None else (len(reasons) == 1 and reasons[0].startswith(words))


def test_compare_refuses_and_marks(played: Path, tiny_model: str, tmp_path: Path, capsys: Captured) -> None:
    longer = tmp_path / "longer.jsonl"
    words = ["eval", BISECT, "--panel", "test", "--expert", "--tokenizer", tiny_model, "--output", str(longer)]
    assert main(words) == 0
    files = [str(played), str(longer)]
    message = complaint(capsys, "compare", *files)
    assert "expert in run and expert in longer are not comparable: other limits: " in message and "--anyway" in message
    assert main(["compare", *files, "--anyway"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("NOT COMPARABLE: other limits") == 1 and "vouches" not in shown
    assert main(["compare", *files, "--anyway", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [len(row["not_comparable"]) for row in rows] == [0, 1] and rows[1]["card_a"] and rows[1]["card_b"]

    # A card is of the episodes that it was made of. Of others, and without one, nothing is known.
    write_trajectories(longer, list(read_trajectories(longer))[:90])
    assert main(["compare", *files]) == 0
    assert "no card vouches for b" in capsys.readouterr().out
    longer.with_suffix(".card.json").write_text("{}")
    assert "holds no cards" in complaint(capsys, "compare", *files)


def test_cards_of_other_arguments_stay(played: Path, tmp_path: Path) -> None:
    """A run may be evaluated in an easy and in a hard form of its environment."""
    easy, file = cards_of(played)[0], tmp_path / "card.json"
    hard = copy.deepcopy(easy)
    hard["environment"]["kwargs"] = {"difficulty": 5}
    write_cards(file, [easy])
    write_cards(file, [hard, {**easy, "name": "later"}])
    assert [card["environment"]["kwargs"] for card in read_cards(file)] == [
        easy["environment"]["kwargs"],
        {"difficulty": 5},
    ]
    assert read_cards(file)[0]["name"] == "later"


def test_a_run_with_several_evaluation_sets_has_a_card_of_each(tmp_path: Path) -> None:
    from datasets import concatenate_datasets
    from trainer_tools import ENV, make_trainer

    from agent_gym.trainers import task_dataset
    from agent_gym.trainers.checkpoints import provenance
    from agent_gym.trainers.model_card import write_card

    sets = {"few": task_dataset(ENV, split="test", tasks=2), "more": task_dataset(ENV, split="test", tasks=5)}
    both = concatenate_datasets([task_dataset(ENV, split=split, tasks=3) for split in ("train", "test")])
    trainer = make_trainer(tmp_path, eval_dataset={**sets, "two_splits": both}, max_steps=1, eval_strategy="steps")
    trainer.train()
    content = json.loads((tmp_path / "card.json").read_text())
    found = [(card["panel"]["name"], card["panel"]["split"], card["counts"]["asked"]) for card in content["cards"]]
    splits = [("two_splits", "train", 3), ("two_splits", "test", 3)]
    assert found == [("few", "test", 2), ("more", "test", 5), *splits]
    logged = content["training"]["evaluations"]
    assert [(one["tasks"], one["step"], one["episodes"]) for one in logged] == [
        ("few", 1, 2),
        ("more", 1, 5),
        ("two_splits", 1, 6),
    ]
    for card, one in zip(content["cards"], logged[:2], strict=False):
        assert card["measures"]["episode/success"]["value"] == one["success"]
    write_card(trainer, provenance(trainer))
    lines = (tmp_path / "README.md").read_text().splitlines()
    assert "| step | tasks |" in "\n".join(lines) and any(line.startswith("| 1 | two_splits |") for line in lines)


# The leaderboard.


def test_a_leaderboard_holds_apart_what_is_not_comparable(played: Path, tmp_path: Path, capsys: Captured) -> None:
    expert, random = cards_of(played)
    evil = {**random, "policy": "<script>alert(1)</script>"}
    old = copy.deepcopy(expert)
    old["panel"].update(version=0, prompts_sha256="0" * 64)
    longer = copy.deepcopy(expert)
    longer["environment"].update(max_turns=6)
    write_cards(tmp_path / "new.card.json", [evil, expert])
    write_cards(tmp_path / "six.card.json", [longer])
    (tmp_path / "deep").mkdir()
    write_cards(tmp_path / "deep" / "card.json", [old], training={})
    assert main(["leaderboard", str(tmp_path), "--title", "a & b"]) == 0
    lines = capsys.readouterr().out.splitlines()
    tables = [n for n, line in enumerate(lines) if line.startswith(BISECT)]
    assert [lines[n][-9:] for n in tables] == ["version 1", "version 1", "version 0"], "the newest first"
    assert [line for line in lines if line.startswith("turns: ")] == ["turns: 5", "turns: 6", "turns: 5"]
    assert "not comparable with version 1 of this panel" in lines[tables[2] + 1]
    names = [line.split("  ")[0] for line in lines if re.search(r" to .*%", line)]
    assert names == ["expert (new)", "<script>alert(1)</script> (new)", "expert (six)", "expert (deep/card.json)"], (
        "the best first"
    )
    page = (tmp_path / "leaderboard.html").read_text(encoding="utf-8")
    assert "a &amp; b" in page and "<script" not in page and not re.search(r"https?:|src=|href=", page)
    assert page.count("<table>") == 3 and "not comparable with version 1" in page


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_a_long_name_breaks_no_word_of_the_heading(played: Path, tmp_path: Path) -> None:
    card, _ = cards_of(played)
    write_cards(tmp_path / "long.card.json", [{**card, "policy": "a_policy/of_a_long/name" * 3}])
    assert main(["leaderboard", str(tmp_path)]) == 0
    lines = "(r => (r.selectNodeContents(e), r.getClientRects().length))(document.createRange())"
    whole = f"[...document.querySelectorAll('th')].every(e => {lines} <= e.innerText.split(' ').length)"
    with Browser(tmp_path) as browser:
        for width in (1280, 800, 660):
            browser.open(tmp_path / "leaderboard.html", width=width)
            assert browser.js(whole)
            assert browser.js("document.documentElement.scrollWidth <= innerWidth")


def test_a_leaderboard_knows_no_success_where_every_episode_failed(
    played: Path, tmp_path: Path, capsys: Captured
) -> None:
    card, _ = cards_of(played)
    write_cards(tmp_path / "lost.card.json", [{**card, "measures": {}}])
    assert main(["leaderboard", str(tmp_path)]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("expert (lost)"))
    assert row.split()[2:4] == ["-", "-"] and "%" not in row


def test_a_folder_without_cards_is_named(tmp_path: Path, capsys: Captured) -> None:
    assert "holds no cards" in complaint(capsys, "leaderboard", str(tmp_path))


# Training.


def test_a_training_run_has_a_card_of_its_last_evaluation_and_of_all_that_it_spent(tmp_path: Path) -> None:
    from trainer_tools import ENV, make_trainer

    from agent_gym.trainers import task_dataset

    run, data = tmp_path / "run", task_dataset(ENV, split="test", tasks=5)
    options: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    trainer = make_trainer(run, eval_dataset=data, max_steps=3, **options)
    trainer.train()
    content = json.loads((run / "card.json").read_text())
    (card,), training = content["cards"], content["training"]
    assert card["policy"] == "run" and card["model"] == {"name": "run", "step": 3}
    assert card["counts"]["asked"] == card["counts"]["played"] == card["panel"]["tasks"] == 5
    assert card["measures"]["episode/success"]["value"] == training["evaluations"][-1]["success"]
    spent = training["spent"]
    assert training["step"] == 3 and spent["asked"] == spent["played"] > 0 and spent["cpu_seconds"] > 0
    shutil.rmtree(run / "checkpoint-3")  # as if it had been killed while it wrote that one
    again = make_trainer(run, eval_dataset=data, max_steps=6, **options)
    again.train(resume_from_checkpoint=True)
    both = json.loads((run / "card.json").read_text())["training"]
    # Three steps, and four more from the checkpoint of the second on.
    assert both["step"] == 6 and both["spent"]["asked"] * 3 == spent["asked"] * 7
    assert both["spent"]["sampled_tokens"] > spent["sampled_tokens"] and both["spent"]["wall_seconds"] > 0
    # The same trainer goes on, and then another one evaluates before it does.
    again.args.max_steps = 8
    again.train(resume_from_checkpoint=True)
    third = make_trainer(run, eval_dataset=data, max_steps=9, **options)
    third.evaluate()
    assert json.loads((run / "card.json").read_text())["training"]["step"] == 8
    third.train(resume_from_checkpoint=True)
    all_of_it = json.loads((run / "card.json").read_text())["training"]
    assert all_of_it["step"] == 9 and all_of_it["spent"]["asked"] * 3 == spent["asked"] * 10
