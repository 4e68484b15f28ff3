"""The system prompts of HotpotQA's settings: with a search engine, by ReAct, with passages, with nothing."""

from __future__ import annotations

SEARCH = (
    "Answer the question by searching. One search is rarely enough: search for what the question names, then for what "
    "you find. When you know the answer, write it as briefly as possible in <answer></answer>."
)
RETRIEVED = "The passages before the question are what a search for it found."
READ = (
    "Answer the question with the help of the passages before it, which a search for the question found. Think about "
    "it, then write the answer as briefly as possible in <answer></answer>."
)
DIRECT = "Answer the question. Think about it, then write the answer as briefly as possible in <answer></answer>."

# One example, since instructions alone leave open how a thought should help. Its places do not exist, so that it
# answers nobody's question.
REACT = """\
Answer the question by searching, one step after the other. One search is rarely enough: search for what the question \
names, then for what you find. Make the answer as brief as possible. An example, for the question "In which country \
does the river that flows through Oltebra rise?":
Thought: The question names the town Oltebra, so I look for its river first.
Action: Search[Oltebra]
Observation: [1] Oltebra: Oltebra is a town on the river Vurnik.
Thought: The river is the Vurnik. Now I have to find out where it rises.
Action: Search[Vurnik]
Observation: [1] Vurnik: The Vurnik is a river that rises in Belmarosh and flows into the sea.
Thought: It rises in Belmarosh, which is the answer.
Action: Finish[Belmarosh]"""


def choose_prompt(*, searches: bool, retrieves: bool, react: bool) -> str:
    """Return the prompt of a setting.

    Args:
        searches: whether there are tools.
        retrieves: whether passages stand before the question.
        react: whether the policy thinks and acts in ReAct's format.
    """
    if not searches:
        return READ if retrieves else DIRECT
    prompt = REACT if react else SEARCH
    return f"{prompt}\n\n{RETRIEVED}" if retrieves else prompt
