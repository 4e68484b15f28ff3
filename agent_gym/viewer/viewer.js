"use strict";
// Draws the page from the JSON block. Every word a model wrote reaches the document as a text node, never as markup.
const DATA = JSON.parse(document.getElementById("data").textContent);
const SOURCES = ["system", "user", "agent", "env"];
const AGENT = 2;
const $ = (id) => document.getElementById(id);

function el(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children.filter((child) => child !== null && child !== undefined).map((c) => c.nodeType ? c : String(c)));
  return node;
}

const signed = (x) => x === null ? "?" : (x < 0 ? "\u2212" : "+") + trim(Math.abs(x));
const trim = (x) => x === null ? "?" : Number(x.toPrecision(3)).toString();
const count = (n, noun) => n + " " + noun + (n === 1 ? "" : "s");

// ---- the data, unpacked

const EPISODES = DATA.episodes.map((episode, number) => {
  // Summaries are steps, but no turns: the environment takes no part in them.
  let turns = 0;
  for (const step of episode.steps) step.turn = step.kind === "act" ? ++turns : null;
  return { ...episode, number, turns };
});
const ROWS = EPISODES.flatMap((episode) => episode.rows);

function unpack(row) {
  // One object per token, so only for the episode that is looked at: a file may hold millions of tokens. Logprobs and
  // advantages are stored for sampled tokens only.
  const advantages = row.advantages ? row.advantages.flatMap(([value, n]) => Array(n).fill(value)) : null;
  const tokens = [];
  let sampled = 0;
  const spans = row.spans.map(([length, source, step]) => {
    const start = tokens.length;
    for (let i = start; i < start + length; i++) {
      const [id, text] = DATA.tokens[row.tokens[i]];
      const token = { position: i, id, text, source, step, logprob: null, advantage: null };
      if (source === AGENT) {
        token.logprob = row.logprobs[sampled];
        token.advantage = advantages ? advantages[sampled] : null;
        sampled++;
      }
      tokens.push(token);
    }
    return { source, step, tokens: tokens.slice(start) };
  });
  return { spans, tokens };
}

const HAS_ADVANTAGES = ROWS.some((row) => row.advantages);
const LARGEST = ROWS.reduce((most, row) =>
  (row.advantages || []).reduce((inner, [value]) => Math.max(inner, Math.abs(value)), most), 0);
const HAS_LOGPROBS = ROWS.some((row) => row.logprobs.some((logprob) => logprob));

function outcome(episode) {
  if (episode.failure) return "failed";
  return episode.success ? "solved" : "unsolved";
}
const MARKS = { solved: "\u2713", unsolved: "\u2717", failed: "!" };
const OUTCOMES = { solved: "solved", unsolved: "not solved", failed: "failed" };
const sampledTokens = (episode) => episode.rows.reduce((n, row) => n + row.logprobs.length, 0);

function searchText(episode) {
  if (episode.searchable === undefined) {
    const words = episode.opening.map(([, text]) => DATA.texts[text]);
    words.push(episode.task_id, episode.failure || "", JSON.stringify([episode.spec, episode.extra]), JSON.stringify(episode.steps));
    for (const row of episode.rows) words.push(row.tokens.map((i) => DATA.tokens[i][1] || "").join(""));
    for (const step of episode.steps) if ("action" in step) words.push(DATA.texts[step.action], DATA.texts[step.observation]);
    episode.searchable = words.join("\n").toLowerCase();
  }
  return episode.searchable;
}

// ---- the list on the left

const SHOWN = { list: [], current: null, colour: HAS_ADVANTAGES ? "advantage" : "source" };
const FILTERS = {
  all: () => true,
  solved: (e) => outcome(e) === "solved",
  unsolved: (e) => outcome(e) === "unsolved",
  truncated: (e) => e.truncated,
  failed: (e) => outcome(e) === "failed",
};
// A failed episode has no reward; it goes last whichever way the others are sorted.
const byReward = (direction) => (a, b) =>
  (a.reward === null) - (b.reward === null) || direction * (a.reward - b.reward) || a.number - b.number;
const best = byReward(-1);
const ORDERS = {
  file: (a, b) => a.number - b.number,
  best,
  worst: byReward(1),
  group: (a, b) => (a.extra.step || 0) - (b.extra.step || 0) || a.spec.group - b.spec.group || best(a, b),
  long: (a, b) => sampledTokens(b) - sampledTokens(a) || a.number - b.number,
};

