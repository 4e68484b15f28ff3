"""The families of tool-call languages that are known, in the order in which a probe tries them.

A chat template that renders calls by itself shows which family its model speaks: render a call with it, and the first
family here that reads exactly that call is the one (`call_format.probe`). More specific forms come before general ones:
marks of a family's own, then marks that several families share, then calls without any mark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from agent_gym.formats.calls import Keys
from agent_gym.formats.harmony import HarmonyParser
from agent_gym.formats.headed_calls import FunctionaryCalls, GemmaCalls, HeadedCalls
from agent_gym.formats.json_calls import HermesParser, JsonCalls, OpenAICalls, PlainJson, TupleCalls
from agent_gym.formats.native import NativeParser
from agent_gym.formats.nested_xml import NestedCalls
from agent_gym.formats.pythonic import PythonicCalls
from agent_gym.formats.xml_calls import Tags, XmlCalls
from agent_gym.formats.xml_tags import arg_keys, functions, invoke


class Family(NamedTuple):
    """A family: its parser, and models that speak it."""

    make: Callable[[], NativeParser]
    models: str


_LLAMA = Keys("name", "parameters", optional=("type",))


def _xml(name: str, tags: Tags, marks: Sequence[str], noise: Sequence[str] = ()) -> Callable[[], NativeParser]:
    return lambda: XmlCalls(name, tags, marks, noise)


_MARKED: dict[str, Family] = {
    "harmony": Family(HarmonyParser, "gpt-oss"),
    "deepseek_v3": Family(
        lambda: HeadedCalls(
            "deepseek_v3",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n",
            "<｜tool▁call▁end｜>",
            ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
            first="<｜tool▁calls▁begin｜>",
            last="<｜tool▁calls▁end｜>",
            between="\n",
            fence=True,
            pattern=r"<｜tool▁call▁begin｜>\s*function\s*<｜tool▁sep｜>(?P<name>[^\s<`{]+)[ \t]*\n?",
        ),
        "DeepSeek V3 and R1, R1 distilled",
    ),
    "deepseek_v3_1": Family(
        lambda: HeadedCalls(
            "deepseek_v3_1",
            "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
            first="<｜tool▁calls▁begin｜>",
            last="<｜tool▁calls▁end｜>",
            pattern=r"<｜tool▁call▁begin｜>\s*(?P<name>[^\s<`{]+)\s*<｜tool▁sep｜>",
        ),
        "DeepSeek V3.1",
    ),
    "deepseek_v3_2": Family(
        _xml(
            "deepseek_v3_2",
            invoke("｜DSML｜", "｜DSML｜function_calls", True),
            ("<｜DSML｜function_calls>", "<｜DSML｜invoke"),
        ),
        "DeepSeek V3.2",
    ),
    "deepseek_v4": Family(
        _xml(
            "deepseek_v4", invoke("｜DSML｜", "｜DSML｜tool_calls", True), ("<｜DSML｜tool_calls>", "<｜DSML｜invoke")
        ),
        "DeepSeek V4",
    ),
    "deepseek_v4_1": Family(
        _xml("deepseek_v4_1", invoke("｜DSML｜ ", "｜DSML｜ calls", True), ("<｜DSML｜ calls>", "<｜DSML｜ invoke")),
        "DeepSeek V4.1",
    ),
    "kimi_k2": Family(
        lambda: HeadedCalls(
            "kimi_k2",
            "<|tool_call_begin|>{id}<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
            ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
            first="<|tool_calls_section_begin|>",
            last="<|tool_calls_section_end|>",
            pattern=r"<\|tool_call_begin\|>\s*(?P<id>(?:functions\.)?(?P<name>[^<>\s:]+)(?::\d+)?)\s*"
            r"<\|tool_call_argument_begin\|>",
            ids="functions.{name}:{number}",
        ),
        "Kimi K2 to K2.7, Kimi-Linear, LLaDA2.2",
    ),
    "kimi_k3": Family(
        _xml(
            "kimi_k3",
            Tags(
                '<|open|>call tool="{name}" index="{number}"<|sep|>',
                "<|close|>call<|sep|>",
                '<|open|>argument key="{key}" type="{type}"<|sep|>',
                "<|close|>argument<|sep|>",
                first="<|open|>tools<|sep|>",
                last="<|close|>tools<|sep|>",
                text_type="string",
                other_type="json",
            ),
            ("<|open|>tools<|sep|>", "<|open|>call"),
        ),
        "Kimi K3",
    ),
    "mistral": Family(
        lambda: HeadedCalls(
            "mistral",
            "[TOOL_CALLS]{name}[ARGS]",
            "",
            ("[TOOL_CALLS]",),
            pattern=r"\[TOOL_CALLS\]\s*(?P<name>[^\[\]{}\s]+)\s*\[ARGS\]",
        ),
        "Mistral Small 4, Medium 3.5, Large 3, Ministral 3, Devstral",
    ),
    "mistral_call_id": Family(
        lambda: HeadedCalls(
            "mistral_call_id",
            "[TOOL_CALLS]{name}[CALL_ID]{id}[ARGS]",
            "",
            ("[TOOL_CALLS]",),
            pattern=r"\[TOOL_CALLS\]\s*(?P<name>[^\[\]{}\s]+)\s*\[CALL_ID\]\s*(?P<id>[^\[\]{}\s]+)\s*\[ARGS\]",
            ids="call{number:05d}",
        ),
        "Mistral Small 3.2, Magistral",
    ),
    "mistral_list": Family(
        lambda: JsonCalls("mistral_list", "[TOOL_CALLS]", keys=Keys(id="id"), lists=True, ids="call{number:05d}"),
        "Mistral 7B v0.3, Nemo, Small 3, Large 2411",
    ),
    "solar": Family(
        lambda: HeadedCalls(
            "solar",
            "<|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>",
            "<|tool_call:end|>",
            ("<|tool_calls|>", "<|tool_call:begin|>"),
            first="<|tool_calls|>",
            last="<|calls|>",
            ids="call{number:05d}",
            end="<|calls|>",
        ),
        "Solar Open",
    ),
    "solar_2": Family(
        _xml(
            "solar_2",
            Tags(
                "<|tool_call:start|>{name}",
                "<|tool_call:end|>",
                "<|tool_arg:start|>{key}<|tool_arg:value|>",
                "<|tool_arg:end|>",
                line="\n",
            ),
            ("<|tool_call:start|>",),
        ),
        "Solar Open 2",
    ),
    "step_audio": Family(
        lambda: HeadedCalls(
            "step_audio",
            "<|CALL_START|>function\n{name}\n",
            "<|CALL_END|>",
            ("<|CALL_START|>",),
            pattern=r"<\|CALL_START\|>\s*function\s+(?P<name>[^\s<>{}]+)\s*(?=\{)",
        ),
        "Step-Audio",
    ),
    "step3": Family(
        _xml(
            "step3",
            Tags(
                '<steptml:invoke name="{name}">',
                "</steptml:invoke>",
                '<steptml:parameter name="{key}">',
                "</steptml:parameter>",
                before="<｜tool_call_begin｜>function<｜tool_sep｜>",
                after="<｜tool_call_end｜>",
                first="<｜tool_calls_begin｜>",
                last="<｜tool_calls_end｜>",
            ),
            ("<｜tool_calls_begin｜>", "<｜tool_call_begin｜>", "<steptml:invoke"),
        ),
        "Step 3",
    ),
    "command_a": Family(
        lambda: JsonCalls(
            "command_a",
            "<|START_ACTION|>",
            "<|END_ACTION|>",
            keys=Keys("tool_name", "parameters", "tool_call_id", id_first=True),
            lists=True,
            brackets=("[\n    ", "\n]"),
            ids="{number}",
            closed=False,
            end="<|END_ACTION|>",
        ),
        "Command A, Command R7B",
    ),
    "command_r": Family(
        lambda: JsonCalls(
            "command_r", "Action:", "```", keys=Keys("tool_name", "parameters"), lists=True, closed=False
        ),
        "Command R and R+",
    ),
    "gemma4": Family(lambda: GemmaCalls("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>'), "Gemma 4"),
    "functiongemma": Family(
        lambda: GemmaCalls("functiongemma", "<start_function_call>", "<end_function_call>", "<escape>"),
        "functiongemma",
    ),
    "lfm2": Family(lambda: PythonicCalls("lfm2", "<|tool_call_start|>", "<|tool_call_end|>"), "LFM2, LFM2.5"),
    "minicpm3": Family(
        lambda: PythonicCalls(
            "minicpm3",
            "<|tool_call_start|>\n```python\n",
            "\n```\n<|tool_call_end|>",
            brackets=False,
            separator="\n",
        ),
        "MiniCPM 3",
    ),
    "olmo3": Family(
        lambda: PythonicCalls("olmo3", "<function_calls>", "</function_calls>", brackets=False, separator="\n"),
        "Olmo 3",
    ),
    "minicpm5": Family(
        _xml(
            "minicpm5",
            Tags('<function name="{name}">', "</function>", '<param name="{key}">', "</param>", cdata=True),
            ("<function name=",),
        ),
        "MiniCPM 5, MiniCPM-SALA",
    ),
    "minimax_m1": Family(lambda: JsonCalls("minimax_m1", "<tool_calls>", "</tool_calls>", space="\n"), "MiniMax M1"),
    "apriel": Family(
        lambda: JsonCalls("apriel", "<tool_calls>", "</tool_calls>", keys=Keys(id="id"), lists=True, python=True),
        "Apriel, Jamba",
    ),
    "sarashina": Family(
        lambda: JsonCalls(
            "sarashina", "<|tool_calls|>", keys=Keys(id="id"), lists=True, ids="call{number:05d}", python=True
        ),
        "Sarashina 2.2",
    ),
    "minimax_m2": Family(
        _xml("minimax_m2", invoke("", "minimax:tool_call"), ("<minimax:tool_call>", "<invoke name=")),
        "MiniMax M2 to M2.7",
    ),
    "dots": Family(_xml("dots", invoke("", "dots_function_call"), ("<dots_function_call>", "<invoke name=")), "Dots"),
    "k2_horizon": Family(
        _xml(
            "k2_horizon",
            arg_keys("ifm|", "", first="<ifm|tool_calls>", last="</ifm|tool_calls>"),
            ("<ifm|tool_calls>", "<ifm|tool_call>"),
        ),
        "K2 Horizon",
    ),
    "plamo3": Family(
        lambda: HeadedCalls(
            "plamo3",
            "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>"
            "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>",
            "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
            ("<|plamo:begin_tool_requests:plamo|>", "<|plamo:begin_tool_request:plamo|>"),
            first="<|plamo:begin_tool_requests:plamo|>",
            last="<|plamo:end_tool_requests:plamo|>",
            pattern=r"<\|plamo:begin_tool_request:plamo\|>\s*<\|plamo:begin_tool_name:plamo\|>\s*(?P<name>[^<>\s]+)\s*"
            r"<\|plamo:end_tool_name:plamo\|>\s*<\|plamo:begin_tool_arguments:plamo\|>"
            r"(?:<\|plamo:constrain\|>\s*json)?\s*<\|plamo:msg\|>",
        ),
        "PLaMo 3",
    ),
    "minimax_m3": Family(lambda: NestedCalls("minimax_m3", "]<]minimax[>[", "tool_call"), "MiniMax M3"),
    "muse": Family(
        _xml("muse", invoke("atem:", "atem:function_calls"), ("<atem:function_calls>", "<atem:invoke")),
        "Muse-Glimmer",
    ),
    "granite": Family(lambda: JsonCalls("granite", "<|tool_call|>", lists=True), "Granite 3.0 to 3.3"),
    "phi4_mini": Family(
        lambda: JsonCalls("phi4_mini", "<|tool_call|>", "<|/tool_call|>", lists=True, closed=False), "Phi-4-mini"
    ),
    "nemotron": Family(
        lambda: JsonCalls("nemotron", "<TOOLCALL>", "</TOOLCALL>", lists=True), "Nemotron Nano v1 and v2, Super"
    ),
    "gigachat": Family(
        lambda: JsonCalls("gigachat", ("<|function_call|>", "function call<|role_sep|>")), "GigaChat 3 and 3.1"
    ),
    "internlm": Family(
        lambda: JsonCalls(
            "internlm",
            ("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
            "<|action_end|>",
            keys=Keys("name", "parameters", also=("arguments",)),
            closed=False,
            space="\n",
        ),
        "InternLM 2.5, Intern-S1-mini",
    ),
    "apertus": Family(
        lambda: TupleCalls(
            "apertus", "<|tools_prefix|>", "<|tools_suffix|>", lists=True, closed=False, end="<|tools_suffix|>"
        ),
        "Apertus",
    ),
    "longcat": Family(
        lambda: JsonCalls("longcat", "<longcat_tool_call>", "</longcat_tool_call>", space="\n"), "LongCat-Flash-Chat"
    ),
    "longcat_2": Family(
        _xml("longcat_2", arg_keys("longcat_", "\n"), ("<longcat_tool_call>",)), "LongCat 2.0, LongCat-Flash-Lite"
    ),
    "hyperclova": Family(
        lambda: JsonCalls("hyperclova", (" -> tool/function_call\n", "-> tool/function_call\n"), lists=True),
        "HyperCLOVA X SEED Think 14B",
    ),
}
_SHARED: dict[str, Family] = {
    "qwen3_coder": Family(
        _xml("qwen3_coder", functions("<tool_call>\n", "\n</tool_call>", "\n"), ("<tool_call>", "<function=")),
        "Qwen3-Coder, Qwen3.5 to 3.8, Nemotron 3, Step 3.5",
    ),
    "mimo": Family(
        _xml("mimo", functions("<tool_call>\n", "\n</tool_call>", ""), ("<tool_call>", "<function=")),
        "MiMo-V2",
    ),
    "seed_oss": Family(
        _xml("seed_oss", functions("<seed:tool_call>\n", "\n</seed:tool_call>", ""), ("<seed:tool_call>",)),
        "Seed-OSS",
    ),
    "hy3": Family(
        _xml(
            "hy3",
            arg_keys(
                "",
                "\n",
                ":opensource",
                "<tool_sep:opensource>",
                "<tool_calls:opensource>\n",
                "\n</tool_calls:opensource>",
            ),
            ("<tool_calls:opensource>", "<tool_call:opensource>"),
        ),
        "Hy3",
    ),
    "hy3_preview": Family(
        _xml(
            "hy3_preview",
            arg_keys("", "\n", "", "<tool_sep>", "<tool_calls>\n", "\n</tool_calls>"),
            ("<tool_calls>", "<tool_call>"),
        ),
        "Hy3-preview, Hy-MT2",
    ),
    "glm4_5": Family(_xml("glm4_5", arg_keys("", "\n"), ("<tool_call>",)), "GLM-4.5 and 4.6, Ling 3, Laguna XS"),
    "glm4_7": Family(_xml("glm4_7", arg_keys("", ""), ("<tool_call>",)), "GLM-4.7, GLM-5, Laguna S"),
    "hunyuan": Family(
        lambda: HeadedCalls(
            "hunyuan",
            "<tool_call>{name}\n",
            "</tool_call>",
            ("<tool_calls>", "<tool_call>"),
            first="<tool_calls>",
            last="</tool_calls>",
            fence=True,
            between="\n",
            pattern=r"<tool_call>\s*(?P<name>[^\s<>`{}\[\]\"]+)\s*(?=```|\{)",
        ),
        "Hunyuan",
    ),
    "hermes": Family(HermesParser, "Hermes, Qwen2.5, Qwen3, QwQ, SmolLM3, Granite 4, Ling, Ring, ERNIE 4.5"),
    "exaone": Family(lambda: JsonCalls("exaone", "<tool_call>", "</tool_call>"), "EXAONE 4, A.X, Motif 3, Youtu"),
    "hermes_python": Family(
        lambda: JsonCalls("hermes_python", "<tool_call>", "</tool_call>", space="\n", python=True),
        "Qwen3 with templates that print arguments as Python does",
    ),
    "falcon3": Family(
        lambda: OpenAICalls("falcon3", "<tool_call>", "</tool_call>", lists=True, space="\n"), "Falcon 3"
    ),
    "step_rlvr": Family(
        lambda: JsonCalls(
            "step_rlvr",
            "<tool_call>",
            "</tool_call>",
            keys=Keys(id="tool_call_id", id_first=True),
            space="\n",
            ids="call{number:05d}",
        ),
        "Step RLVR",
    ),
    "functionary": Family(
        lambda: HeadedCalls("functionary", "<function={name}>", "</function>", ("<function=",)),
        "Functionary 3.1, Kanana 1.5",
    ),
    "functionary_3_2": Family(lambda: FunctionaryCalls("functionary_3_2"), "Functionary 3.2"),
}
_PLAIN: dict[str, Family] = {
    "llama3": Family(
        lambda: PlainJson(
            "llama3", keys=_LLAMA, tags=("<|python_tag|>",), noise=("<|python_start|>", "<|python_end|>")
        ),
        "Llama 3.1 to 3.3, Llama 4",
    ),
    "xlam": Family(lambda: PlainJson("xlam", keys=Keys(id="id"), lists=True), "xLAM, DeepHat"),
    "llama_pythonic": Family(
        lambda: PythonicCalls("llama_pythonic", tags=("<|python_tag|>", "<|python_start|>", "<|python_end|>")),
        "Llama 3.2 and 4 (pythonic), Typhoon 2.1",
    ),
    "pythonic_bare": Family(
        lambda: PythonicCalls("pythonic_bare", bare=True), "Llama 3.2 with the pythonic template of Baseten"
    ),
}

FAMILIES: Mapping[str, Family] = {**_MARKED, **_SHARED, **_PLAIN}
"""Name of a family to its parser's factory and its models, in the order of a probe."""
