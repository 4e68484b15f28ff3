"""The two texts of a game file that all games share: the PDDL domain, and the grammar of what is said.

The native engine does not read them (world.py is what they say, in Python); they make a generated game a complete file,
which the original engine plays too. Actions, predicates and sentences are those of ALFWorld (Shridhar et al., MIT
licence, see NOTICE), written down anew without what no game reaches, such as putting things into other things.
"""

from __future__ import annotations

import json
import re

from agent_gym.envs.alfworld.sentences import HELP, LOOKS, WELCOME

GRAMMARS = ("current", "legacy")

_PREDICATES = """
atLocation ?a - agent ?l - location
receptacleAtLocation ?r - receptacle ?l - location
objectAtLocation ?o - object ?l - location
openable ?r - receptacle
opened ?r - receptacle
inReceptacle ?o - object ?r - receptacle
isReceptacleObject ?o - object
inReceptacleObject ?inner - object ?outer - object
checked ?x
receptacleType ?r - receptacle ?t - rtype
canContain ?rt - rtype ?ot - otype
objectType ?o - object ?t - otype
holds ?a - agent ?o - object
holdsAny ?a - agent
isClean ?o - object
cleanable ?o - object
isHot ?o - object
heatable ?o - object
isCool ?o - object
coolable ?o - object
pickupable ?o - object
toggleable ?o - object
isToggled ?o - object
sliceable ?o - object
isSliced ?o - object
"""

_HERE = "(atLocation ?a ?l) (receptacleAtLocation ?r ?l)"
_ACCESS = "(or (not (openable ?r)) (opened ?r))"
_AT = "?a - agent ?l - location ?r - receptacle"

# Name, parameters, preconditions, effects. An action without an effect would be dropped, so that those which only say
# something mark what they looked at as checked.
_ACTIONS = (
    ("look", "?a - agent ?l - location", "(atLocation ?a ?l)", "(checked ?l)"),
    ("inventory", "?a - agent", "", "(checked ?a)"),
    (
        "examineReceptacle",
        "?a - agent ?r - receptacle",
        "(exists (?l - location) (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l)))",
        "(checked ?r)",
    ),
    ("examineObject", "?a - agent ?o - object", "(holds ?a ?o)", "(checked ?o)"),
    (
        "GotoLocation",
        "?a - agent ?lStart - location ?lEnd - location ?r - receptacle",
        "(atLocation ?a ?lStart) (receptacleAtLocation ?r ?lEnd)",
        "(not (atLocation ?a ?lStart)) (atLocation ?a ?lEnd)",
    ),
    ("OpenObject", _AT, f"(openable ?r) {_HERE} (not (opened ?r))", "(opened ?r) (checked ?r)"),
    ("CloseObject", _AT, f"(openable ?r) {_HERE} (opened ?r)", "(not (opened ?r))"),
    (
        "PickupObject",
        "?a - agent ?l - location ?o - object ?r - receptacle",
        f"(pickupable ?o) {_HERE} (inReceptacle ?o ?r) (not (holdsAny ?a)) {_ACCESS}",
        "(not (inReceptacle ?o ?r)) (holds ?a ?o) (holdsAny ?a) (not (objectAtLocation ?o ?l))",
    ),
    (
        "PutObject",
        "?a - agent ?l - location ?o - object ?r - receptacle ?ot - otype ?rt - rtype",
        f"(holds ?a ?o) {_HERE} {_ACCESS} (objectType ?o ?ot) (receptacleType ?r ?rt) (canContain ?rt ?ot)",
        "(inReceptacle ?o ?r) (objectAtLocation ?o ?l) (not (holds ?a ?o)) (not (holdsAny ?a))",
    ),
    (
        "CleanObject",
        f"{_AT} ?o - object",
        f"(cleanable ?o) (receptacleType ?r SinkBasinType) {_HERE} (holds ?a ?o)",
        "(isClean ?o)",
    ),
    (
        "HeatObject",
        f"{_AT} ?o - object",
        f"(heatable ?o) (receptacleType ?r MicrowaveType) {_HERE} (holds ?a ?o)",
        "(isHot ?o) (not (isCool ?o))",
    ),
    (
        "CoolObject",
        f"{_AT} ?o - object",
        f"(coolable ?o) (receptacleType ?r FridgeType) {_HERE} (holds ?a ?o)",
        "(isCool ?o) (not (isHot ?o))",
    ),
    (
        "ToggleObject",
        "?a - agent ?l - location ?o - object ?r - receptacle",
        f"(toggleable ?o) {_HERE} (inReceptacle ?o ?r)",
        "(isToggled ?o)",
    ),
    (
        "SliceObject",
        "?a - agent ?l - location ?co - object ?ko - object",
        "(sliceable ?co) (or (objectType ?ko KnifeType) (objectType ?ko ButterKnifeType)) "
        "(atLocation ?a ?l) (objectAtLocation ?co ?l) (holds ?a ?ko)",
        "(isSliced ?co)",
    ),
)
_HELP_ACTION = ("help", "?a - agent", "", "(checked ?a)")

