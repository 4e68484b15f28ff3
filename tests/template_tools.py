"""Real chat templates, of TRL and of a folder, and tokenizers that know the markers in them."""

from __future__ import annotations

import functools
import json
import os
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from agent_gym import ConfigError
from agent_gym.chat import ChatRenderer

_MARKERS = re.compile(
    r"<\|[^|<>\n'\"]{1,40}\|>|<｜[^｜\n]{1,40}｜>|<(?:start|end)_of_turn>|<turn\|>|<\|turn>|\[/?[A-Z_]{3,20}\]|</?s>|<bos>"
    r"|<eos>|<(?:start|end)_of_role>|<extra_id_\d>|\[gMASK\]|<sop>|<\|[a-z_]+>|<[a-z_]+\|>|\[e~\[|<(?:start|end)_function_"
    r"(?:call|response)>|<(?:beginning|end)_of_sentence>|<escape>"
)
_ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|return|>", "<|end|>", "<end_of_turn>", "<turn|>", "<｜end▁of▁sentence｜>"),
    *("<|END_OF_TURN_TOKEN|>", "<|end_of_text|>", "<|endoftext|>", "[e~[", "<end_of_sentence>", "</s>", "<|EOT|>"),
    *("<|eot|>", "<|end_of_turn|>", "<|assistant_end|>"),
)
_BEGINS = ("<|begin_of_text|>", "<bos>", "<｜begin▁of▁sentence｜>", "<s>", "<|startoftext|>")


def template_folder() -> Path:
    """The folder of real templates that is not a part of the repository; the test is skipped without it."""
    place = os.environ.get("AGENT_GYM_TEMPLATES")
    if not place:
        pytest.skip("AGENT_GYM_TEMPLATES names no folder of chat templates (*.jinja)")
    return Path(place)


def read_templates(folder: Any = None) -> dict[str, str]:
    """Return name and text of the templates in a folder and in those below it, copies once; TRL's by default."""
    pytest.importorskip("trl")
    paths = [*files("trl").joinpath("chat_templates").iterdir()] if folder is None else [*Path(folder).rglob("*.jinja")]
    found: dict[str, str] = {}
    for path in sorted(paths, key=str):
        if path.name.endswith(".jinja") and (text := path.read_text(encoding="utf-8")) not in found:
            found[text] = path.name.removesuffix(".jinja")
    return {f"{name}#{number}": text for number, (text, name) in enumerate(found.items())}


@functools.cache
def tokenizer_of(template: str, more: tuple[str, ...] = ()) -> Any:
    """Make a tokenizer of bytes that knows the markers in a template, and ends turns as it does."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    markers = dict.fromkeys([*_MARKERS.findall(template), *more])
    if "List of tools:" in template:  # LFM2 shows its marks of calls in no template
        markers |= dict.fromkeys(("<|tool_call_start|>", "<|tool_call_end|>"))
    # GLM ends a turn with the header of the next one. Others print `eos_token`, which may be anything.
    end = "<|user|>" if "<|user|>" in markers and "eos_token" not in template else "</s>"
    end = next((one for one in _ENDS if one in markers), end)
    begin = next((one for one in _BEGINS if one in markers), "<s>")
    model = Tokenizer(models.BPE({byte: i for i, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in {**markers, end: 0, begin: 0}])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, bos_token=begin, eos_token=end, pad_token=end)
    tokenizer.chat_template = template
    closed = _closing(tokenizer)
    if closed in markers:
        tokenizer.eos_token = closed
    return tokenizer


def _closing(tokenizer: Any) -> str:
    """The marker that closes an assistant's last message."""
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "Qxanswerxq"}]
    try:
        text = tokenizer.apply_chat_template(talk, tokenize=False).partition("Qxanswerxq")[2]
    except Exception:
        return ""
    found = _MARKERS.match(text.lstrip())
    return found[0] if found else ""


TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Zq adds numbers.",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "description": "words"},
                "n": {"type": "integer", "description": "how many"},
            },
            "required": ["text", "n"],
        },
    },
}


def facts(template: str) -> dict[str, Any]:
    """What became of a template: refused and why, or the facts that tests hold and count."""
    tokenizer = tokenizer_of(template)
    try:
        renderer = ChatRenderer(tokenizer)
    except ConfigError as error:
        return {"refused": str(error)}
    call_format = renderer.call_format
    made: dict[str, Any] = {
        "told": call_format.told,
        "family": getattr(call_format.parser, "family", "") or "hermes",
        "known": call_format.known,
        "in_template": call_format.in_template,
        "structured": call_format.structured,
        "role": call_format.answer_role,
        "prints_tools": renderer.renders_tools,
    }
    made |= _opening(renderer) | _ends(renderer) | _calls(renderer)
    if call_format.known:
        made |= _answers(renderer)
    return made


def decode(renderer: ChatRenderer, ids: list[int]) -> str:
    return str(renderer.tokenizer.decode(ids, skip_special_tokens=False))


