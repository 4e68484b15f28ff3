"""HotpotQA over all of Wikipedia, and multi-hop questions of several data sets at once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_gym.data import GeneratedRows, Row, Splits
from agent_gym.envs.hotpotqa.data import EMBEDDED, RULES, distinct, load, questions
from agent_gym.envs.hotpotqa.embedded import GeneratedQuestions
from agent_gym.envs.hotpotqa.env import HotpotQAEnv
from agent_gym.errors import ConfigError
from agent_gym.row_reader import Rules
from agent_gym.row_splits import FolderSplits


class HotpotQAFullWikiEnv(HotpotQAEnv):
    """HotpotQA's full-wiki setting: the same questions, searched for in 5.23 million paragraphs.

    ## Description
    As `HotpotQAEnv`. The corpus is not the questions' own paragraphs but the introduction of every article.

    ## Arguments
    - `corpus`: the paragraphs, for example a folder made from BeIR/hotpotqa by `agent_gym.search.Corpus.build`; or
    - `retriever`: the address of a server, or an engine. With `corpus`, also the folder of an index of it.
    - `data`: "hotpotqa/hotpot_qa" (default), or the official JSON.
    - everything else `HotpotQAEnv` takes.

    ## References
    Yang et al., HotpotQA, arXiv:1809.09600, section 5.1. Thakur et al., BEIR, arXiv:2104.08663.
    """

    def __init__(self, data: str = "hotpotqa/hotpot_qa", **kwargs: Any) -> None:
        if kwargs.get("corpus") is None and kwargs.get("retriever", "bm25") == "bm25":
            raise ConfigError(
                "the full-wiki setting needs something to search: corpus= (a corpus folder or BEIR's corpus.jsonl), "
                "retriever= (the address of a server, or an engine), or both (the folder of an index and its corpus)"
            )
        super().__init__(data, **kwargs)


class MixedQuestions(GeneratedRows):
    """Sequences of rows as one, each spread over the whole length, so that any stretch of it is a fair sample."""

    def __init__(self, sources: Sequence[Sequence[Row]]) -> None:
        self._sources = sources

    @functools.cached_property
    def _order(self) -> list[tuple[int, int]]:
        """Source and index there of each row; found late, since a source may have to be drawn."""
        places = [((at + 0.5) / len(rows), n, at) for n, rows in enumerate(self._sources) for at in range(len(rows))]
        return [(n, at) for _, n, at in sorted(places)]

    def __len__(self) -> int:
        return len(self._order)

    def make(self, index: int) -> Row:
        source, at = self._order[index]
        return self._sources[source][at]


def mixture(
    data: Any, levels: Sequence[str] | None = None, difficulty: int | None = None, rules: Rules = RULES
) -> tuple[Splits, list[Sequence[Row]]]:
    """Load sources, "embedded", files, folders or names on the hub, and mix them; return the same as `questions`.

    With a difficulty it is `questions`.

    Raises:
        ConfigError: if the list is empty, a source cannot be read, or levels are given, which a mixture does not have.
    """
    if difficulty is not None:
        return questions(data, levels, difficulty, rules)
    if levels is not None:
        raise ConfigError("levels are HotpotQA's; a mixture has none, so leave them out")
    names = [data] if isinstance(data, str | Path) else list(data)
    if not names:
        raise ConfigError("data names no source; give 'embedded', files, folders or names on the hub")
    sources: dict[str, list[Sequence[Row]]] = {}
    searched: list[Sequence[Row]] = []
    folders = False
    for name in names:
        if name == EMBEDDED:
            for split, rows in questions(EMBEDDED)[0].items():
                three_hops = GeneratedQuestions(split, levels=("easy", "medium"), hops=3)
                sources.setdefault(split, []).append(MixedQuestions([rows, three_hops]))
            continue
        loaded = load(name, rules)
        folders |= isinstance(loaded, FolderSplits)
        searched += distinct(loaded)
        for split, rows in loaded.items():
            sources.setdefault(split, []).append(rows)
    mixed = {split: MixedQuestions(parts) for split, parts in sources.items()}
    return FolderSplits(mixed) if folders else mixed, searched


class MultiHopQAEnv(HotpotQAEnv):
    """HotpotQA, 2WikiMultihopQA and MuSiQue, alone or mixed.

    ## Description
    As `HotpotQAEnv`, over any mixture of three data sets, up to four hops deep. An alias of the gold answer is right.

    ## Arguments
    - `data`: "embedded" (default), a file, folder or hub name of one of the three data sets, or a list of such. Each
      split mixes the sources' rows of it, evenly over its length. The form of a row shows its data set.
    - `max_turns`: 8, since there are up to four paragraphs to find.
    - everything else `HotpotQAEnv` takes, except `levels`.

    ## Data
    "embedded" are the questions of `AgentR1/HotpotQA-v0` and as many of three hops about the same worlds (40,000 train,
    2,000 validation, 2,000 test). Agent-R1 trains on HotpotQA and 2WikiMultihopQA and validates on MuSiQue as well.

    ## References
    Yang et al., HotpotQA, arXiv:1809.09600. Ho et al., 2WikiMultihopQA, arXiv:2011.01060. Trivedi et al., MuSiQue,
    arXiv:2108.00573. The mixture follows Agent-R1 (arXiv:2511.14460).
    """

    load_tasks = staticmethod(mixture)
    turns = 8

    def __init__(self, data: str | Sequence[str] = "embedded", **kwargs: Any) -> None:
        super().__init__(data, **kwargs)  # type: ignore[arg-type]