_THINGS = "[{o.indefinite + ' ' + o.name | inreceptacle(o:object, r:receptacle)}]"
_PLACES = "receptacleatlocation(r:receptacle, l:location)"
_BESIDE = (
    f"atlocation(a:agent, l:location) & objectatlocation(o:object, l:location) & {_PLACES} & "
    "not_inreceptacle(o:object, r:receptacle)"
)
_Rules = dict[str, list[tuple[str, str]]]

# Name of a rule to its cases: a condition, "" for the last, and what is said. Of the cases the first that fits counts.
_RULES: _Rules = {
    "intro": [("", f"{WELCOME}\n\n#look.feedback#\n\n#task#")],
    "OpenObject.feedback": [("", "You open the {r.name}. #examineReceptacle.feedback#")],
    "CloseObject.feedback": [("", "You close the {r.name}.")],
    "PickupObject.feedback": [("", "You pick up the {o.name} from the {r.name}.")],
    "ToggleObject.feedback": [("", "You turn on the {o.name}.")],
    "HeatObject.feedback": [("", "You heat the {o.name} using the {r.name}.")],
    "CleanObject.feedback": [("", "You clean the {o.name} using the {r.name}.")],
    "CoolObject.feedback": [("", "You cool the {o.name} using the {r.name}.")],
    "SliceObject.feedback": [("", "You sliced the {co.name} with the {ko.name}.")],
    "inventory.feedback": [
        ("holdsany(a:agent)", "You are carrying: [{o.indefinite + ' ' + o.name | holds(a:agent, o:object)}]."),
        ("", "You are not carrying anything."),
    ],
    "examineReceptacle.feedback": [
        ("openable(r:receptacle) & opened(r:receptacle)", f"The {{r.name}} is open. In it, you see {_THINGS}."),
        ("openable(r:receptacle)", "The {r.name} is closed."),
        ("", f"On the {{r.name}}, you see {_THINGS}."),
    ],
    "examineObject.feedback": [
        (
            "isreceptacleobject(o:object)",
            "This is a normal {o.name}. In it, you see "
            "[{o2.indefinite + ' ' + o2.name | inreceptacleobject(o2:object, o:object)}].",
        ),
        *(
            (" & ".join(f"is{state}(o:object)" for state in states), f"This is a {words} {{o.name}}.")
            for states, words in LOOKS
        ),
        ("toggleable(o:object) & istoggled(o:object)", "This {o.name} is on."),
        ("sliceable(o:object) & issliced(o:object)", "This is a sliced {o.name}."),
        ("", "There's nothing special about {o.name}."),
    ],
    "look.feedback": [
        (
            f"atlocation(a:agent, l:location) & {_PLACES}",
            f"You are facing the [{{r.name | atlocation(a:agent, l:location) & {_PLACES}}}]. "
            "Next to it, you see #beside#.",
        ),
        ("", "You are in the middle of a room. Looking quickly around you, you see #places#."),
    ],
    "beside": [(_BESIDE, f"[{{o.indefinite + ' ' + o.name | {_BESIDE}}}]"), ("", "nothing")],
    "places": [(_PLACES, f"[{{r.indefinite + ' ' + r.name | {_PLACES}}}]"), ("", "nothing")],
    "list_empty": [("", "nothing")],
    "list_separator": [("", ", ")],
    "list_last_separator": [("", ", and ")],
}
_DIALECTS: dict[str, _Rules] = {
    "legacy": {
        "GotoLocation.feedback": [("", "You arrive at {lend.name}. #examineReceptacle.feedback#")],
        "PutObject.feedback": [("", "You put the {o.name} in/on the {r.name}.")],
    },
    "current": {
        "GotoLocation.feedback": [("", "You arrive at {r.name}. #examineReceptacle.feedback#")],
        "PutObject.feedback": [("", "You move the {o.name} to the {r.name}.")],
        "help.feedback": [("", HELP)],
    },
}
_TEMPLATES = {
    "GotoLocation": "go to [{r.name | receptacleatlocation(r:receptacle, lend:location)}]",
    "OpenObject": "open {r}",
    "CloseObject": "close {r}",
    "PickupObject": "take {o} from {r}",
    "inventory": "inventory",
    "examineReceptacle": "examine {r}",
    "examineObject": "examine {o}",
    "ToggleObject": "use {o}",
    "HeatObject": "heat {o} with {r}",
    "CleanObject": "clean {o} with {r}",
    "CoolObject": "cool {o} with {r}",
    "SliceObject": "slice {co} with {ko}",
    "look": "look",
}
_DIALECT_TEMPLATES = {
    "legacy": {"PutObject": "put {o} in/on {r}"},
    "current": {"PutObject": "move {o} to {r}", "help": "help"},
}