function drawList() {
  const words = $("search").value.toLowerCase();
  SHOWN.list = EPISODES.filter((e) => FILTERS[$("filter").value](e) && (!words || searchText(e).includes(words)))
    .sort(ORDERS[$("sort").value]);
  $("list").replaceChildren(...SHOWN.list.map(listEntry));
  const done = SHOWN.list.filter((e) => !e.failure);
  const solved = done.filter((e) => e.success).length;
  const mean = done.reduce((sum, e) => sum + e.reward, 0) / (done.length || 1);
  const share = done.length ? Math.round((100 * solved) / done.length) + "% solved, mean reward " + trim(mean) : "none finished";
  $("summary").textContent = count(SHOWN.list.length, "episode") + (SHOWN.list.length ? ": " + share : "");
  markCurrent();
}

function listEntry(episode) {
  const question = episode.opening.length ? DATA.texts[episode.opening.at(-1)[1]] : "";
  const button = el("button", outcome(episode),
    el("span", "mark", MARKS[outcome(episode)]),
    el("span", "task", episode.task_id || episode.spec.env_id, el("small", "", place(episode))),
    el("span", "reward", episode.failure ? "\u2013" : signed(episode.reward)),
    el("span", "question", question.slice(0, 160)));
  button.title = OUTCOMES[outcome(episode)] + ", " + count(episode.turns, "turn");
  button.addEventListener("click", () => { location.hash = episode.number; });
  const entry = el("li", "", button);
  entry.dataset.number = episode.number;
  return entry;
}

function place(episode) {
  const extra = Object.entries(episode.extra).filter(([, value]) => typeof value !== "object");
  return extra.map(([name, value]) => " \u00b7 " + name + " " + value).join("") + (episode.spec.member ? " \u00b7 attempt " + (episode.spec.member + 1) : "");
}

function markCurrent() {
  for (const entry of $("list").children) {
    const on = Number(entry.dataset.number) === SHOWN.current;
    entry.classList.toggle("current", on);
    if (on) entry.scrollIntoView({ block: "nearest" });
  }
}

// ---- one episode

function drawEpisode(number) {
  const episode = EPISODES[number];
  SHOWN.current = number;
  markCurrent();
  const rows = episode.rows.map(unpack);
  const parts = [head(episode), opening(episode, rows)];
  rows.forEach((row, i) => parts.push(...context(episode, row, i)));
  if (episode.failure) parts.push(el("p", "failure", episode.failure));
  $("episode").replaceChildren(...parts);
  $("episode").scrollTop = 0;
}

function head(episode) {
  const facts = el("dl");
  const fact = (name, value) => {
    if (value !== null && value !== undefined && value !== "") facts.append(el("div", "", el("dt", "", name), el("dd", "", value)));
  };
  const spec = episode.spec;
  const kwargs = JSON.stringify(spec.env_kwargs);
  const ending = episode.failure ? "failed" : episode.terminated ? "the task ended"
    : episode.truncated ? "cut off: out of " + (episode.truncation || "turns") : "unfinished";
  fact("environment", spec.env_id + (kwargs === "{}" ? "" : " " + kwargs));
  fact("task", episode.task_id);
  fact("seed", spec.seed + (spec.sampling_seed === null ? "" : ", sampling " + spec.sampling_seed));
  fact("group", spec.group + ", member " + spec.member);
  fact("end", ending);
  const summaries = episode.steps.length - episode.turns;
  fact("length", count(episode.turns, "turn") + (summaries ? ", " + summaries + (summaries > 1 ? " summaries" : " summary") : "")
    + ", " + count(sampledTokens(episode), "token") + " sampled");
  if (episode.rows.length > 1) fact("contexts", episode.rows.length + ", the longest of "
    + count(Math.max(...episode.rows.map((row) => row.tokens.length)), "token"));
  fact("time", trim(episode.seconds) + " s");
  fact("tools", episode.tools.join(", "));
  for (const [name, value] of Object.entries(episode.extra)) fact(name, typeof value === "object" ? JSON.stringify(value) : value);
  const title = el("h2", outcome(episode),
    el("span", "badge", MARKS[outcome(episode)] + " " + OUTCOMES[outcome(episode)]),
    el("span", "", episode.failure ? "no reward" : "reward " + signed(episode.reward)), terms(episode.reward_terms));
  return el("header", "", title, facts);
}

