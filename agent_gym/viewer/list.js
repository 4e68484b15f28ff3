// The list on the left. An entry is one episode, or, where runs are compared, the attempts of all runs at one task.

const SHOWN = { list: [], drawn: 0, current: null, colour: HAS.advantages ? "advantage" : "source", tokens: false, compare: false };

const some = (name) => (entry) => entry.some((e) => e && outcome(e) === name);
const played = (entry) => entry.filter((e) => e);
const first = (entry) => played(entry)[0];
const FILTERS = {
  all: ["all episodes", () => true],
  solved: ["solved", some("solved")],
  unsolved: ["not solved", some("unsolved")],
  truncated: ["cut off", (entry) => entry.some((e) => e && e.truncated)],
  failed: ["failed (environment broke)", some("failed")],
};
const DIFFER = ["runs differ", (entry) => new Set(entry.map((e) => e && outcome(e))).size > 1];
// Where two runs are compared, the page opens on what the second has learned.
const better = ([one, other]) => SHOWN.compare && one && other && !one.success && other.success;

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

// What episodes differ in: a menu for each property that takes a few values.
const MOST_CHOICES = 60;
function facets() {
  const properties = { run: (e) => RUNS[e.run], environment: (e) => e.spec.env_id, split: (e) => e.spec.split };
  for (const episode of EPISODES) {
    for (const [name, value] of Object.entries(episode.extra)) {
      if (typeof value !== "object" && !(name in properties)) properties[name] = (e) => e.extra[name];
    }
    for (const name of Object.keys(episode.extra.categories || {})) {
      if (!(name in properties)) properties[name] = (e) => (e.extra.categories || {})[name];
    }
  }
  const known = [];
  for (const [name, of] of Object.entries(properties)) {
    const values = [...new Set(EPISODES.map(of))].filter((value) => value !== null && value !== undefined);
    if (values.length < 2 || values.length > MOST_CHOICES) continue;
    values.sort((a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a) < String(b) ? -1 : 1);
    const select = el("select", "", option("", "any " + name), ...values.map((value) => option(value, name + ": " + value)));
    select.ariaLabel = name;
    select.addEventListener("input", drawList);
    known.push({ of, select });
  }
  return known;
}
const option = (value, text) => Object.assign(el("option", "", text), { value: String(value) });
const FACETS = facets();

function drawList() {
  const words = $("search").value.toLowerCase();
  const [, passes] = { ...FILTERS, differ: DIFFER }[$("filter").value] || FILTERS.all;
  const wanted = (e) => (!words || searchText(e).includes(words))
    && FACETS.every(({ of, select }) => !select.value || String(of(e)) === select.value);
  const order = ORDERS[$("sort").value];
  const all = SHOWN.compare ? pairs() : EPISODES.map((e) => [e]);
  SHOWN.list = all.filter((entry) => passes(entry) && played(entry).some(wanted)).sort((a, b) => order(first(a), first(b)));
  SHOWN.drawn = 0;
  $("list").replaceChildren();
  drawMore();
  $("summary").textContent = plain(SHOWN.compare
    ? count(SHOWN.list.length, "task") + RUNS.map((name, run) => "; " + name + ": " + share(SHOWN.list.map((entry) => entry[run]))).join("")
    : count(SHOWN.list.length, "episode") + (SHOWN.list.length ? ": " + share(SHOWN.list.map(first)) : ""));
  markCurrent();
}

// Thousands of entries take seconds to lay out: the next ones are drawn when the last of these comes into sight.
const CHUNK = 200;
const more = new IntersectionObserver((seen) => { if (seen.some((one) => one.isIntersecting)) drawMore(); });

function drawMore(until = SHOWN.drawn + CHUNK) {
  more.disconnect();
  $("list").append(...SHOWN.list.slice(SHOWN.drawn, until).map(listEntry));
  SHOWN.drawn = Math.min(until, SHOWN.list.length);
  if (SHOWN.drawn < SHOWN.list.length) more.observe($("list").lastChild);
}

function share(episodes) {
  const done = episodes.filter((e) => e && !e.failure);
  if (!done.length) return "none finished";
  const solved = done.filter((e) => e.success).length;
  return Math.round((100 * solved) / done.length) + "% solved, mean reward " + trim(done.reduce((sum, e) => sum + e.reward, 0) / done.length);
}

function listEntry(entry) {
  const episode = first(entry);
  const question = episode.opening.length ? DATA.texts[episode.opening.at(-1)[1]] : "";
  const mark = (e) => e ? el("span", "mark " + outcome(e), MARKS[outcome(e)]) : el("span", "mark", "\u2013");
  const reward = (e) => e && !e.failure ? signed(e.reward) : "\u2013";
  const button = el("button", "",
    el("span", "marks", ...entry.map(mark)),
    el("span", "task", episode.task_id || episode.spec.env_id, SHOWN.compare ? null : el("small", "", place(episode))),
    el("span", "reward", entry.map(reward).join(" | ")),
    el("span", "question", question.slice(0, 160)));
  button.title = played(entry).map((e) => OUTCOMES[outcome(e)] + ", " + count(e.turns, "turn")).join(" | ");
  button.addEventListener("click", () => go(episode.number));
  const node = el("li", "", button);
  node.entry = entry;
  return node;
}

function place(episode) {
  const extra = Object.entries(episode.extra).filter(([, value]) => typeof value !== "object");
  const run = RUNS.length > 1 ? " \u00b7 " + RUNS[episode.run] : "";
  return run + extra.map(([name, value]) => " \u00b7 " + name + " " + value).join("")
    + (episode.spec.member ? " \u00b7 attempt " + (episode.spec.member + 1) : "");
}

const holds = (entry, number) => entry.some((e) => e && e.number === number);

function markCurrent() {
  const at = SHOWN.list.findIndex((entry) => holds(entry, SHOWN.current));
  if (at >= SHOWN.drawn) drawMore(at + CHUNK);
  for (const node of $("list").children) {
    const on = holds(node.entry, SHOWN.current);
    node.classList.toggle("current", on);
    node.firstChild.ariaCurrent = on ? "true" : null;
    if (on) node.scrollIntoView({ block: "nearest" });
  }
}
