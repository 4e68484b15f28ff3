"use strict";
// The data of the page, unpacked: episodes, their tokens and texts. Every word a model wrote reaches the document as a
// text node, never as markup.
const DATA = JSON.parse(document.getElementById("data").textContent);
const SOURCES = ["system", "user", "agent", "env"];
const AGENT = 2;
const $ = (id) => document.getElementById(id);

function el(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children.filter((child) => child !== null && child !== undefined).map((c) => c.nodeType ? c : plain(c)));
  return node;
}

// Marks that turn the direction of writing around (U+202E and the like) would show a text, and what follows, mirrored.
function plain(text) {
  return String(text).replace(/[\u202a-\u202e\u2066-\u2069]/g, (c) => "\u27e8U+" + c.charCodeAt(0).toString(16).toUpperCase() + "\u27e9");
}

const trim = (x) => x === null ? "?" : Number(x.toPrecision(3)).toString();
const signed = (x) => x === null ? "?" : (x < 0 ? "\u2212" : x > 0 ? "+" : "") + trim(Math.abs(x));
const count = (n, noun) => n + " " + noun + (n === 1 ? "" : "s");
const milliseconds = (seconds) => seconds === null ? "?" : seconds < 0.001 ? "<1 ms" : seconds < 1
  ? trim(seconds * 1000) + " ms" : trim(seconds) + " s";

const EPISODES = DATA.episodes.map((episode, number) => {
  // Summaries are steps, but no turns: the environment takes no part in them.
  let turns = 0;
  for (const step of episode.steps) step.turn = step.kind === "act" ? ++turns : null;
  return { ...episode, number, turns };
});
const ROWS = EPISODES.flatMap((episode) => episode.rows);
const RUNS = DATA.runs;

// What is stored as [value, how often] pairs, one entry per sampled token.
const PER_TOKEN = ["advantages", "values", "versions"];
const has = (name) => ROWS.some((row) => row[name]);
const largest = (name) => ROWS.reduce((most, row) =>
  (row[name] || []).reduce((inner, [value]) => Math.max(inner, Math.abs(value)), most), 0);
const HAS = { advantages: has("advantages"), values: has("values"), logprobs: ROWS.some((row) => row.logprobs.some((x) => x)) };
const LARGEST = { advantages: largest("advantages"), values: largest("values") };

function unpack(row) {
  // One object per token, so only for the episode that is looked at: a file may hold millions of tokens.
  const given = {};
  for (const name of PER_TOKEN) given[name] = row[name] ? row[name].flatMap(([value, n]) => Array(n).fill(value)) : null;
  const tokens = [];
  let sampled = 0;
  const spans = row.spans.map(([length, source, step]) => {
    const start = tokens.length;
    for (let i = start; i < start + length; i++) {
      const [id, text] = DATA.tokens[row.tokens[i]];
      const token = { position: i, id, text, source, step, trained: false, logprob: null, advantages: null, values: null, versions: null };
      if (source === AGENT) {
        token.logprob = row.logprobs[sampled];
        // An episode that was left out of the update has no advantages where others have them.
        token.trained = !HAS.advantages || row.advantages !== undefined;
        for (const name of PER_TOKEN) token[name] = given[name] ? given[name][sampled] ?? null : null;
        sampled++;
      }
      tokens.push(token);
    }
    return { source, step, tokens: tokens.slice(start) };
  });
  return { spans, tokens };
}

const stepText = (episode, number, name) => DATA.texts[episode.steps[number][name]];

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
    words.push(episode.task_id, episode.failure || "", JSON.stringify([episode.spec, episode.extra]));
    words.push(JSON.stringify(episode.steps));
    for (let k = 0; k < episode.steps.length; k++) words.push(stepText(episode, k, "action"), stepText(episode, k, "observation"));
    episode.searchable = words.join("\n").toLowerCase();
  }
  return episode.searchable;
}

// Attempts at the same task, of all runs: the k-th attempt of one run stands next to the k-th of the others.
function pairs() {
  const found = new Map();
  const seen = new Map();
  for (const episode of EPISODES) {
    const { env_id, split, index, seed } = episode.spec;
    const task = JSON.stringify([env_id, split, episode.task_id || [index, seed]]);
    const attempt = seen.get(episode.run + task) || 0;
    seen.set(episode.run + task, attempt + 1);
    const key = attempt + task;
    if (!found.has(key)) found.set(key, RUNS.map(() => null));
    found.get(key)[episode.run] = episode;
  }
  return [...found.values()];
}
