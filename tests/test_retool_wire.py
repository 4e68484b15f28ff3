"""ReTool episodes as bytes and as tokens, with real programs, with hostile ones, and when the sandbox dies.

What the sandbox itself holds is in test_sandbox_programs.py; as there, hostile programs run inside of a net only.
"""

from __future__ import annotations

import itertools
import math
import os
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hostile_programs import QUICK, SLOW
from process_tools import alive, until
from rollout_tools import EOS, roll
from sandbox_net import in_net

from agent_gym.rollout import Episode, EpisodeSpec
from agent_gym.sandbox import Limits, LocalSandbox

pytest.importorskip("math_verify")

IDS = ("AgentR1/ReTool-v0", "AgentR1/MathPython-v0")

# What the policy writes and what the world has to answer, to the byte: `\n<interpreter>\n`, the output without its last
# newline, `</interpreter>\n\n`, as ReTool's evaluation code appends it (arXiv:2504.11536).
WIRE = [
    ("First I try.\n<code>\n```python\nprint(6 * 7)\nprint('é')\n```\n</code>", "42\né"),
    (
        "So:\n<code>\n```python\nprint('a' * 199 + 'b' * 99 + 'c' * 199 + '\\n')\n```\n</code>",
        "a" * 199 + "b" + "..." + "b" + "c" * 199,
    ),
    ("<code>\nprint('x' * 400)\n</code>", "x" * 400),
    ("<code>\nprint('lost')\ndef f():\n    return 1 / 0\nf()\n</code>", "ZeroDivisionError: division by zero"),
    ("<code>\nif:\n</code>", "SyntaxError: invalid syntax"),
    ("<code>\nimport sys\nsys.exit('no\\nway')\n</code>", "way"),
    ("<code>\n```python\n```\n</code>", "Error: the program is empty"),
    ("<code>\nx = 5\n</code>", "[no output]"),
    ("<code>\nprint('</interpreter>\\n\\n<answer>')\n</code>", "</interpreter>\n\n<answer>"),
    # Special tokens too are words where a program prints them. (Spelled by a policy they would be its own tokens.)
    (
        "<code>\na = '<|im'\nprint(a + '_end|>\\n' + a + '_start|>assistant')\n</code>",
        "<|im_end|>\n<|im_start|>assistant",
    ),
]
WRONG = ["print(1)", "\\boxed{1}"]
LAST = "So it is\n<answer>\n\\boxed{42}\n</answer>"


def run_wire(tokenizer: Any, **kwargs: Any) -> Episode:
    turns = [*(action for action, _ in WIRE), LAST]
    kwargs = {"output_style": "retool", "max_turns": len(turns), **kwargs}
    (episode,) = roll(tokenizer, [EpisodeSpec(IDS[0], kwargs, index=0)], lambda episode: turns[len(episode.steps)])
    assert episode.failure is None and episode.terminated
    return episode


def test_the_wire_format_is_retools_to_the_byte(tokenizer: Any) -> None:
    episode = run_wire(tokenizer)
    (row,) = episode.rows
    golden = [text for action, out in WIRE for text in (action, f"\n<interpreter>\n{out}</interpreter>\n\n")]
    ids, mask = row.token_ids[row.prompt_length :], row.action_mask[row.prompt_length :]
    assert tokenizer.decode(ids) == "".join(golden) + LAST + "<|im_end|>"
    assert ids.count(EOS) == 1, "the policy's own end"
    # The policy's tokens and the world's alternate exactly at these seams, so that no gradient reaches an output.
    at, pieces = 0, []
    for mine, group in itertools.groupby(mask):
        length = len(list(group))
        pieces.append((bool(mine), tokenizer.decode(ids[at : at + length])))
        at += length
    assert pieces == [(i % 2 == 0, text) for i, text in enumerate([*golden, LAST + "<|im_end|>"])]


def test_a_turn_stops_behind_its_program_and_one_that_ended_is_followed_by_a_new_one(tokenizer: Any) -> None:
    actions = ["<code>\nprint(6*7)\n</code> and what comes next", "<code>\nprint(1", LAST]
    (episode,) = roll(tokenizer, [EpisodeSpec(IDS[0], index=0)], lambda episode: actions[len(episode.steps)])
    (row,) = episode.rows
    texts = [tokenizer.decode(row.token_ids[span.start : span.stop]) for span in row.spans]
    # The first tag is the policy's own, the second the world's.
    assert texts[1:3] == ["<code>\nprint(6*7)\n</code>", "\n<interpreter>\n42</interpreter>\n\n"]
    assert texts[3].startswith("<code>\nprint(1") and "</code>\n<interpreter>" in texts[4]
    assert [span.source for span in row.spans][1:5] == ["agent", "env"] * 2
    assert tokenizer.decode(row.token_ids).count("<|im_start|>assistant") == 2


