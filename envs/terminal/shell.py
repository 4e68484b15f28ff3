"""Shell scripts as text: their commands, each with its words and its place in the script.

It is not a shell: nothing is expanded or run. It knows quotes, comments, continued lines, heredocs, redirections,
substitutions, and the words that open a loop or a condition, which is enough to say which programs a script calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_OPENING = frozenset({"if", "then", "else", "elif", "do", "while", "until", "!", "{", "time", "("})
_WORDLESS = frozenset({"fi", "done", "esac", "}", ";;", "in", "case", "for", "select", "function"})
_OPERATORS = ("&&", "||", ";;", "|&", ";", "&", "|", "(", ")")
_REDIRECTION = re.compile(r"\d*(&>>|&>|<<<|<<-|<<|<>|>\||>>|>&|<&|<|>)")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^]]*\])?\+?=")
BUILTINS = frozenset(
    ". : [ [[ alias bg break builtin caller cd command compgen complete continue declare dirs disown echo enable eval "
    "exec exit export false fg getopts hash help history jobs kill let local logout mapfile popd printf pushd pwd read "
    "readarray readonly return set shift shopt source suspend test times trap true type typeset ulimit umask unalias "
    "unset wait".split()
)
"""The builtins of bash, which need no program."""


class Unreadable(ValueError):
    """Text that is not a shell script; the message gives the place."""


@dataclass
class Word:
    """A word, without its quotes."""

    text: str
    begin: int
    end: int
    fixed: bool = True  # whether nothing in it is to be expanded


@dataclass
class Command:
    """A simple command: a program with its words, or a construct in its place."""

    words: list[Word] = field(default_factory=list)
    assignments: list[Word] = field(default_factory=list)
    targets: list[Word] = field(default_factory=list)  # files that its output goes to
    begin: int = 0
    end: int = 0
    after: str = ""  # the operator that ends it

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.words]

    @property
    def program(self) -> str:
        return self.words[0].text if self.words else ""


def commands(script: str) -> list[Command]:
    """Return all commands of a script, in the order of their text, also of substitutions."""
    return _ShellReader(script).read()


def functions(script: str) -> set[str]:
    """Return the names of the functions that a script defines."""
    with_brackets = re.findall(r"(?m)(?:^|[;&|{\s])([\w-]+)[ \t]*\(\s*\)\s*[{(]", script)
    return {*with_brackets, *re.findall(r"(?m)(?:^|[;&|{\s])function\s+([\w-]+)", script)}


class _ShellReader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.found: list[Command] = []
        self.inner: list[Command] = []
        self.heredocs: list[tuple[str, bool]] = []

    def read(self) -> list[Command]:
        command = Command()
        while self.at < len(self.text):
            self._skip()
            if self.at >= len(self.text):
                break
            if operator := self._operator():
                self._finish(command, operator)
                command = Command()
            elif (found := _REDIRECTION.match(self.text, self.at)) and not self.text.startswith("(", found.end()):
                self._redirect(command, found)
            else:
                self._take(command, self._word())
        self._finish(command, "")
        return sorted([*self.found, *self.inner], key=lambda one: one.begin)

    def _skip(self) -> None:
        """Move to the next word or operator: past blanks, continued lines and comments."""
        while self.at < len(self.text):
            if self.text[self.at] in " \t\r":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return

    def _operator(self) -> str:
        if self.text[self.at] == "\n":
            self.at += 1
            for delimiter, stripped in self.heredocs:
                self._pass(delimiter, stripped)
            self.heredocs = []
            return "\n"
        if self.text.startswith("((", self.at) or self.text.startswith("&>", self.at):
            return ""
        for operator in _OPERATORS:
            if self.text.startswith(operator, self.at):
                self.at += len(operator)
                return operator
        return ""

    def _pass(self, delimiter: str, stripped: bool) -> None:
        while self.at < len(self.text):
            end = self.text.find("\n", self.at)
            line = self.text[self.at :] if end < 0 else self.text[self.at : end]
            self.at = len(self.text) if end < 0 else end + 1
            if (line.lstrip("\t") if stripped else line).rstrip("\r") == delimiter:
                return

    def _redirect(self, command: Command, found: re.Match[str]) -> None:
        begin, self.at = self.at, found.end()
        self._skip()
        if self.at >= len(self.text) or self.text[self.at] == "\n":
            raise Unreadable(f"a redirection leads nowhere: {self.text[begin : begin + 40]!r}")
        target = self._word()
        kind = found[1]
        if kind in ("<<", "<<-"):
            self.heredocs.append((target.text, kind == "<<-"))
        elif ">" in kind and not (kind == ">&" and re.fullmatch(r"\d+|-", target.text)):
            command.targets.append(target)
        command.begin = command.begin if command.end else begin
        command.end = self.at

    def _take(self, command: Command, word: Word) -> None:
        if not command.words and word.text in _OPENING and not command.assignments:
            return  # a command follows
        if not command.words and _ASSIGNMENT.match(self.text, word.begin):
            command.assignments.append(word)
        else:
            command.words.append(word)
        command.begin = command.begin if command.end else word.begin
        command.end = word.end

    def _finish(self, command: Command, operator: str) -> None:
        command.after = operator
        if (command.words and command.program not in _WORDLESS) or command.assignments or command.targets:
            self.found.append(command)

    def _word(self) -> Word:
        begin, parts, fixed = self.at, list[str](), True
        while self.at < len(self.text):
            sign = self.text[self.at]
            if self.text.startswith("((", self.at) and self.at == begin:
                self._matching("(", ")")  # arithmetic
                fixed = False
            elif sign in "<>" and self.text.startswith("(", self.at + 1):
                begun = self.at
                self.at += 1
                self._matching("(", ")")
                self._inside(begun + 2, self.at - 1)
                fixed = False
            elif sign in " \t\r\n;&|()<>":
                break
            elif sign == "'":
                end = self._find("'", self.at + 1)
                parts.append(self.text[self.at + 1 : end])
                self.at = end + 1
            elif sign == '"':
                text, same = self._quoted()
                parts.append(text)
                fixed &= same
            elif sign == "\\":
                parts.append(self.text[self.at + 1 : self.at + 2].replace("\n", ""))
                self.at += 2
            elif sign in "$`":
                parts.append(self._expansion())
                fixed = False
            else:
                fixed &= sign not in "*?[{~" or (sign in "[{" and self.text[self.at : self.at + 2] in ("[ ", "{ "))
                parts.append(sign)
                self.at += 1
        if self.at == begin:  # nothing that a shell could read
            raise Unreadable(f"it cannot be read from here on: {self.text[begin : begin + 40]!r}")
        return Word("".join(parts), begin, self.at, fixed)

    def _quoted(self) -> tuple[str, bool]:
        parts, fixed = list[str](), True
        self.at += 1
        while True:
            if self.at >= len(self.text):
                raise Unreadable("a quote is never closed")
            sign = self.text[self.at]
            if sign == '"':
                self.at += 1
                return "".join(parts), fixed
            if sign == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`", "\n"):
                parts.append(self.text[self.at + 1].replace("\n", ""))
                self.at += 2
            elif sign in "$`":
                parts.append(self._expansion())
                fixed = False
            else:
                parts.append(sign)
                self.at += 1

    def _expansion(self) -> str:
        """Read an expansion that begins with $ or a backquote, and the commands of a substitution."""
        begin = self.at
        if self.text[begin] == "`":
            end = self._find("`", begin + 1)
            self._inside(begin + 1, end)
            self.at = end + 1
        elif self.text.startswith("$((", begin):
            self.at += 1
            self._matching("(", ")")
        elif self.text.startswith("$(", begin):
            self.at += 1
            self._matching("(", ")")
            self._inside(begin + 2, self.at - 1)
        elif self.text.startswith("${", begin):
            self.at += 1
            self._matching("{", "}")
        elif self.text.startswith("$'", begin):
            self.at = self._find("'", begin + 2) + 1
        else:
            found = re.compile(r"\$(\w+|[@*#?$!-])?").match(self.text, begin)
            self.at = found.end() if found else begin + 1
        return self.text[begin : self.at]

    def _inside(self, begin: int, end: int) -> None:
        for command in commands(self.text[begin:end]):
            for word in (*command.words, *command.assignments, *command.targets):
                word.begin, word.end = word.begin + begin, word.end + begin
            command.begin, command.end = command.begin + begin, command.end + begin
            self.inner.append(command)

    def _matching(self, opening: str, closing: str) -> None:
        begin, depth = self.at, 0
        while self.at < len(self.text):
            sign = self.text[self.at]
            self.at += 1
            if sign == "\\":
                self.at += 1
            elif sign == "'" and opening == "(":
                self.at = self._find("'", self.at) + 1
            elif sign == '"':
                self.at -= 1
                inner = len(self.inner)
                self._quoted()
                del self.inner[inner:]  # read again, with the text around them
            elif sign == opening:
                depth += 1
            elif sign == closing:
                depth -= 1
                if not depth:
                    return
        raise Unreadable(f"{opening} is never closed: {self.text[begin : begin + 40]!r}")

    def _find(self, sign: str, begin: int) -> int:
        end = self.text.find(sign, begin)
        if end < 0:
            raise Unreadable(f"a quote is never closed: {self.text[begin - 1 : begin + 40]!r}")
        return end


def replaced(script: str, changes: Iterator[tuple[int, int, str]] | list[tuple[int, int, str]]) -> str:
    """Return a script with parts of it exchanged, each given by its place and its new text."""
    for begin, end, text in sorted(changes, reverse=True):
        script = script[:begin] + text + script[end:]
    return script
