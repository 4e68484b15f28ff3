"""The page: complete, small, safe against what a model may write; and the curve."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tiny import make_tiny_tokenizer

from agent_gym import ConfigError
from agent_gym.chat import ChatRenderer
from agent_gym.evaluate import make_specs
from agent_gym.policies import ScriptedPolicy
from agent_gym.rollout import Budget, Episode, Runner, to_record
from agent_gym.viewer import CurvePoint, plot_curve, render_html, write_html
from agent_gym.viewer.compact import compact

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)> <!-- \u2028 — 思考"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tiny_tokenizer()


def play(tokenizer: Any, episodes: int, act: Any = None) -> list[Episode]:
    policy = ScriptedPolicy(
        act or (lambda episode: episode.env.unwrapped.expert_action()), ChatRenderer.of(tokenizer).encode_action
    )
    runner = Runner(policy, tokenizer, Budget(max_turn_tokens=256), workers=2)
    try:
        return runner.run(make_specs("AgentR1/GSM8K-v0", split="train", episodes=episodes))
    finally:
        runner.close()


def records(tokenizer: Any, played: list[Episode], **extra: Any) -> list[dict[str, Any]]:
    """Records with made-up advantages: 0.5 on every sampled token, and logprobs that differ."""
    for episode in played:
        for row in episode.rows:
            row.logprobs = [-0.001 * i if kept else 0.0 for i, kept in enumerate(row.action_mask)]
    laid = [[[0.5 * kept for kept in row.action_mask] for row in episode.rows] for episode in played]
    return [to_record(e, tokenizer, a, **extra) for e, a in zip(played, laid, strict=True)]


def embedded(page: str) -> Any:
    """The data as the script reads it."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_nothing_that_matters_is_lost_in_the_compact_form(tokenizer: Any) -> None:
    originals = records(tokenizer, play(tokenizer, 3), step=7)
    data = compact(originals, "t")
    for original, episode in zip(originals, data["episodes"], strict=True):
        row, packed = original["rows"][0], episode["rows"][0]
        assert [data["tokens"][i] for i in packed["tokens"]] == [
            [i, text] for i, text in zip(row["token_ids"], row["tokens"], strict=True)
        ]
        sources = [source for length, source, _ in packed["spans"] for _ in range(length)]
        sampled = [i for start, stop, source, _ in row["spans"] if source == "agent" for i in range(start, stop)]
        assert [i for i, source in enumerate(sources) if source == 2] == sampled
        assert packed["logprobs"] == pytest.approx([row["logprobs"][i] for i in sampled], rel=1e-3)
        assert packed["advantages"] == [[0.5, len(sampled)]]
        assert [step["reward"] for step in episode["steps"]] == pytest.approx([s["reward"] for s in original["steps"]])
        assert episode["spec"]["seed"] == original["spec"]["seed"] and episode["extra"] == {"step": 7}
        shown = [[role, data["texts"][text]] for role, text in episode["opening"]]
        assert shown == [[m["role"], m["content"]] for m in original["messages"][:2]]


def test_a_hundred_short_episodes_fit_into_a_megabyte(tokenizer: Any) -> None:
    page = render_html(records(tokenizer, play(tokenizer, 100)))
    assert len(embedded(page)["episodes"]) == 100
    assert len(page.encode()) < 1_000_000


def test_the_page_needs_nothing_from_outside(tokenizer: Any) -> None:
    page = render_html(records(tokenizer, play(tokenizer, 1)), "A title & more")
    assert not re.search(r"(src|href|url|import)\s*[=(]\s*[\"']?(https?:)?//", page)
    assert "default-src 'none'" in page and "<title>A title &amp; more</title>" in page
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page


def test_what_a_model_writes_stays_text(tokenizer: Any) -> None:
    played = play(tokenizer, 1, lambda episode: HOSTILE)
    page = render_html(records(tokenizer, played, note=HOSTILE + "\ud800"), HOSTILE)
    assert page.lower().count("<script") == page.lower().count("</script") == 2
    assert "<img" not in page and "<!-- " not in page
    data = embedded(page)
    assert data["title"] == HOSTILE
    assert data["episodes"][0]["extra"]["note"] == HOSTILE + "?"  # a lone surrogate fits into no file


def test_a_step_whose_tokens_split_characters_also_carries_its_text(tokenizer: Any) -> None:
    played = play(
        tokenizer, 1, lambda episode: "思考 <answer>1</answer>" if episode.steps else "<tool_call>{</tool_call>"
    )
    data = compact(records(tokenizer, played), "t")
    first, second = data["episodes"][0]["steps"]
    assert "action" not in first  # readable as it is
    assert data["texts"][second["action"]].startswith("思考")