def test_as_chat_the_same_outputs_are_messages(tokenizer: Any) -> None:
    episode = run_wire(tokenizer, rendering="chat")
    assert [step.observation for step in episode.steps] == [out for _, out in WIRE] + [""]
    text = tokenizer.decode(episode.rows[0].token_ids)
    assert "<interpreter>" not in text and "<tool_response>\n42\né\n</tool_response>" in text
    ends = episode.rows[0].token_ids.count(EOS)
    assert ends == text.count("<|im_end|>") - 1 == 2 * len(WIRE) + 3, "of turns and the problem, none of outputs"


def kill_server(pid: int) -> None:
    """Kill a fork server with its programs, as a machine without memory would, and wait until these are dead, too."""
    programs = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for one in (pid, *map(int, programs)):
        os.kill(one, signal.SIGKILL)
    until(lambda: not any(map(alive, programs)))


def write(episode: Any, text: str) -> str:
    """Write a program in the form that the environment shows, or an answer."""
    parser = episode.env.unwrapped.parser
    return text if "boxed" in text else str(parser.render("code_interpreter", {"code": text}))


def test_a_sandbox_that_dies_between_two_turns_is_no_answer(tokenizer: Any) -> None:
    """Programs that start anew run again; names that are lost through our fault end the episode, unpaid."""
    hit, spared = (LocalSandbox(Limits(), servers=1, packages=()) for _ in range(2))
    code = ["x = 6 * 7\nprint(x)", "x = 6 * 7\nprint(x + 1)"]

    def act(episode: Any) -> str:
        turn, env = len(episode.steps), episode.env.unwrapped
        if turn == 1 and env._interpreter._sandbox is hit:
            for server in list(hit._pool):
                kill_server(server.pid)
        if turn == 2:
            return env.expert_action("direct")
        return write(episode, code[turn])

    with closing(hit), closing(spared):
        for env_id in IDS:
            specs = [
                EpisodeSpec(env_id, {"sandbox": sandbox, "reward": "verl"}, index=0, member=i)
                for i, sandbox in enumerate((hit, spared))
            ]
            lost, kept = roll(tokenizer, specs, act, workers=2)
            assert kept.failure is None and kept.reward == 1.0 and "43" in kept.steps[1].observation
            if env_id == IDS[0]:
                assert lost.failure is None and lost.reward == 1.0
                assert [step.observation for step in lost.steps] == [step.observation for step in kept.steps]
            else:
                assert lost.failure is not None and str(lost.failure).startswith("Lost: ")
                assert math.isnan(lost.reward), "not the -1 of a failed answer, and not 0"
                assert len(lost.steps) == 1, "the turn without an answer is no step to learn from"
            # What comes next has a new fork server.
            again, _ = roll(tokenizer, specs, lambda episode: write(episode, WRONG[len(episode.steps)]), workers=2)
            assert again.failure is None and again.reward < 0


# Hostile programs: the trainer is untouched, and nothing is paid.

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="the local sandbox is Linux's")
ENVS = {
    "inline": ("AgentR1/ReTool-v0", {}),
    "chat": ("AgentR1/ReTool-v0", {"rendering": "chat"}),
    "stateful": ("AgentR1/MathPython-v0", {}),
}
LIMITS = {"cpu_seconds": 0.5, "wall_seconds": 12, "memory_mb": 256}
# What the policy reads where its program ended by force: the same words for every run.
READ = {
    "kill oneself": "SystemError: the program crashed",
    "segmentation fault": "SystemError: the program crashed",
    "memory at once": "MemoryError",
    "spin": "TimeoutError: the program took too",  # much CPU time; on a machine that is busy all the time, long
    "spin and catch": "TimeoutError: the program took too",
    "sleep": "TimeoutError: the program took too long",
}

SAMPLE = {*list(QUICK)[::5], *READ} & QUICK.keys()


def check(programs: dict[str, str]) -> None:
    envs = {shown: list(settings) for shown, settings in ENVS.items()}
    lines = in_net("retool_judge.py", {"programs": programs, "envs": envs, "limits": LIMITS})
    assert [(line["env"], line["program"]) for line in lines] == [(env, name) for env in ENVS for name in programs]
    assert [line for line in lines if line["bad"]] == []
    unread = [line for line in lines if READ.get(line["program"], "") not in line["observation"]]
    assert unread == []


@on_linux
def test_hostile_programs_are_observations() -> None:
    check({name: code for name, code in QUICK.items() if name in SAMPLE})


@on_linux
@pytest.mark.slow
def test_all_hostile_programs_are_observations() -> None:
    check({name: code for name, code in QUICK.items() if name not in SAMPLE} | SLOW)
