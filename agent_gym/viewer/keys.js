// Getting around: keys, buttons, addresses. Runs last, and starts the page.

const stop = (event) => { event.preventDefault(); return true; };
const go = (number) => { location.hash = number; };

function move(by) {
  const next = SHOWN.list[SHOWN.list.findIndex((entry) => holds(entry, SHOWN.current)) + by];
  if (next) go(first(next).number);
}

function showTokens(on) {
  SHOWN.tokens = on;
  $("view").ariaPressed = String(on);
  $("view").textContent = on ? "show chat" : "show tokens";
  drawLegend();
  if (SHOWN.current !== null) drawEpisode(SHOWN.current);
}

function showPairs(on) {
  SHOWN.compare = on && RUNS.length > 1;
  $("compare").ariaPressed = String(SHOWN.compare);
  const choices = Object.entries(SHOWN.compare ? { ...FILTERS, differ: DIFFER } : FILTERS);
  const chosen = $("filter").value;
  $("filter").replaceChildren(...choices.map(([value, [name]]) => option(value, name)));
  $("filter").value = choices.some(([value]) => value === chosen) ? chosen : "all";
  drawList();
  if (SHOWN.current !== null) drawEpisode(SHOWN.current);
}

function escape() {
  if (!$("tip").hidden) tell(null);
  else if ($("search").value) { $("search").value = ""; drawList(); $("search").blur(); }
  else if (document.activeElement === $("search")) $("search").blur();
  else if (getComputedStyle($("back")).display !== "none") location.hash = "";
  return true;
}

const KEYS = {
  j: ["next episode", () => move(1)],
  k: ["previous episode", () => move(-1)],
  "/": ["search", () => { location.hash = getComputedStyle($("back")).display === "none" ? location.hash : ""; $("search").focus(); }],
  t: ["chat or tokens", () => showTokens(!SHOWN.tokens)],
  c: ["runs side by side, or one by one", () => showPairs(!SHOWN.compare)],
  "?": ["these keys", () => $("help").showModal()],
  Escape: ["close, clear the search, back to the list", escape],
};
Object.keys(COLOURS).forEach((name, i) => {
  KEYS[i + 1] = ["tokens by " + COLOURS[name][0] + (COLOURS[name][1] ? "" : " (not in this file)"), () => {
    if (!COLOURS[name][1]) return;
    SHOWN.colour = name;
    showTokens(true);
  }];
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (walkTokens(event)) return stop(event);
  if (/INPUT|SELECT/.test(event.target.tagName) && event.key !== "Escape") return;
  // The arrow keys scroll the episode when it has the focus, and move through the list otherwise.
  const arrow = { ArrowDown: "j", ArrowUp: "k" }[event.key];
  const known = KEYS[arrow && !event.target.closest("#reading") ? arrow : event.key];
  if (known) { stop(event); known[1](); }
});

function fromHash() {
  const number = Number(location.hash.slice(1) || "NaN");
  const known = number in EPISODES;
  // On a narrow screen there is room for the list or for an episode.
  document.body.classList.toggle("reading", known);
  if (known) drawEpisode(number);
  else if (SHOWN.list.length) drawEpisode(first(SHOWN.list.find(better) || SHOWN.list[0]).number);
  else $("episode").replaceChildren(el("p", "note", "there is no episode to show"));
}

for (const id of ["search", "filter", "sort"]) $(id).addEventListener("input", drawList);
$("back").addEventListener("click", () => { location.hash = ""; });
$("view").addEventListener("click", () => showTokens(!SHOWN.tokens));
$("compare").addEventListener("click", () => showPairs(!SHOWN.compare));
$("ask").addEventListener("click", () => $("help").showModal());
addEventListener("hashchange", fromHash);
$("title").textContent = plain(DATA.title);
$("keys").append(...Object.entries(KEYS).flatMap(([key, [what]]) => [el("dt", "", el("kbd", "", key)), el("dd", "", what)]));
$("controls").append(...FACETS.map(({ select }) => select));
$("compare").hidden = RUNS.length < 2;
$("sort").value = "file";
drawLegend();
showPairs(RUNS.length === 2);
fromHash();