def test_records_without_token_texts_and_failed_episodes_are_shown(tokenizer: Any) -> None:
    played = play(tokenizer, 2)
    played[1].failure = "EnvFailure: the index is gone"
    played[1].steps[0].reward = math.nan
    originals = [to_record(episode) for episode in played]
    empty = {**originals[1], "rows": [], "steps": [], "messages": [], "tools": []}  # it failed in reset
    data = embedded(render_html([*originals, empty]))
    assert data["tokens"][0][1] is None
    assert data["texts"][data["episodes"][0]["steps"][0]["action"]].startswith("<tool_call>")
    assert data["episodes"][1]["reward"] is None and data["episodes"][1]["steps"][0]["reward"] is None
    assert embedded(render_html([]))["episodes"] == []


def rewritten(tokenizer: Any) -> list[dict[str, Any]]:
    """An episode in several contexts, with summaries."""

    def act(episode: Any) -> str:
        return "<tool_call>{</tool_call>" if episode.asked == "act" else "nothing worked"

    policy = ScriptedPolicy(act, ChatRenderer.of(tokenizer).encode_action)
    runner = Runner(policy, tokenizer, Budget(40, 800), context="summarize")
    played = runner.run(
        make_specs("AgentR1/GSM8K-v0", {"system_prompt": "", "max_turns": 9}, split="train", episodes=1)
    )
    runner.close()
    return records(tokenizer, played)


def test_summaries_are_told_from_turns_and_old_files_have_none(tokenizer: Any) -> None:
    (record,) = rewritten(tokenizer)
    kinds = [step["kind"] for step in record["steps"]]
    assert kinds.count("act") == 9 and "summary" in kinds and len(record["rows"]) > 1
    assert [step["kind"] for step in compact([record], "t")["episodes"][0]["steps"]] == kinds
    for step in record["steps"]:
        del step["kind"], step["process_reward"]
    assert {step["kind"] for step in compact([record], "t")["episodes"][0]["steps"]} == {"act"}


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")
def test_the_script_draws_contexts_and_summaries(tokenizer: Any, tmp_path: Path) -> None:
    (record,) = rewritten(tokenizer)
    page = write_html(tmp_path / "page.html", [record])
    command = ["node", str(Path(__file__).with_name("viewer_dom.js")), str(page)]
    drawn = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    n, summaries = len(record["rows"]), sum(step["kind"] == "summary" for step in record["steps"])
    assert re.findall(r'h3\.context "(.*)"', drawn) == [f"context {i + 1} of {n}" for i in range(n)]
    assert re.findall(r'h3 "(turn \d+)"', drawn) == [f"turn {k + 1}" for k in range(9)]
    assert drawn.count("section.turn.summary") == summaries
    assert f'dd "9 turns, {summaries} summar' in drawn and f'dd "{n}, the longest of ' in drawn
    assert drawn.count('summary "the prompt of this context (') == n - 1
    # Every sampled token once, wherever it is quoted.
    sampled = sum(
        stop - start for row in record["rows"] for start, stop, source, _ in row["spans"] if source == "agent"
    )
    assert drawn.count("span.token.agent") == sampled


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium on this machine")
def test_a_browser_draws_the_page_and_runs_nothing_else(tokenizer: Any, tmp_path: Path) -> None:
    def act(episode: Any) -> str:
        return episode.env.unwrapped.expert_action() if episode.steps else HOSTILE + "<tool_call>{</tool_call>"

    page = write_html(tmp_path / "page.html", records(tokenizer, play(tokenizer, 2, act)), "Shown")
    switches = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = ["chromium", *switches.split(), profile, "--virtual-time-budget=2000", "--dump-dom", page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    assert "<title>Shown</title>" in dom
    assert "onerror" in dom and "<img" not in dom
    assert re.search(r'class="token agent" style="background-color: color-mix', dom)
    assert "2 episodes: " in dom and "malformed call" in dom


def test_the_curve_is_drawn_with_and_without_its_extras(tmp_path: Path) -> None:
    points = [CurvePoint(step, 0.3 + step / 200, 0.25 + step / 200, 0.35 + step / 200) for step in (0, 40, 20)]
    below = {"reward": [(s, s / 40) for s in range(40)], "calls": [(1, 0.5), (0, 2.0)], "never measured": []}
    full = plot_curve(points, tmp_path / "new" / "a.png", baseline=points[0], below=below, title="t")
    alone = plot_curve(points[:1], tmp_path / "b.png")
    for path in (full, alone):
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5_000
    with pytest.raises(ConfigError, match="no evaluation to draw"):
        plot_curve([], tmp_path / "c.png")
