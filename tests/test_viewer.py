"""The page: complete, small, safe against what a model may write; and the curve."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser
from process_tools import until
from rollout_tools import expert, roll

import agent_gym
from agent_gym.cli.main import main
from agent_gym.evaluate import make_specs
from agent_gym.rollout import Budget, Episode, Failure, read_trajectories, to_record
from agent_gym.viewer import CurvePoint, render_curve, render_html, write_html
from agent_gym.viewer.curve import curve_of
from agent_gym.viewer.page import compact

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)> <!-- \u2028 — 思考"


def play(tokenizer: Any, episodes: int, act: Any = expert, kwargs: Any = None, **options: Any) -> list[Episode]:
    options = {"budget": Budget(256), "workers": 2, **options}
    return roll(tokenizer, make_specs("AgentR1/GSM8K-v0", kwargs, split="train", episodes=episodes), act, **options)


def records(tokenizer: Any, played: list[Episode], **extra: Any) -> list[dict[str, Any]]:
    """Records with made-up advantages (0.5) and values (-0.25) of every sampled token, and logprobs that differ."""
    for episode in played:
        for row in episode.rows:
            row.logprobs = [-0.001 * i if kept else 0.0 for i, kept in enumerate(row.action_mask)]
    laid = [[[0.5 * kept for kept in row.action_mask] for row in episode.rows] for episode in played]
    made = [to_record(e, tokenizer, a, **extra) for e, a in zip(played, laid, strict=True)]
    for row in (row for record in made for row in record["rows"]):
        row["values"] = [-0.5 * value for value in row["advantages"]]
    for step in (step for record in made for step in record["steps"]):
        step["versions"] = [[3, 1], [4, step["stop"] - step["start"] - 1]]  # the weights changed after the first token
    return made


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
        assert packed["advantages"] == [[0.5, len(sampled)]] and packed["values"] == [[-0.25, len(sampled)]]
        assert packed["versions"][:2] == [[3, 1], [4, original["steps"][0]["stop"] - original["steps"][0]["start"] - 1]]
        assert [step["reward"] for step in episode["steps"]] == pytest.approx([s["reward"] for s in original["steps"]])
        for name in ("action", "observation"):
            assert [data["texts"][s[name]] for s in episode["steps"]] == [s[name] for s in original["steps"]]
        assert episode["spec"]["seed"] == original["spec"]["seed"] and episode["extra"] == {"step": 7}
        shown = [[role, data["texts"][text]] for role, text in episode["opening"]]
        assert shown == [[m["role"], m["content"]] for m in original["messages"][:2]]


def test_the_page_is_small_and_needs_nothing_from_outside(tokenizer: Any) -> None:
    page = render_html(records(tokenizer, play(tokenizer, 100)), "A title & more")
    assert len(embedded(page)["episodes"]) == 100 and len(page.encode()) < 1_000_000
    assert not re.search(r"(src|href|url|import)\s*[=(]\s*[\"']?(https?:)?//", page)
    assert "default-src 'none'" in page and "<title>A title &amp; more</title>" in page
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page


def test_what_a_model_writes_stays_text(tokenizer: Any) -> None:
    played = play(tokenizer, 1, lambda episode: HOSTILE)
    page = render_html(records(tokenizer, played, note=HOSTILE + "\ud800"), HOSTILE)
    assert page.lower().count("<script") == page.lower().count("</script") == 2
    assert "<img" not in page and "<!-- " not in page
    data = embedded(page)
    assert data["title"] == HOSTILE
    assert data["episodes"][0]["extra"]["note"] == HOSTILE + "?"  # a lone surrogate fits into no file


def test_records_without_token_texts_and_failed_episodes_are_shown(tokenizer: Any) -> None:
    played = play(tokenizer, 2)
    played[1].failure = Failure("EnvFailure", "the index is gone")
    played[1].steps[0].reward = math.nan
    originals = [to_record(episode) for episode in played]
    empty = {**originals[1], "rows": [], "steps": [], "messages": [], "tools": []}  # it failed in reset
    for step in originals[0]["steps"]:  # of a file that is older than summaries
        del step["kind"], step["process_reward"]
    data = embedded(render_html([*originals, empty]))
    assert data["tokens"][0][1] is None and {step["kind"] for step in data["episodes"][0]["steps"]} == {"act"}
    assert data["texts"][data["episodes"][0]["steps"][0]["action"]].startswith("<tool_call>")
    assert data["episodes"][1]["reward"] is None and data["episodes"][1]["steps"][0]["reward"] is None
    assert embedded(render_html([]))["episodes"] == []


def rewritten(tokenizer: Any) -> dict[str, Any]:
    """An episode in several contexts, with summaries."""

    def act(episode: Any) -> str:
        return "<tool_call>{</tool_call>" if episode.asked == "act" else "nothing worked"

    kwargs = {"system_prompt": "", "max_turns": 9}
    (record,) = records(tokenizer, play(tokenizer, 1, act, kwargs, budget=Budget(40, 800), context="summarize"))
    return record


needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")


def node(*words: Any) -> str:
    return subprocess.run(["node", *map(str, words)], capture_output=True, text=True, timeout=60, check=True).stdout


DOM = Path(__file__).with_name("viewer_dom.js")  # runs the page's script without a browser and prints what it drew


@needs_node
def test_the_script_draws_contexts_and_summaries(tokenizer: Any, tmp_path: Path) -> None:
    record = rewritten(tokenizer)
    page = write_html(tmp_path / "page.html", [record])
    drawn = node(DOM, page, "t")  # with tokens shown
    n, summaries = len(record["rows"]), sum(step["kind"] == "summary" for step in record["steps"])
    assert n > 1 and summaries
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


@needs_node
def test_marks_that_mirror_text_are_shown_as_signs(tokenizer: Any, tmp_path: Path) -> None:
    """In the viewer, the chat and the shop: 42 behind U+202E would look like 24."""
    record = rewritten(tokenizer)
    record["task_id"], record["categories"] = "a\u202e42", {"kind": "b\u2066"}
    page = write_html(tmp_path / "page.html", [record])
    drawn = node(DOM, page, "t")  # with tokens shown
    assert "a\u27e8U+202E\u27e942" in drawn and not re.search("[\u202a-\u202e\u2066-\u2069]", drawn)
    package = Path(agent_gym.__file__).parent
    for script, call in (("serve/page.js", "plain('', text)"), ("envs/webshop/page.js", "plain(text)")):
        (function,) = re.findall(r"^function plain.*?^}", (package / script).read_text(encoding="utf-8"), re.M | re.S)
        shown = node("-e", f"{function}\nconst text = 'x\u202ey\u2069\u05d0';\nconsole.log({call})")
        assert shown == "x\u27e8U+202E\u27e9y\u27e8U+2069\u27e9\u05d0\n"


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, Browser(Path(folder)) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: in the first the policy errs at every second task, with hostile words, in the second it does not."""

    def errs(episode: Any) -> str:
        if episode.spec.group % 2:
            return HOSTILE + ("<tool_call>{</tool_call>" if not episode.steps else "<answer>-1</answer>")
        return expert(episode)

    first, second = records(tokenizer, play(tokenizer, 6, errs), step=1), records(tokenizer, play(tokenizer, 5), step=2)
    first[0]["steps"][0]["process_reward"] = 0.25
    return write_html(tmp_path_factory.mktemp("page") / "page.html", {"before": first, "after": second}, "Shown")


