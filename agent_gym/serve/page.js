"use strict";
// Draws the conversation from the server's events. Whatever a model or a tool wrote becomes a text node, never markup.
const $ = (id) => document.getElementById(id);
let state; // of the conversation that is drawn

function el(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children.map((child) => (child.nodeType ? child : String(child))));
  return node;
}

// The newest words stay in sight, unless the reader has scrolled up.
const MAIN = document.querySelector("main");
let follows = true;
MAIN.addEventListener("scroll", () => { follows = MAIN.scrollHeight - MAIN.scrollTop - MAIN.clientHeight < 60; });
const add = (node) => $("talk").append(node);

function busy(on) {
  state.busy = on;
  $("stop").hidden = !on;
  $("send").hidden = on;
  $("reset").disabled = on;
  const savable = !on && state.sampled > 0;
  $("save").classList.toggle("off", !savable);
  $("save").setAttribute("aria-disabled", String(!savable));
}

const SHOW = {
  begin(event) {
    state = { busy: false, sampled: 0, turn: null, cards: [] };
    $("talk").replaceChildren();
    document.title = "Chat: " + event.env_id;
    $("title").textContent = event.env_id;
    $("model").textContent = event.model;
    const tools = event.tools.map((tool) => tool.function);
    $("tools").querySelector("summary").textContent = tools.length ? "Tools: " + tools.map((tool) => tool.name).join(", ") : "No tools";
    $("tools").querySelector("ul").replaceChildren(...tools.map((tool) =>
      el("li", "", el("b", "", tool.name), "(" + Object.keys(tool.parameters.properties || {}).join(", ") + "): " + tool.description)));
    state.answers = event.answers;
    $("opening").querySelector("h2").textContent = event.answers ? "The environment begins"
      : event.has_state ? "The world as it is" : "The environment would ask, for example";
    $("text").placeholder = event.answers ? "Enter alone lets the environment speak; your words take its place" : "Enter sends, Escape stops";
    $("opening").querySelector("pre").textContent = event.opening;
    $("opening").querySelector("button").hidden = event.has_state || event.answers;
    $("status").textContent = "";
    busy(false);
  },
  person(event) {
    state.turn = null;
    add(el("div", "person", event.text));
    busy(true);
    $("status").textContent = "";
  },
  world(event) {
    state.turn = null;
    add(el("div", "world", event.text));
    busy(true);
    $("status").textContent = "";
  },
  text(event) {
    if (!state.turn) {
      state.turn = el("div", "turn live");
      add(state.turn);
    }
    state.turn.append(event.text);
  },
  turn(event) {
    if (state.turn) state.turn.classList.remove("live");
    if (state.turn && event.calls.length) state.turn.classList.add("calls");
    state.turn = null;
    state.cards = event.calls.map(card);
    state.cards.forEach(add);
    if (event.calls.length) $("status").textContent = "the tools are at work";
  },
  results(event) {
    const several = event.results.length === state.cards.length;
    event.results.forEach((result, i) => {
      const node = state.cards[several ? i : state.cards.length - 1];
      if (result.error) node.classList.add("failed");
      node.append(el("pre", "result", result.text));
      node.querySelector(".brief").append(" \u2192 " + result.text.split("\n")[0]);
      node.open = result.text.length < 400 && node.querySelector("pre").textContent.length < 400;
    });
    $("status").textContent = "";
  },
  end(event) {
    if (state.turn) state.turn.classList.remove("live");
    state.turn = null;
    state.sampled += event.sampled;
    const numbers = event.sampled + " tokens in " + event.seconds.toFixed(1) + " s";
    const why = event.reason === "answer" ? "" : event.text + " \u00b7 ";
    add(el("p", event.reason === "answer" || event.reason === "stopped" ? "end" : "end notable", why + numbers));
    $("status").textContent = "context: " + event.tokens + " of " + event.limit + " tokens";
    busy(false);
  },
};

function card(call) {
  const named = call.arguments || {};
  const brief = call.error ? call.error : Object.values(named).map((value) => typeof value === "string" ? value : JSON.stringify(value)).join(", ");
  const texts = Object.entries(named).map(([name, value]) => name + " = " + (typeof value === "string" ? value : JSON.stringify(value)));
  const summary = el("summary", "", el("span", "name", call.name || "call"), el("span", "brief", brief.split("\n")[0]));
  return el("details", call.error ? "card failed" : "card", summary, el("pre", "", call.error || texts.join("\n")));
}

async function post(path, content) {
  const answer = await fetch(path, { method: "POST", body: JSON.stringify(content || {}) }).catch(() => null);
  if (answer && answer.ok) return true;
  $("status").textContent = answer ? (await answer.json()).detail : "the server does not answer";
  return false;
}

async function say() {
  const text = $("text").value;
  if ((!text.trim() && !state.answers) || state.busy) return;
  if (await post("say", { text })) $("text").value = "";
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); say(); });
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); say(); }
});
$("stop").addEventListener("click", () => { post("stop"); $("text").focus(); });
$("reset").addEventListener("click", () => { post("reset"); $("text").focus(); });
$("save").addEventListener("click", (event) => { if ($("save").classList.contains("off")) event.preventDefault(); });
$("opening").querySelector("button").addEventListener("click", () => {
  $("text").value = $("opening").querySelector("pre").textContent;
  $("text").focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && state && state.busy) post("stop");
  if (event.key === "/" && document.activeElement === document.body) { event.preventDefault(); $("text").focus(); }
});

// Marks that turn the direction of writing around (U+202E and the like) would show a text, and what follows, mirrored.
function plain(key, value) {
  return typeof value !== "string" ? value
    : value.replace(/[\u202a-\u202e\u2066-\u2069]/g, (c) => "\u27e8U+" + c.charCodeAt(0).toString(16).toUpperCase() + "\u27e9");
}

const source = new EventSource("events");
source.onmessage = (message) => {
  const event = JSON.parse(message.data, plain);
  if (event.kind === "person" || event.kind === "world") follows = true;
  SHOW[event.kind](event);
  if (follows) MAIN.scrollTop = MAIN.scrollHeight;
};
source.onerror = () => { $("status").textContent = "the connection is lost; trying again"; };
$("text").focus();
