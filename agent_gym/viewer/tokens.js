// Tokens: their colours, what they tell when pointed at, and the legend.

const COLOURS = {
  source: ["source", true],
  mask: ["mask", true],
  logprob: ["surprise (1 \u2212 p)", HAS.logprobs],
  advantage: ["advantage", HAS.advantages],
  value: ["value", HAS.values],
};

function tokenLine(tokens) {
  const line = el("div", "tokens", ...tokens.map((token) => {
    // A line break is shown as a sign and then made, so that one can see which token holds it.
    const node = el("span", "token " + SOURCES[token.source], token.text.replaceAll("\n", "\u21b5\n") || "\u2205");
    node.token = token;
    paint(node);
    return node;
  }));
  line.tabIndex = 0;
  line.role = "group";
  line.ariaLabel = count(tokens.length, "token");
  return line;
}

function paint(node) {
  node.style.backgroundColor = colourOf(node.token);
}

function colourOf(token) {
  const { colour } = SHOWN;
  if (colour === "source") return shade(SOURCES[token.source], 0.25);
  if (colour === "mask") return token.trained ? shade("trained", 0.6) : "";
  if (colour === "logprob") return token.logprob === null ? "" : shade("surprise", 1 - Math.exp(token.logprob));
  const value = token[colour + "s"];
  const scale = LARGEST[colour + "s"];
  return value === null ? "" : shade(value < 0 ? "minus" : "plus", scale ? Math.abs(value) / scale : 0);
}

// At most 70% of the colour, so that the text on top stays readable in both themes.
const shade = (name, strength) => "color-mix(in srgb, var(--" + name + ") " + Math.round(70 * strength) + "%, transparent)";

function setColour(name) {
  if (!COLOURS[name][1]) return;
  SHOWN.colour = name;
  document.querySelectorAll("#episode .token").forEach(paint);
  drawLegend();
}

function drawLegend() {
  const swatch = (name, text) => el("span", "key", el("i", "swatch " + name), text);
  const select = el("select", "", ...Object.entries(COLOURS).map(([value, [name, there]], i) =>
    Object.assign(option(value, i + 1 + "  " + name), { disabled: !there })));
  select.value = SHOWN.colour;
  select.ariaLabel = "colour the tokens by";
  select.addEventListener("change", () => { setColour(select.value); $("legend").firstChild.firstChild.focus(); });
  const ramp = (from, name, to) => [el("span", "key", from, el("i", "ramp " + name), to)];
  const ends = (name) => ramp(signed(-LARGEST[name]), "signed", signed(LARGEST[name]));
  const keys = {
    source: () => SOURCES.map((source) => swatch(source, source === "agent" ? "policy" : source === "env" ? "world" : source)),
    mask: () => [swatch("trained", "in the loss"), el("span", "key", "the rest is not")],
    logprob: () => ramp("p = 1", "surprise", "p = 0"),
    advantage: () => ends("advantages"),
    value: () => ends("values"),
  }[SHOWN.colour]();
  const chosen = SHOWN.tokens ? [el("label", "", select), el("span", "key", el("span", "token agent sample", "underlined"), "\u00a0sampled"), ...keys] : [];
  $("legend").replaceChildren(...chosen);
}

// ---- what a token tells

function tell(node) {
  const tip = $("tip");
  tip.hidden = !node;
  document.querySelectorAll(".token.selected").forEach((other) => other.classList.remove("selected"));
  if (!node) return;
  node.classList.add("selected");
  const { position, id, text, source, step, trained, logprob, advantages, values, versions } = node.token;
  const rows = [["token", JSON.stringify(text)], ["id", id], ["position", position], ["source", SOURCES[source]]];
  rows.push(["step", step < 0 ? "prompt" : step], ["in the loss", trained ? "yes" : "no"]);
  if (logprob !== null) rows.push(["logprob", logprob.toFixed(3) + " (p = " + trim(Math.exp(logprob)) + ")"]);
  if (advantages !== null) rows.push(["advantage", signed(advantages)]);
  if (values !== null) rows.push(["value", signed(values)]);
  if (versions !== null) rows.push(["weights", "after step " + versions]);
  tip.replaceChildren(el("dl", "", ...rows.flatMap(([name, value]) => [el("dt", "", name), el("dd", "", value)])));
  const at = node.getClientRects()[0];
  const left = Math.min(at.left, innerWidth - tip.offsetWidth - 8);
  const below = at.bottom + 6 + tip.offsetHeight < innerHeight;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = Math.max(4, below ? at.bottom + 6 : at.top - tip.offsetHeight - 6) + "px";
}

const tokenAt = (target) => target.closest ? target.closest("#episode .token") : null;
document.addEventListener("pointerover", (event) => tell(tokenAt(event.target)));
document.addEventListener("focusout", () => tell(null));

// The arrow keys walk along a line of tokens. Returns whether the key was one of them.
function walkTokens(event) {
  const line = event.target.closest ? event.target.closest(".tokens") : null;
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!line || !by) return false;
  const tokens = [...line.children];
  const next = tokens[tokens.findIndex((token) => token.classList.contains("selected")) + by] || tokens[by > 0 ? 0 : tokens.length - 1];
  next.scrollIntoView({ block: "nearest" });
  tell(next);
  return true;
}
