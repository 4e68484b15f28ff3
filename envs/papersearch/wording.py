"""How the papers of an invented field are written, and how they are asked for.

A paper that applies a method to a task cites the papers that introduced the two and its data. Its text may leave each
of them out: "an earlier method", "a known task". Then only the citation says which one is meant.
"""

from __future__ import annotations

KINDS = ("method", "task", "dataset")
"""What a field is made of. A paper introduces each of these, and questions ask for pairs of them."""

VEILED: dict[str, tuple[str, ...]] = {
    "method": ("an earlier method", "a known method"),
    "task": ("a known task", "an old task"),
    "dataset": ("public data", "the usual data"),
}

# Kind of paper -> its titles and, sentence by sentence, its abstract, each in several wordings. A paper that introduces
# something says its name three times, so that a search for the name finds it before the papers that use it.
TITLES: dict[str, tuple[str, ...]] = {
    "method": ("{method}: a method for {topic}", "Introducing {method} to {topic}"),
    "task": ("{task}: a task in {topic}", "The {task} task in {topic}"),
    "dataset": ("{dataset}: data for {topic}", "The {dataset} data for {topic}"),
    "survey": ("A survey of {task}", "{task}: a survey"),
    "analysis": ("{system}: why {method} works", "{system}: the limits of {method}"),
}
ABSTRACTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "method": (
        ("We introduce {method}.", "This paper presents {method}."),
        (" {method} needs few examples.", " {method} runs in linear time."),
    ),
    "extension": (
        ("We introduce {method}, which extends {parent}.", "This paper presents {method}, which builds on {parent}."),
        (" {method} needs few examples.", " {method} runs in linear time."),
    ),
    "task": (
        ("We pose {task}.", "This paper defines {task}."),
        (" {task} has no good solution yet.", " People solve {task} easily."),
    ),
    "dataset": (
        ("We release {dataset}.", "This paper describes {dataset}."),
        (" {dataset} holds {n} thousand examples.", " {n} people labelled {dataset}."),
    ),
    "application": (
        ("{system} applies {method} to {task}.", "In {system}, {method} is applied to {task}."),
        (" It is tested on {dataset}.", " Tests on {dataset} show that it works."),
        (" The best result so far is beaten by {n} points.", " The error falls by {n} percent."),
    ),
    "survey": (
        ("This survey covers the work on {task} until {year}.", "We review what was published on {task} by {year}."),
        (" Open problems are listed.", " We compare {n} results."),
    ),
    "analysis": (
        ("We prove a bound for {method}.", "We study {method} in theory."),
        (" No data is used.", " {n} open questions remain."),
    ),
}

# The title of an application, by whether it names its method and its task.
APPLICATION_TITLES: dict[tuple[bool, bool], tuple[str, ...]] = {
    (True, True): ("{system}: {method} for {task}", "{system}: solving {task} by {method}"),
    (True, False): ("{system}: {method} in use", "{system}: a use of {method}"),
    (False, True): ("{system}: progress on {task}", "{system}: {task} revisited"),
    (False, False): ("{system}: a case study", "{system}: better than before"),
}

# What is asked for -> questions. {when} is one of WHEN, with a space before it, or nothing.
QUESTIONS: dict[tuple[str, str], tuple[str, ...]] = {
    ("method", "task"): (
        "Which papers{when} apply {method} to {task}?",
        "Find the papers{when} in which {method} is applied to {task}.",
        "Who used {method} for {task}? List the papers{when}.",
    ),
    ("method", "dataset"): (
        "Which papers{when} apply {method} and test it on {dataset}?",
        "Find the papers{when} that test {method} on {dataset}.",
        "Where was {method} tested on {dataset}? List the papers{when}.",
    ),
    ("task", "dataset"): (
        "Which papers{when} apply a method to {task} and test it on {dataset}?",
        "Find the papers{when} that solve {task} with {dataset}.",
        "Who solved {task} and used {dataset} for it? List the papers{when}.",
    ),
}
WHEN = {"before": "from before {year}", "after": "from after {year}"}