def _opening(renderer: ChatRenderer) -> dict[str, Any]:
    """The markers that are lost from openings, with and without system message, tools and earlier turns."""
    system, user = {"role": "system", "content": "Sysq be brief."}, {"role": "user", "content": "Userq hi."}
    past = [{"role": "user", "content": "Pastq ask."}, {"role": "assistant", "content": "Pastq answer."}]
    lost, refused = [], []
    for messages in ([user], [system, user], [*past, user], [system, *past, user]):
        for tools in ([], [TOOL]) if renderer.renders_tools else ([],):
            try:
                text = decode(renderer, renderer.prompt(messages, tools))
            except ConfigError as error:
                refused.append(str(error)[:120])
                continue
            wanted = [one["content"] for one in messages] + (["add"] if tools else [])
            lost += [word for word in wanted if word not in text]
    return {"lost": lost, "opening_refused": refused}


def _ends(renderer: ChatRenderer) -> dict[str, Any]:
    """Whether a turn that its policy closed has more ends of turn than one that was cut off."""
    if renderer.end_of_turn is None:
        return {"doubled": False}
    end = re.escape(decode(renderer, [renderer.end_of_turn]))
    doubled = False
    for role in {"user", renderer.observation_role}:
        for final in (False, True):
            answer = [{"role": role, "name": "add", "content": "Obs"}]
            texts = []
            for closed in (True, False):
                turn = renderer.encode_action("Turn", closed=closed)
                texts.append(decode(renderer, [*turn, *renderer.reply(turn, answer, final=final)]))
            ends = [len(re.findall(end, re.search(rf"Turn((?:\s*{end})*)", text)[1])) for text in texts]  # type: ignore[index]
            doubled |= ends[0] > max(ends[1], 1)
    return {"doubled": doubled}


def _calls(renderer: ChatRenderer) -> dict[str, Any]:
    """The calls of an environment's parser that it does not read, or that are not what its prompt asks for."""
    env = gymnasium.make("AgentR1/GSM8K-v0", tokenizer=renderer)
    try:
        _, info = env.reset(seed=0)
    except ConfigError as error:  # a system message that the template refuses
        return {"unread": "", "played": str(error)}
    unread = "" if "calculator" in decode(renderer, info["token_ids"]) else "the prompt names no tool"
    turn = env.unwrapped.parser.render("calculator", {"expression": "48/2"})  # type: ignore[attr-defined]
    observation, _, over, _, info = env.step(turn)
    if over or "24" not in observation or [call["name"] for call in info["tool_calls"]] != ["calculator"]:
        unread = f"{turn} is answered by {observation}"
    return {"unread": unread, "played": "GSM8K"}


def _answers(renderer: ChatRenderer) -> dict[str, Any]:
    """What `differences` says of conversations of four turns, of one call each and, in the second turn, of two."""
    found = [differences(renderer, [1, 1, 1, 1])]
    if renderer.call_format.parallel:
        found.append(differences(renderer, [1, 2, 1, 1]))
    return {"answers": found}


def differences(renderer: ChatRenderer, counts: list[int]) -> str:
    """Compare what follows each turn with the rendering of the whole conversation: "", what differs, or a refusal.

    Args:
        renderer: of a template that writes calls.
        counts: how many calls each turn has.
    """
    call_format = renderer.call_format
    tools = [TOOL] if call_format.in_template else []
    talk: list[Any] = [{"role": "user", "content": "hi"}]
    past: list[Any] = []
    for count in counts:
        calls, answers = _turn(renderer, sum(one["role"] == "tool" for one in past), count)
        said = answers
        if call_format.answer_role == "user":
            said = [{"role": "user", "content": "\n".join(one["content"] for one in answers)}]
        talk += [{"role": "assistant", "content": "", "tool_calls": calls}, *said]
        try:
            whole = renderer._render(talk, tools=tools or None, add_generation_prompt=True)
        except ConfigError as error:
            return f"refused: {error}"
        if not all(one["content"] in whole for one in answers):
            return "refused: an answer is not shown"
        text = decode(renderer, renderer.reply([], answers, tools=tools, past=past)).lstrip()
        if not whole.endswith(text):
            return f"{text!r} is not the end of {whole!r}"
        past += [{"role": "assistant", "content": ""}, *answers]
    return ""


def _turn(renderer: ChatRenderer, made: int, count: int) -> tuple[list[Any], list[Any]]:
    """Calls of one turn behind as many, and their answers."""
    written = renderer.call_format.written
    calls, answers = [], []
    for place in range(made, made + count):
        number = written.id_of.format(name="add", place=place)
        arguments: Any = {"text": f"word{place}", "n": 3}
        function = {"name": "add", "arguments": json.dumps(arguments) if written.as_text else arguments}
        calls.append({"id": number, "type": "function", "function": function})
        answers.append({"role": "tool", "name": "add", "tool_call_id": number, "content": f"Obs{place}"})
    return calls, answers


def model_folder(path: Path, template: str, context: int = 16384) -> Path:
    """Write a model of random weights with the tokenizer of bytes of a template, and return its folder."""
    from tiny import make_tiny_model

    make_tiny_model(path, context=context)
    tokenizer = tokenizer_of(template)
    tokenizer.save_pretrained(path)
    for name in ("config.json", "generation_config.json"):
        content = json.loads((path / name).read_text())
        ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        (path / name).write_text(json.dumps(content | ends))
    return path
