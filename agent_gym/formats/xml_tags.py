"""The tags of families whose calls have an XML-like tag for each argument (xml_calls.py)."""

from __future__ import annotations

from agent_gym.formats.xml_calls import Tags


def functions(before: str, after: str, pad: str, first: str = "", last: str = "") -> Tags:
    """`<function=NAME>` and `<parameter=KEY>` of Qwen3-Coder and others."""
    tags = ("<function={name}>", "</function>", "<parameter={key}>", "</parameter>")
    return Tags(*tags, before=before, after=after, first=first, last=last, line="\n", pad=pad)


def invoke(space: str, block: str, typed: bool = False, call_space: str = "\n") -> Tags:
    """`<invoke name="NAME">` and `<parameter name="KEY">` of MiniMax, DeepSeek V3.2 and others; `space` is a prefix."""
    typing = ' string="{type}"' if typed else ""
    return Tags(
        f'<{space}invoke name="{{name}}">',
        f"</{space}invoke>",
        f'<{space}parameter name="{{key}}"{typing}>',
        f"</{space}parameter>",
        first=f"<{block}>\n",
        last=f"\n</{block}>",
        line=call_space,
        text_type="true" if typed else "",
        other_type="false" if typed else "",
    )


def arg_keys(prefix: str, line: str, suffix: str = "", sep: str = "", first: str = "", last: str = "") -> Tags:
    """`<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>` of GLM and others."""

    def tag(word: str) -> str:
        return f"<{prefix}{word}{suffix}>"

    def closing(word: str) -> str:
        return f"</{prefix}{word}{suffix}>"

    return Tags(
        f"{tag('tool_call')}{{name}}{sep}",
        closing("tool_call"),
        f"{tag('arg_key')}{{key}}{closing('arg_key')}{line}{tag('arg_value')}",
        closing("arg_value"),
        first=first,
        last=last,
        line=line,
    )
