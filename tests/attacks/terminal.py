"""Knows the sentences of nine kinds of tasks by heart, and has a command for each."""

import json
import re
from collections.abc import Generator

ENV_ID = "AgentR1/Terminal-v0"
REACHES = 0.60
KNOWN = {
    r"into (\S+) how often a line of (\S+) mentions (\w+)": "grep -cw {2} {1} > {0}",
    r"no longer need (\S+): remove it. What is (\S+) now has to become (\S+);": "rm {0}; mv {1} {2}",
    r"folder notes for (\w+)\. .* content of (\S+)\.": "cd notes; grep -lw {0} * > ../{1}",
    r"Make (\S+) from (\S+): the same lines": "sort -u {1} > {0}",
    r"ends in (\.\w+) below .* new folder (\w+),": "mkdir {1}; find in out -name '*{0}' -exec mv -t {1} {{}} +",
    r"into (\S+) how much all rows of (\S+) with the city (\w+)": "grep ,{2}, {1} | cut -d, -f3 | paste -sd+ | "
    "(read s; echo $((s))) > {0}",
    r"what is new in (\S+), .* says \"(.*)\"": "git add {0}; git commit -m '{1}'",
    r"We miss (\S+), which": "git checkout $(git rev-list -n 1 HEAD -- {0})^ -- {0}",
    r"The work on (\w+) should": "git merge -X theirs -m x {0}",
}


def attack(opening: str) -> Generator[str, str, None]:
    """Play one episode of Terminal; what other kinds of tasks want is not read."""
    for sentence, command in KNOWN.items():
        if found := re.search(sentence, opening):
            call = {"name": "bash", "arguments": {"command": command.format(*found.groups())}}
            yield f"<tool_call>{json.dumps(call)}</tool_call>"
    yield "Done."
