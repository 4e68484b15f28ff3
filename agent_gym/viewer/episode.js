// One episode, or the attempts of several runs at one task in columns: what happened, as a chat or as tokens.

function drawEpisode(number) {
  SHOWN.current = number;
  const entry = SHOWN.list.find((e) => holds(e, number)) || [EPISODES[number]];
  markCurrent();
  const columns = SHOWN.compare ? entry : [EPISODES[number]];
  $("episode").replaceChildren(...columns.map((episode, run) => episode ? column(episode)
    : el("section", "column", el("h2", "", RUNS[run]), el("p", "note", "this task was not played in this run"))));
  $("episode").classList.toggle("columns", columns.length > 1);
  $("episode").scrollTop = 0;
  tell(null);
}

function column(episode) {
  const rows = episode.rows.map(unpack);
  const parts = [head(episode), timeline(episode), ...opening(episode, rows)];
  rows.forEach((row, i) => parts.push(...context(episode, row, i)));
  if (episode.failure) parts.push(el("p", "failure", episode.failure));
  if (episode.failure_details) parts.push(el("pre", "failure", episode.failure_details.traceback));
  return el("section", "column", ...parts);
}

function head(episode) {
  const facts = el("dl");
  const fact = (name, value) => {
    if (value !== null && value !== undefined && value !== "") facts.append(el("div", "", el("dt", "", name), el("dd", "", value)));
  };
  const { spec } = episode;
  const kwargs = JSON.stringify(spec.env_kwargs);
  const ending = episode.failure ? "failed" : episode.terminated ? "the task ended"
    : episode.truncated ? "cut off: out of " + (episode.truncation || "turns") : "unfinished";
  fact("run", RUNS.length > 1 ? RUNS[episode.run] : "");
  fact("environment", spec.env_id + (kwargs === "{}" ? "" : " " + kwargs));
  fact("split", spec.split);
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
  const { categories, ...extra } = episode.extra;
  for (const [name, value] of Object.entries({ ...categories, ...extra })) fact(name, typeof value === "object" ? JSON.stringify(value) : value);
  const title = el("h2", outcome(episode),
    el("span", "badge", MARKS[outcome(episode)] + " " + OUTCOMES[outcome(episode)]),
    el("span", "", episode.failure ? "no reward" : "reward " + signed(episode.reward)), terms(episode.reward_terms));
  return el("header", "", title, facts);
}

function terms(values) {
  return el("span", "terms", ...Object.entries(values || {}).map(([name, value]) =>
    el("span", value < 0 ? "term minus" : value > 0 ? "term plus" : "term", name + " " + signed(value))));
}

const showsTokens = (tokens) => SHOWN.tokens && tokens.length > 0 && tokens[0].text !== null;
const block = (source, name, ...children) => el("div", "block " + source, el("b", "", name), el("div", "body", ...children));

function opening(episode, rows) {
  const prompt = rows.length ? promptTokens(rows[0]) : [];
  if (showsTokens(prompt)) return [block("system", "prompt", tokenLine(prompt))];
  return episode.opening.map(([role, text, images]) => block(role, role, ...withPictures(DATA.texts[text], readPage(DATA.texts[text]), images)));
}

// The mark of an image that is shown says nothing more; others that are in the text stay.
function withPictures(text, page, images) {
  const words = (images || []).reduce((left) => left.replace(/<image>\n?/, ""), text);
  return [...(words || !images ? shopText(words, page) : []), ...pictures(images)];
}

// The page loads nothing: an image is in its data or is not shown.
function pictures(numbers) {
  return (numbers || []).map((number) => {
    const picture = el("img", "shown");
    picture.src = DATA.images[number];
    picture.alt = "image";
    return picture;
  });
}

function promptTokens(row) {
  const start = row.tokens.findIndex((token) => token.source === AGENT);
  return start < 0 ? row.tokens : row.tokens.slice(0, start);
}

// Drawn when it is opened: a long prompt is thousands of nodes.
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
      // Rewritten for this context: what it quotes of earlier turns is no action here.
      const prompt = promptTokens(row);
      const summary = "the prompt of this context (" + count(prompt.length, "token") + ")";
      const draw = () => SHOWN.tokens ? tokenLine(prompt) : el("div", "text", prompt.map((token) => token.text).join(""));
      parts.push(prompt.length && prompt[0].text !== null ? lazyDetails(summary, draw) : el("p", "note", summary));
    }
  }
  episode.steps.forEach((step, k) => { if (step.row === i) parts.push(turn(episode, row, k)); });
  return parts;
}

function turn(episode, row, number) {
  const step = episode.steps[number];
  const summary = step.kind === "summary";
  const sum = episode.steps.slice(0, number + 1).reduce((total, { reward }) => total + (reward || 0), 0);
  const notes = [];
  if (step.finish_reason === "length") notes.push("cut off at the token limit");
  if (step.finish_reason === "stop_string") notes.push("ended at a stop string");
  if (step.env_seconds !== null && !summary) notes.push("world took " + milliseconds(step.env_seconds));
  const section = el("section", summary ? "turn summary" : "turn",
    el("h3", "", summary ? "summary of the work so far" : "turn " + step.turn,
      el("span", "reward", signed(step.reward)), el("small", "", "so far " + signed(Number(sum.toFixed(9)))), terms(step.reward_terms), el("small", "", notes.join(" \u00b7 "))));
  const tokens = (own) => row.spans.filter((span) => span.step === number && (span.source === AGENT) === own).flatMap((span) => span.tokens);
  const action = tokens(true);
  const text = stepText(episode, number, "action");
  // Where a character is spread over tokens, these alone do not show it.
  const spelled = typeof step.action !== "number";
  section.append(block("agent", "policy", showsTokens(action) ? tokenLine(action) : null,
    showsTokens(action) ? (spelled ? null : el("div", "text", text)) : chatText(text, step.tool_calls)));
  if (step.tool_calls.length) section.append(el("ul", "calls", ...step.tool_calls.flatMap(toolCall)));
  else if (step.error) section.append(el("p", "error", step.error));
  const answer = tokens(false);
  const heardText = stepText(episode, number, "observation");
  if (showsTokens(answer)) section.append(block("env", "world", tokenLine(answer)));
  else if (heardText && !summary) section.append(block("env", "world", ...withPictures(heardText, shopPages(episode)[number], step.images)));
  return section;
}