@needs_browser
def test_changes_of_files_are_shown_as_differences(browser: Browser, tokenizer: Any, tmp_path: Path) -> None:
    (record,) = records(tokenizer, play(tokenizer, 1))
    step = record["steps"][0]
    call = {**step["tool_calls"][0], "name": "editor"}
    edit = {"command": "replace", "path": "a.py", "old": "-- 1\n", "text": f"2\n{HOSTILE}\n"}
    step["tool_calls"] = [{**call, "arguments": edit}, {**call, "arguments": {"code": "x = 1\nprint(x)"}}]
    step["observation"] = "- done\n--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@\n-b\n+c\n d\n"
    browser.open(write_html(tmp_path / "changes.html", [record], "Changes"))
    assert browser.texts(".calls code:not(.diff)")[0] == 'editor(command="replace", path="a.py", old=…, text=…)'
    assert [text.strip() for text in browser.texts(".calls .removed")] == ["--- 1"]
    assert [text.strip() for text in browser.texts(".calls .added")][0] == "+2"
    assert browser.js("document.querySelector('.calls .added + .added').textContent").startswith("+" + HOSTILE[:5])
    assert browser.texts(".calls .given")[1] == "x = 1\nprint(x)"
    kinds = "[...document.querySelectorAll('.env .diff span')].map((line) => line.className)"
    assert browser.js(kinds) == ["file", "file", "hunk", "removed", "added", ""]
    assert not browser.errors


