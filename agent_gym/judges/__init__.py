"""Judges: models that score episodes where no checker can, and their calibration against known labels.

judge = Judge.rubric({"The answer is right.": 2, "Each step is explained.": 1}, "http://127.0.0.1:8000/v1")
trainer = AgentGRPOTrainer(model, "AgentR1/GSM8K-v0", judge=judge)
"""

from agent_gym.judges.judge import Judge, Judgement
from agent_gym.judges.kinds import Pairwise, Ranking, Reasoning, Rubric
from agent_gym.judges.questions import Case
from agent_gym.judges.sources import JudgeFailure

__all__ = ["Case", "Judge", "JudgeFailure", "Judgement", "Pairwise", "Ranking", "Reasoning", "Rubric"]