def domain(grammar: str) -> str:
    """Return the PDDL domain; only the current one has the action `help`."""
    lines = ["(define (domain alfred)", " (:requirements :adl :typing)"]
    lines += [" (:types agent location receptacle object rtype otype)", " (:predicates"]
    lines += [f"    ({predicate})" for predicate in _PREDICATES.strip().splitlines()]
    lines.append(" )")
    for name, parameters, needs, effects in (*_ACTIONS, *((_HELP_ACTION,) if grammar == "current" else ())):
        needs = f"(and {needs})" if needs else "()"
        lines += [f" (:action {name}", f"    :parameters ({parameters})"]
        lines += [f"    :precondition {needs}", f"    :effect (and {effects})", " )"]
    return "\n".join([*lines, ")", ""])


def grammar_text(grammar: str, task: str) -> str:
    """Return the grammar that states a task."""
    rules = {**_RULES, "task": [("", f"Your task is to: {task}")], **_DIALECTS[grammar]}
    cases = {
        name: [{"condition": condition, "rhs": words} if condition else {"rhs": words} for condition, words in found]
        for name, found in rules.items()
    }
    blocks = [f'grammar :: """\n{json.dumps(cases, indent=1)}\n""";']
    for action, template in {**_TEMPLATES, **_DIALECT_TEMPLATES[grammar]}.items():
        blocks.append(f'action {action} {{\n    template :: "{template}";\n    feedback :: "#{action}.feedback#";\n}}')
    return "\n\n".join([*blocks, ""])


def task_of(grammar: str) -> str:
    """Read the task from a grammar.

    Raises:
        ValueError: if it states none.
    """
    found = re.search(r"Your task is to: (.*?)\"", grammar)
    if found is None:
        raise ValueError("the grammar states no task")
    return found[1]