function terms(values) {
  const listed = Object.entries(values || {}).map(([name, value]) => el("span", value < 0 ? "term minus" : value > 0 ? "term plus" : "term",
    name + " " + signed(value)));
  return el("span", "terms", ...listed);
}

function opening(episode, rows) {
  const blocks = episode.opening.map(([role, text]) => block(role, role, el("div", "text", DATA.texts[text])));
  const prompt = rows.length ? promptTokens(rows[0]) : [];
  if (prompt.length && prompt[0].text !== null) {
    blocks.push(lazyDetails("the prompt as the model saw it (" + count(prompt.length, "token") + ")", () => tokenLine(prompt)));
  }
  return el("section", "opening", ...blocks);
}

function promptTokens(row) {
  const first = row.tokens.findIndex((token) => token.source === AGENT);
  return first < 0 ? row.tokens : row.tokens.slice(0, first);
}

function lazyDetails(summary, draw) {
  const details = el("details", "", el("summary", "", summary));
  details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(draw()); });
  return details;
}

function context(episode, row, i) {
  const parts = [];
  if (episode.rows.length > 1) {
    const sampled = row.tokens.reduce((n, token) => n + (token.source === AGENT), 0);
    parts.push(el("h3", "context", "context " + (i + 1) + " of " + episode.rows.length,
      el("small", "", count(row.tokens.length, "token") + ", " + sampled + " sampled")));
    if (i > 0) {
      // Rewritten for this context: what it quotes of earlier turns is no longer anybody's action.
      const prompt = promptTokens(row);
      const summary = "the prompt of this context (" + count(prompt.length, "token") + ")";
      parts.push(showsTokens({ tokens: prompt }) ? lazyDetails(summary, () => tokenLine(prompt)) : el("p", "note", summary));
    }
  }
  const first = row.spans.findIndex((span) => span.source === AGENT);
  let section = null;
  for (const span of first < 0 ? [] : row.spans.slice(first)) {
    if (span.source === AGENT) {
      section = turn(episode, span);
      parts.push(section);
    } else if (section) {
      const step = episode.steps[span.step];
      const text = step && "observation" in step ? el("div", "text", DATA.texts[step.observation]) : null;
      section.append(block("env", "world", text, showsTokens(span) ? tokenLine(span.tokens) : null));
    }
  }
  return parts;
}

const showsTokens = (span) => span.tokens.length > 0 && span.tokens[0].text !== null;

function turn(episode, span) {
  const step = episode.steps[span.step];
  const summary = step && step.kind === "summary";
  const title = summary ? "summary of the work so far" : "turn " + (step ? step.turn : span.step + 1);
  const section = el("section", summary ? "turn summary" : "turn", el("h3", "", title));
  if (step) {
    const notes = [];
    if (step.finish_reason === "length") notes.push("cut off at the token limit");
    if (step.finish_reason === "stop_string") notes.push("ended at a stop string");
    if (step.env_seconds !== null && !summary) notes.push("world took " + milliseconds(step.env_seconds));
    section.firstChild.append(el("span", "reward", signed(step.reward)), terms(step.reward_terms), el("small", "", notes.join(" \u00b7 ")));
  }
  const text = step && "action" in step ? el("div", "text", DATA.texts[step.action]) : null;
  section.append(block("agent", "policy", text, showsTokens(span) ? tokenLine(span.tokens) : null));
  if (step && step.tool_calls.length) section.append(el("ul", "calls", ...step.tool_calls.map(toolCall)));
  else if (step && step.error) section.append(el("p", "error", step.error));
  return section;
}

function toolCall(call) {
  const given = Object.entries(call.arguments || {}).map(([key, value]) => key + "=" + JSON.stringify(value)).join(", ");
  const shown = call.name ? call.name + "(" + given + ")" : "malformed call";
  return el("li", call.error ? "bad" : "", el("code", "", shown), el("small", "", (call.error ? "error \u00b7 " : "") + milliseconds(call.seconds)));
}

const milliseconds = (seconds) => seconds === null ? "?" : seconds < 0.001 ? "<1 ms" : seconds < 1
  ? trim(seconds * 1000) + " ms" : trim(seconds) + " s";

const block = (source, name, ...children) => el("div", "block " + source, el("b", "", name), el("div", "body", ...children));

// ---- tokens

function tokenLine(tokens) {
  return el("div", "tokens", ...tokens.map((token) => {
    // A line break is shown as a sign and then made, so that one can see which token holds it.
    const node = el("span", "token " + SOURCES[token.source], token.text.replaceAll("\n", "\u21b5\n") || "\u2205");
    node.token = token;
    paint(node);
    return node;
  }));
}

