"""Multi-hop questions of several data sets at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_gym.data import Row, Splits
from agent_gym.envs.hotpotqa.env import HotpotQAEnv
from agent_gym.envs.hotpotqa.mixture import mixture
from agent_gym.errors import ConfigError


class MultiHopQAEnv(HotpotQAEnv):
    """HotpotQA, 2WikiMultihopQA and MuSiQue, alone or mixed.

    ## Description
    As `HotpotQAEnv`, whose observations, actions and rewards it has, but over any mixture of three data sets, up to
    four hops deep. An alias of the gold answer counts as right.

    ## Arguments
    - `data`: "embedded" (default), a file, folder or hub name of one of the three data sets, or a list of such. Each
      split mixes what the sources have of it, evenly over its length. The form of a row says which data set it is of.
    - `max_turns`: 8, since there are up to four paragraphs to find.
    - everything else `HotpotQAEnv` takes, except `levels`.

    ## Ids
    `AgentR1/MultiHopQA-v0`.

    ## Data
    "embedded" are the questions of `AgentR1/HotpotQA-v0` and as many of three hops about the same worlds (40,000 train,
    2,000 validation, 2,000 test). Agent-R1 trains on HotpotQA and 2WikiMultihopQA and validates on MuSiQue as well.

    ## References
    Yang et al., HotpotQA, arXiv:1809.09600. Ho et al., 2WikiMultihopQA, arXiv:2011.01060. Trivedi et al., MuSiQue,
    arXiv:2108.00573. The mixture follows Agent-R1 (arXiv:2511.14460).

    ## Versions
    v0: first version.
    """

    def __init__(self, data: str | Sequence[str] = "embedded", *, max_turns: int = 8, **kwargs: Any) -> None:
        """Load and mix; see `HotpotQAEnv` for the rest."""
        super().__init__(data, max_turns=max_turns, **kwargs)  # type: ignore[arg-type]

    @staticmethod
    def load_tasks(data: str | Sequence[str], levels: Sequence[str] | None) -> tuple[Splits, list[Sequence[Row]]]:
        """Return the mixed splits, and the rows whose paragraphs are searched together."""
        if levels is not None:
            raise ConfigError("levels are HotpotQA's; a mixture has none, so leave them out")
        return mixture(data)
