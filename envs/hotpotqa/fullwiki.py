"""HotpotQA over all of Wikipedia."""

from __future__ import annotations

from typing import Any

from agent_gym.envs.hotpotqa.env import HotpotQAEnv
from agent_gym.errors import ConfigError
from agent_gym.retrieval import Retriever


class HotpotQAFullWikiEnv(HotpotQAEnv):
    """HotpotQA's full-wiki setting: the same questions, searched for in 5.23 million paragraphs.

    ## Description
    As `HotpotQAEnv`, whose observations, actions and rewards it has. What is searched is not made of the questions'
    own paragraphs, which always hold the gold ones, but is the introduction of every article.

    ## Arguments
    - `corpus`: the paragraphs, for example a folder made from BeIR/hotpotqa by `agent_gym.retrieval.Corpus.build`; or
    - `retriever`: the address of a server, or an engine. With `corpus`, also the folder of an index of it.
    - `data`: "hotpotqa/hotpot_qa" (default), or the official JSON.
    - everything else `HotpotQAEnv` takes.

    ## Ids
    `AgentR1/HotpotQA-FullWiki-v0`. It cannot be made without `corpus` or `retriever`.

    ## References
    Yang et al., HotpotQA, arXiv:1809.09600, section 5.1. Thakur et al., BEIR, arXiv:2104.08663.

    ## Versions
    v0: first version.
    """

    def __init__(
        self,
        data: str = "hotpotqa/hotpot_qa",
        *,
        corpus: str | None = None,
        retriever: str | Retriever = "bm25",
        **kwargs: Any,
    ) -> None:
        """Ask for a corpus before anything is loaded."""
        if corpus is None and retriever == "bm25":
            raise ConfigError(
                "the full-wiki setting needs something to search: corpus= (a corpus folder or BEIR's corpus.jsonl), "
                "retriever= (the address of a server, or an engine), or both (the folder of an index and its corpus)"
            )
        super().__init__(data, corpus=corpus, retriever=retriever, **kwargs)
