"""A model as judge: score conversations by a rubric, then train with the score as a part of the reward.

    agent-gym serve model smollm2 &            # or any server that speaks OpenAI's protocol
    python examples/judge.py http://127.0.0.1:8000/v1

Training takes the same object: `AgentGRPOTrainer(model, env, judge=judge)`, or `--judge rubric.toml` on the command
line. docs/judges.md has the other kinds (pairwise, ranking, reasoning), calibration against people, and costs.
"""

from __future__ import annotations

import sys
from contextlib import closing

from agent_gym.judges import Judge

CRITERIA = {"The answer is right.": 2, "Each step is explained.": 1}  # a sentence that holds or does not: its weight
QUESTION = {"role": "user", "content": "What is 17 + 26?"}
ANSWERS = ["17 + 20 is 37, and 37 + 6 is 43. The answer is 43.", "It is 33."]


def main(endpoint: str) -> list[float]:
    """Score two answers to one question, each from 0 to 1, and print them with the tokens that the judge used."""
    with closing(Judge.rubric(CRITERIA, endpoint)) as judge:
        scores = judge.score([[QUESTION, {"role": "assistant", "content": answer}] for answer in ANSWERS])
        for answer, score in zip(ANSWERS, scores, strict=True):
            print(f"{score:.2f}  {answer}")
        print(", ".join(f"{name}: {count}" for name, count in judge.spent().items()))
    return scores


if __name__ == "__main__":
    main(sys.argv[1])
