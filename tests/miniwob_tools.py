"""MiniWoB for tests: the prepared pages, and a folder with small pages of the same protocol."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from agent_gym import ConfigError, make
from agent_gym.data import cache_folder
from agent_gym.envs.miniwob.browser import program_of
from agent_gym.prepare import prepare
from agent_gym.tools import HermesParser

ENV_ID = "AgentR1/MiniWoB-v0"
WHEEL = "AGENT_GYM_MINIWOB"
CALL = HermesParser().render

CORE = """
var core = {}, WOB_RAW_REWARD_GLOBAL = 0, WOB_DONE_GLOBAL = false;
Math.seedrandom = function(seed) {
  var state = 1;
  for (var i = 0; i < String(seed).length; i++) state = (state * 31 + String(seed).charCodeAt(i)) % 2147483647;
  Math.random = function() { return (state = state * 48271 % 2147483647) / 2147483647; };
};
core.startEpisodeReal = function() {
  genProblem();
  WOB_DONE_GLOBAL = false;
  core.EP_TIMER = setTimeout(function() { core.endEpisode(-1); }, core.EPISODE_MAX_TIME);
};
core.endEpisode = function(reward) {
  clearTimeout(core.EP_TIMER);
  WOB_RAW_REWARD_GLOBAL = reward;
  WOB_DONE_GLOBAL = true;
};
"""
HEAD = '<!DOCTYPE html><script src="../core/core.js"></script><div id="query"></div><div id="area">'
PAGES = {
    # Seeds decide the label and the place of the right button.
    "enter-text": HEAD + """<input id="tt" type="text"><button id="subbtn">Submit</button></div><script>
      function genProblem() {
        var word = ['Ada', 'Bo', 'Cy', 'Di'][Math.floor(Math.random() * 4)] + Math.floor(Math.random() * 1000);
        var asked = 'Enter "<b>' + word + '</b>" into the text field and press Submit.';
        document.getElementById('query').innerHTML = asked;
        document.getElementById('subbtn').onclick = function() {
          core.endEpisode(document.getElementById('tt').value === word ? 1 : -1);
        };
      }</script>""",
    "slow": HEAD + """<p id="p">wait</p><button id="b">Go</button><a href="http://example.com/">away</a>
      <a href="enter-text.html">other</a><select id="s"><option>one<option>two</select>
      <form action="http://example.com/"><input type="checkbox" id="c"><label for="c">yes</label><button>Send</button>
      </form></div><script>
      function genProblem() {
        document.getElementById('query').textContent = 'Press Go when it is ready.';
        var ready = false;
        setTimeout(function() { ready = true; document.getElementById('p').textContent = 'ready'; }, 2500);
        document.getElementById('b').onclick = function() { core.endEpisode(ready ? 0.5 : -1); };
      }</script>""",
    "curious": HEAD + """<p id="p">nothing</p><button>Nothing</button></div><script>
      var found = [];
      function genProblem() {
        document.getElementById('query').textContent = 'Look around.';
        var tell = function(what) { found.push(what); };
        if (localStorage.seen || document.cookie) tell('memory');
        localStorage.seen = 'yes';
        document.cookie = 'seen=yes';
        fetch('PORT/fetch').then(function() { tell('fetch'); }, function() {});
        fetch('file:///etc/hostname').then(function() { tell('file'); }, function() {});
        fetch('../../outside.txt').then(function(r) { if (r.ok) tell('outside'); }, function() {});
        try { new WebSocket('PORT/socket'.replace('http', 'ws')).onopen = function() { tell('socket'); }; } catch (e) {}
        navigator.sendBeacon('PORT/beacon');
        var image = new Image(); image.src = 'PORT/image'; document.body.append(image);
        window.open('PORT/window');
        setInterval(function() { document.getElementById('p').textContent = found.join(' ') || 'nothing'; }, 100);
      }</script>""",
    "hung": HEAD + """<button id="b">Go</button></div><script>
      function genProblem() { document.getElementById('b').onclick = function() { while (true) {} }; }</script>""",
}  # fmt: skip


def needs_browser() -> str:
    """The browser's program; the test is skipped without it, or without playwright."""
    try:
        return program_of(None)
    except ConfigError as error:
        pytest.skip(str(error))


def small_folder(folder: Path, port: str = "http://127.0.0.1:9") -> Path:
    """A folder with the small pages; a page of it asks for addresses at `port`."""
    for name, text in {"core/core.js": CORE, **{f"miniwob/{name}.html": PAGES[name] for name in PAGES}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.replace("PORT", port))
    return folder


def prepared_folder(made: Path) -> Path:
    """The folder of `agent-gym prepare miniwob`: by a wheel that a variable names, or of this machine."""
    needs_browser()
    if wheel := os.environ.get(WHEEL):
        return prepare("miniwob", source=[wheel], output=made).folder / "html"
    there = cache_folder() / "miniwob" / "html"
    if not there.is_dir():
        pytest.skip(f"MiniWoB is not here: run agent-gym prepare miniwob, or set {WHEEL} to its wheel")
    return there


def made(folder: Path, page: Any = "enter-text", **kwargs: Any) -> Any:
    return make(ENV_ID, page=page, data=str(folder), **kwargs)


def process_id(chromium: Any) -> int:
    """The process id of the browser itself."""

    async def ask() -> int:
        session = await chromium.browser.new_browser_cdp_session()
        found = await session.send("SystemInfo.getProcessInfo")
        return next(int(one["id"]) for one in found["processInfo"] if one["type"] == "browser")

    return int(chromium.wait(ask()))


def of_seed(page: str, seed: int) -> dict[str, Any]:
    return {"task": {"page": page, "seed": seed}}