@needs_browser
def test_an_image_takes_the_place_of_its_mark(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "maze.jsonl"
    assert main(["rollout", "VisualMaze", "--expert", "--episodes", "1", "--output", str(file)]) == 0
    (record,) = read_trajectories(file)
    record["steps"][0]["observation"] += "Write <image> for one."
    browser.open(write_html(tmp_path / "maze.html", [record]))
    turns = browser.js("document.querySelectorAll('.block img.shown').length")
    assert turns >= 2 and not any("<image>" in text for text in browser.texts(".user"))
    shown = browser.texts(".block.env")
    assert shown[0].endswith("Write <image> for one.") and not any("nothing" in text for text in shown)
    assert not browser.errors


@needs_browser
def test_a_long_list_is_drawn_as_far_as_it_is_looked_at(browser: Browser, tokenizer: Any, tmp_path: Path) -> None:
    few = records(tokenizer, play(tokenizer, 4))
    many = [{**few[i % 4], "spec": {**few[i % 4]["spec"], "group": i}, "task_id": f"task {i}"} for i in range(1000)]
    browser.open(write_html(tmp_path / "many.html", many, "Many"))
    assert browser.texts("#summary")[0].startswith("1000 episodes: ")
    drawn = "document.querySelectorAll('#list li').length"
    assert browser.js(drawn) == 200
    browser.js("$('list').lastChild.scrollIntoView()")
    browser.send("Page.captureScreenshot")  # a tab that nobody sees draws no frames
    until(lambda: browser.js(drawn) >= 400)
    browser.js("go(990)")
    until(lambda: browser.js("document.querySelector('#list .current')?.entry[0].number") == 990)
    assert browser.js(drawn) == 1000
    browser.js("($('search').value = 'task 777', $('search').dispatchEvent(new Event('input')))")
    assert browser.js(drawn) == 1, "the search looks at all"


@needs_browser
def test_a_browser_compares_runs_task_by_task_and_is_steered_by_keys(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.js("document.title") == "Shown"
    assert browser.texts("#summary") == [
        "6 tasks; before: 50% solved, mean reward 0.6; after: 100% solved, mean reward 1.1"
    ]
    marks = ["".join(text.split()) for text in browser.texts("#list .marks")]
    assert marks == ["✓✓", "✗✓", "✓✓", "✗✓", "✓✓", "✗–"]
    assert browser.texts(".column h2 .badge") == ["✗ not solved", "✓ solved"], "it opens on what has been learned"
    assert "onerror" in browser.texts("#episode")[0]
    browser.js("($('filter').value = 'differ', $('filter').dispatchEvent(new Event('input')))")
    assert len(browser.texts("#list li")) == 3
    browser.press("c")
    assert browser.texts("#summary")[0].startswith("11 episodes: ") and len(browser.texts(".column")) == 1
    assert browser.js("document.querySelectorAll('img, body script:not([type])').length") == 1  # the page's own
    browser.press("?")
    assert browser.js("$('help').open")
    browser.press("Escape")
    assert not browser.js("$('help').open")
    browser.press("/", *"mia")
    assert browser.js("$('search').value") == "mia" and 0 < len(browser.texts("#list li")) < 11
    names = browser.js("[...document.querySelectorAll('button, input, select')].filter((e) => e.offsetParent)"
                       ".filter((e) => !(e.ariaLabel || e.innerText)).length")  # fmt: skip
    assert names == 0 and not browser.errors


@needs_browser
def test_a_browser_shows_rewards_of_turns_and_tokens_in_each_colour(browser: Browser, page: Path) -> None:
    browser.open(f"{page.resolve().as_uri()}#0")
    label = browser.js("document.querySelector('.timeline svg').getAttribute('aria-label')")
    assert re.fullmatch(r"rewards: (turn \d+ \S+, sum \S+; )*turn \d+ \+1\.1, sum \+1\.1", label)
    assert browser.texts(".timeline figcaption")[0].split("\n")[-1] == "process reward"
    browser.press("c")
    colour = "getComputedStyle(document.querySelector('#episode .token.agent')).backgroundColor"
    seen = set()
    for key, legend in zip("12345", ("policy", "in the loss", "p = 0", "+0.5", "+0.25"), strict=True):
        browser.press(key)
        assert legend in browser.texts("#legend")[0]
        seen.add(browser.js(colour))
    assert len(seen) == 5
    browser.click("#episode .token.agent")
    tip = browser.texts("#tip")[0]
    assert "advantage\n+0.5" in tip and "value\n\u22120.25" in tip and "in the loss\nyes" in tip
    position = browser.js("Number(document.querySelector('.token.selected').token.position)")
    assert tip.endswith("weights\nafter step 3")
    browser.press("ArrowRight")
    assert browser.texts("#tip")[0].endswith("weights\nafter step 4")
    assert browser.js("Number(document.querySelector('.token.selected').token.position)") == position + 1
    browser.press("Escape")
    assert browser.js("$('tip').hidden")
    browser.press("t")
    assert browser.texts(".part .tag")[0] == "answer" and not browser.texts(".token")
    assert browser.texts(".calls code")[0].startswith("calculator(expression="), "a call is shown once"
    assert not browser.errors


@needs_browser
def test_a_narrow_screen_shows_the_list_or_an_episode(browser: Browser, page: Path) -> None:
    browser.open(page, width=390, height=844, dark=True)
    assert browser.js("[$('list').offsetParent !== null, $('episode').offsetParent !== null]") == [True, False]
    browser.click("#list li:nth-child(2) button")
    assert browser.js("[$('list').offsetParent !== null, $('episode').offsetParent !== null]") == [False, True]
    assert browser.js("document.documentElement.scrollWidth") == 390
    browser.press("Escape")
    assert browser.js("$('list').offsetParent !== null")
    assert browser.js("getComputedStyle(document.body).backgroundColor") == "rgb(22, 25, 29)" and not browser.errors


def test_the_curve_is_drawn_with_and_without_its_extras() -> None:
    points = [CurvePoint(step, 0.3 + step / 200, 0.25 + step / 200, 0.35 + step / 200) for step in (0, 40, 20)]
    below = {"reward": [(s, s / 40) for s in range(40)], "never measured": []}
    full = render_curve(points, baseline=points[0], below=below, title="t")
    assert full.count("<svg") == 2 and "50.0% [45.0%, 55.0%] at step 40" in full and "start line" in full
    alone = render_curve(points[:1])
    assert alone.count("<svg") == 1 and "nan" not in alone and "start line" not in alone


def test_each_of_several_evaluation_sets_has_its_curve() -> None:
    names = {"eval_easy_success": 0.75, "eval_easy_success_low": 0.5, "eval_hard_success": 0.25, "eval_a/success": 0.5}
    points, below = curve_of([{"step": 0, **names}, {"step": 1, "reward": 0.5}, {"step": 2, **names}])
    easy, hard = (f"success on held-out tasks, {tasks}" for tasks in ("easy", "hard"))
    assert not points and below.pop("training reward") == [(1, 0.5)]
    assert below == {easy: [(0, 0.75), (2, 0.75)], hard: [(0, 0.25), (2, 0.25)]}
