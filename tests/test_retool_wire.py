"""ReTool episodes as bytes and as tokens, with real programs; and what becomes of them when the sandbox dies."""

from __future__ import annotations

import itertools
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from process_tools import alive
from rollout_tools import EOS, scripted

from agent_gym.rollout import Episode, EpisodeSpec, Runner
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


def run(tokenizer: Any, specs: list[EpisodeSpec], act: Any) -> list[Episode]:
    runner = Runner(scripted(tokenizer, act), tokenizer, workers=len(specs))
    try:
        return runner.run(specs)
    finally:
        runner.close()


def run_wire(tokenizer: Any, **kwargs: Any) -> Episode:
    turns = [*(action for action, _ in WIRE), LAST]
    kwargs = {"output_style": "retool", "max_turns": len(turns), **kwargs}
    (episode,) = run(tokenizer, [EpisodeSpec(IDS[0], kwargs, index=0)], lambda episode: turns[len(episode.steps)])
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
    deadline = time.monotonic() + 20
    while any(map(alive, programs)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def write(episode: Any, text: str) -> str:
    """Write a program in the form that the environment shows, or an answer."""
    parser = episode.env.unwrapped.parser
    return text if "boxed" in text else str(parser.render("code_interpreter", {"code": text}))


def test_a_sandbox_that_dies_between_two_turns_is_no_answer(tokenizer: Any) -> None:
    """Programs that start anew run again; names that are lost through our fault end the episode, unpaid."""
    hit, spared = (LocalSandbox(Limits(), servers=1) for _ in range(2))
    code = ["x = 6 * 7\nprint(x)", "x = 6 * 7\nprint(x + 1)"]

    def act(episode: Any) -> str:
        turn, env = len(episode.steps), episode.env.unwrapped
        if turn == 1 and env._interpreter._sandbox is hit:
            for server in list(hit._pool):
                kill_server(server.pid)
        if turn == 2:
            return env.expert_action("direct")
        return write(episode, code[turn])

    try:
        for env_id in IDS:
            specs = [
                EpisodeSpec(env_id, {"sandbox": sandbox, "reward": "verl"}, index=0, member=i)
                for i, sandbox in enumerate((hit, spared))
            ]
            lost, kept = run(tokenizer, specs, act)
            assert kept.failure is None and kept.reward == 1.0 and "43" in kept.steps[1].observation
            if env_id == IDS[0]:
                assert lost.failure is None and lost.reward == 1.0
                assert [step.observation for step in lost.steps] == [step.observation for step in kept.steps]
            else:
                assert lost.failure is not None and str(lost.failure).startswith("Lost: ")
                assert math.isnan(lost.reward), "not the -1 of a failed answer, and not 0"
                assert len(lost.steps) == 1, "the turn without an answer is no step to learn from"
            # What comes next has a new fork server.
            (again, _) = run(tokenizer, specs, lambda episode: write(episode, WRONG[len(episode.steps)]))
            assert again.failure is None and again.reward < 0
    finally:
        hit.close()
        spared.close()
