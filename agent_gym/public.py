"""`public`: the one border for secrets, through which settings and errors go into run.json, cards, records and pages.

A value whose name ends in token, key, password or secret becomes `***`, in mappings, in command lines and in the texts
of JSON and of queries. The user and the password of an address are cut. The values of this process's environment
variables with such names, and of the secrets that `hide` was given, become `***` wherever they are. Texts of episodes
are not settings and stay as they are.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

MASK = "***"
_ENDS = "token|key|apikey|password|passwd|passphrase|pwd|secret|credential|credentials|auth|authorization|bearer"
_MANY = "access_tokens|auth_tokens|(?:api|access|secret|private)_?keys|passwords|secrets|cookies"
_FORMS = "(?:_(?:value|string|text|json|pem|b64|base64))?"
_SECRET = re.compile(rf"(?:.*[_.:/ -])?(?:(?:{_ENDS}|{_MANY}|jwt|pat|cookie|userpass){_FORMS}|secret_id)")
_VOCABULARY = re.compile(r"(?:.*_)?(?:bos|eos|pad|unk|sep|cls|mask|image|video|audio|vision|eot|eom|fake|stop)_token")
"""Names of tokens of a tokenizer, which are not secrets."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_USER = re.compile(r"\b([a-zA-Z][a-zA-Z0-9+.-]{0,30}://)[^/\s?#\"'<>]*@")
_QUERY = re.compile(rf"([?&;#](?:[\w.-]{{0,60}}[_.-])?(?:{_ENDS}|sig|signature)=)[^&;#\s\"']+", re.IGNORECASE)
_PASSWORD = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]{0,30}://[^/\s?#\"'<>:@]*:([^/\s?#\"'<>]*)@")
_QUERY_VALUE = re.compile(rf"[?&;#](?:[\w.-]{{0,60}}[_.-])?(?:{_ENDS})=([^&;#\s\"']+)", re.IGNORECASE)
_PROXIES = {name for one in ("http", "https", "all", "ftp") for name in (f"{one}_proxy", f"{one.upper()}_PROXY")}
_QUOTED = re.compile(
    rf"""((["'])(?:[\w.-]{{0,60}}[_.-])?(?:{_ENDS})\2\s*:\s*)("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""", re.IGNORECASE
)
_KEYS = "(?:api|access|secret|private|auth|server|hub|service|account|master)[_-]?key"
_NAMED = rf"(?:[\w.-]{{0,60}}[_.-])?(?:{_KEYS}|token|password|passwd|passphrase|pwd|secret|credentials?|cookie)"
_GIVEN = re.compile(
    rf"""(?<![\w.-])(-{{0,2}}{_NAMED})(\s*=\s*|:\s+)("(?:[^"\\]|\\.)+"|'(?:[^'\\]|\\.)+'|[^\s,;&)"'\]]+)""",
    re.IGNORECASE,
)
"""`password=x` in a sentence, a connection string or a line of code."""
_FLAG = re.compile(rf"""(?<![\w-])(--?{_NAMED})(\s+)(?!-)([^\s"']+|"[^"]*"|'[^']*')""", re.IGNORECASE)
_HEADER = re.compile(r"\b(Authorization|(?:Set-)?Cookie)(:\s*)[^\r\n'\"]+", re.IGNORECASE)
_LOGIN = re.compile(
    r"""((?<!\S)(?:-u|--user)[ =])\S+:\S+|(?<![\w/:.@+-])([a-zA-Z][\w.+-]{0,60}:)(?!//)[^\s/:@'"]+(?=@[\w-])"""
)
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}|glpat-[\w-]{20,}|"
    r"A(?:KIA|SIA)[A-Z0-9]{16}|AIza[\w-]{35}|xox[abprs]-[\w-]{10,}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]+)"
)
"""Tokens of the hub, OpenAI, Anthropic, GitHub, GitLab, AWS, Google and Slack, and JWTs, as documented by them."""
_BEARER = re.compile(r"\b((?:Bearer|Basic) )[\w.~+/=-]{8,}", re.IGNORECASE)
_ASSIGNED = re.compile(r"(-{0,2}[\w.+:/-]{0,200}?)(\s*[=:]\s*)(\S.*)", re.DOTALL)
_LEAST = 8  # characters of an environment variable's value that is looked for: a shorter one is in many words
_MAX_DEPTH = 60
_SHELL = {"PWD", "OLDPWD"}  # the shell's working directories, whose names end like that of a password
_hidden: set[str] = set()
"""Secrets of this process's command line and settings files."""


def is_secret(name: Any) -> bool:
    """Whether a value of this name is a secret: `hub_token`, `--api-key`, `HF_TOKEN`, `apiKey`, `password`."""
    name = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
    words = _CAMEL.sub("_", str(name)).lower().strip("-+ ").replace("-", "_")
    return _SECRET.fullmatch(words) is not None and _VOCABULARY.fullmatch(words) is None


def public(value: Any) -> Any:
    """Return a copy of settings without their secrets: of mappings, lists and texts, however nested."""
    return _public(value, _known(), 0)