function paint(node) {
  const token = node.token;
  node.style.backgroundColor = "";
  if (token.source !== AGENT) return;
  if (SHOWN.colour === "advantage" && token.advantage !== null) {
    const strength = LARGEST ? Math.abs(token.advantage) / LARGEST : 0;
    node.style.backgroundColor = shade(token.advantage < 0 ? "minus" : "plus", strength);
  } else if (SHOWN.colour === "logprob" && token.logprob !== null) {
    node.style.backgroundColor = shade("surprise", 1 - Math.exp(token.logprob));
  }
}

// At most 70% of the colour, so that the text on top stays readable in both themes.
const shade = (name, strength) => "color-mix(in srgb, var(--" + name + ") " + Math.round(70 * strength) + "%, transparent)";

document.addEventListener("pointerover", (event) => {
  const node = event.target.closest ? event.target.closest(".token") : null;
  const tip = $("tip");
  tip.hidden = !node;
  if (!node) return;
  const { position, id, text, source, step, logprob, advantage } = node.token;
  const rows = [["token", JSON.stringify(text)], ["id", id], ["position", position], ["source", SOURCES[source]]];
  rows.push(["step", step < 0 ? "prompt" : step], ["in the loss", source === AGENT ? "yes" : "no"]);
  if (logprob !== null) rows.push(["logprob", logprob.toFixed(3) + " (p = " + trim(Math.exp(logprob)) + ")"]);
  if (advantage !== null) rows.push(["advantage", signed(advantage)]);
  tip.replaceChildren(el("dl", "", ...rows.flatMap(([name, value]) => [el("dt", "", name), el("dd", "", value)])));
  const at = node.getClientRects()[0];
  const left = Math.min(at.left, innerWidth - tip.offsetWidth - 8);
  const below = at.bottom + 6 + tip.offsetHeight < innerHeight;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = (below ? at.bottom + 6 : at.top - tip.offsetHeight - 6) + "px";
});

// ---- the legend, and how one gets around

function drawLegend() {
  const swatch = (name, text) => el("span", "", el("i", "swatch " + name), text);
  const parts = [
    el("span", "", el("span", "token agent sample", "underlined"), " sampled by the policy, in the loss"),
    swatch("env", "world"), swatch("user", "user"), swatch("system", "system"),
  ];
  const choices = [["source", "source"]];
  if (HAS_ADVANTAGES) choices.unshift(["advantage", "advantage"]);
  if (HAS_LOGPROBS) choices.push(["logprob", "surprise (1 \u2212 p)"]);
  if (choices.length > 1) {
    const select = el("select", "", ...choices.map(([value, name]) => Object.assign(el("option", "", name), { value })));
    select.value = SHOWN.colour;
    const scale = el("span", "scale");
    const explain = () => {
      const ends = { advantage: [signed(-LARGEST), "0", signed(LARGEST)], logprob: ["p = 1", "", "p = 0"] }[SHOWN.colour];
      scale.replaceChildren(...(ends ? [ends[0], el("i", "ramp " + SHOWN.colour), ends[2]] : []));
    };
    select.addEventListener("change", () => {
      SHOWN.colour = select.value;
      document.querySelectorAll("#episode .token").forEach(paint);
      explain();
    });
    explain();
    parts.push(el("label", "", "policy's tokens by ", select), scale);
  }
  $("legend").replaceChildren(...parts);
}

function fromHash() {
  const number = Number(location.hash.slice(1) || "NaN");
  if (number in EPISODES) drawEpisode(number);
  else if (SHOWN.list.length) drawEpisode(SHOWN.list[0].number);
}

document.addEventListener("keydown", (event) => {
  const by = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
  if (!by || /INPUT|SELECT/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
  const next = SHOWN.list[SHOWN.list.findIndex((e) => e.number === SHOWN.current) + by];
  // The arrow keys scroll the episode when it has the focus, and move through the list otherwise.
  if (next && (event.key.length === 1 || !event.target.closest("main"))) {
    event.preventDefault();
    location.hash = next.number;
  }
});
for (const id of ["search", "filter", "sort"]) $(id).addEventListener("input", drawList);
addEventListener("hashchange", fromHash);
$("title").textContent = DATA.title;
drawLegend();
drawList();
fromHash();