def public_text(text: str) -> str:
    """Return a text, such as the message of an error, without the secrets in it."""
    return _text(text, _known())


def hide(settings: Any) -> None:
    """From now on mask the secrets of these settings of the user in every text, also where no name tells of them.

    Not for what others sent: it could make a common word a secret.
    """
    found: set[str] = set()
    _collect(settings, found, 0)
    _hidden.update(text for text in found if len(text) >= _LEAST)


def _collect(value: Any, found: set[str], depth: int) -> None:
    """Find the texts that `public` masks in settings."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        for name, one in value.items():
            if is_secret(name) and isinstance(one, str):
                found.add(one)
            _collect(one, found, depth + 1)
    elif isinstance(value, list | tuple | set | frozenset):
        before = ""
        for one in value:
            if isinstance(one, str) and before.startswith("-") and "=" not in before and is_secret(before):
                found.add(one)
            before = one if isinstance(one, str) else ""
            _collect(one, found, depth + 1)
    elif isinstance(value, str):
        found.update(password for password in _PASSWORD.findall(value))
        found.update(match[1] for match in _QUERY_VALUE.finditer(value))
        if value[:1] in ("{", "["):
            with suppress(ValueError, RecursionError):
                _collect(json.loads(value), found, depth + 1)
        elif (assigned := _ASSIGNED.fullmatch(value)) and not assigned[3].startswith("//"):
            _collect({assigned[1]: assigned[3]}, found, depth + 1)


def _known() -> list[str]:
    """Return the secrets among the environment variables and of the user's settings, the longest first."""
    mine = ((name, value) for name, value in os.environ.items() if name not in _SHELL)
    found = {value for name, value in mine if len(value) >= _LEAST and is_secret(name)}
    for name in _PROXIES.intersection(os.environ):
        found.update(password for password in _PASSWORD.findall(os.environ[name]) if len(password) >= _LEAST)
    return sorted(found | _hidden, key=len, reverse=True)


def _public(value: Any, known: Sequence[str], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return MASK
    if isinstance(value, str):
        return _word(value, known, depth)
    if isinstance(value, Mapping):
        return {key: _of_name(key, item, known, depth) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return type(value)(_public(one, known, depth + 1) for one in value)
    if isinstance(value, list | tuple):
        made = _words(value, known, depth)
        return made if isinstance(value, list) else tuple(made)
    return value


def _of_name(name: Any, value: Any, known: Sequence[str], depth: int) -> Any:
    # Numbers and truth values are counts and switches: `max_token`, `use_auth_token=True`.
    if is_secret(name) and value and not isinstance(value, bool | int | float):
        return MASK
    return _public(value, known, depth + 1)


def _words(values: Sequence[Any], known: Sequence[str], depth: int) -> list[Any]:
    """Return a list whose texts may be the words of a command line: the word after `--hub_token` is its value."""
    if len(values) == 2 and all(isinstance(one, str) for one in values) and _is_header(values[0]):
        return [values[0], MASK]
    made: list[Any] = []
    hidden = False
    for value in values:
        is_flag = isinstance(value, str) and value.startswith("-") and len(value) > 1
        made.append(MASK if hidden and not is_flag else _public(value, known, depth + 1))
        hidden = is_flag and "=" not in value and is_secret(value)
    return made


def _is_header(name: str) -> bool:
    """Whether this is the name of a header with a secret, in a pair of name and value."""
    return is_secret(name) and ("-" in name.strip("-") or name.lower() in ("authorization", "cookie"))


def _word(text: str, known: Sequence[str], depth: int) -> str:
    text = _LOGIN.sub(_without_login, text)  # before it is taken apart at its colon
    if text[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            read = json.loads(text)
            made = _public(read, known, depth + 1)
            return text if made == read else json.dumps(made)
    assigned = _ASSIGNED.fullmatch(text)
    if assigned and not assigned[3].startswith("//"):
        name, sign, value = assigned.groups()
        return (
            name + sign + (MASK if is_secret(name) else _word(value, known, depth + 1) if depth < _MAX_DEPTH else MASK)
        )
    return _text(text, known)


def _text(text: str, known: Sequence[str]) -> str:
    for secret in known:
        text = text.replace(secret, MASK)
    text = _USER.sub(r"\1", text)
    text = _QUERY.sub(rf"\1{MASK}", text)
    text = _QUOTED.sub(rf'\1"{MASK}"', text)
    text = _BEARER.sub(rf"\1{MASK}", text)
    text = _HEADER.sub(rf"\1\2{MASK}", text)
    for pattern in (_GIVEN, _FLAG):
        text = pattern.sub(_masked, text)
    text = _LOGIN.sub(_without_login, text)
    return _SHAPES.sub(MASK, text)


def _without_login(found: re.Match[str]) -> str:
    return (found[1] or found[2]) + MASK


def _masked(found: re.Match[str]) -> str:
    name, sign, value = found.groups()
    # "the token: see below" tells no token.
    told = ":" not in sign or len(value) >= _LEAST and any(letter.isdigit() for letter in value)
    return (
        name + sign + MASK if is_secret(name) and (told or re.search("key|password", name, re.IGNORECASE)) else found[0]
    )
