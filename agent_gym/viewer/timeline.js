// The rewards of an episode over its steps: terms as stacked bars, process rewards as a mark, the sum so far as a line.

const PALETTE = 6; // colours of the style sheet; further terms begin anew
const HEIGHT = 64;

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// What a step earned, by name; a reward without terms is a term of its own.
function earned(step) {
  const terms = Object.entries(step.reward_terms || {}).filter(([, value]) => value);
  return terms.length || !step.reward ? terms : [["reward", step.reward]];
}

// A term has the same colour in every episode.
const TERMS = [...new Set(EPISODES.flatMap((episode) => episode.steps.flatMap((step) => earned(step).map(([name]) => name))))];
const termClass = (name) => "term" + (TERMS.indexOf(name) % PALETTE);

function timeline(episode) {
  const { steps } = episode;
  const names = [...new Set(steps.flatMap((step) => earned(step).map(([name]) => name)))];
  if (!names.length) return null;
  let sum = 0;
  const sums = steps.map((step) => (sum += step.reward || 0));
  const parts = steps.map((step) => [1, -1].map((sign) =>
    earned(step).reduce((total, [, value]) => total + (value * sign > 0 ? value : 0), 0)));
  const high = Math.max(0, ...sums, ...parts.map(([up]) => up));
  const low = Math.min(0, ...sums, ...parts.map(([, down]) => down));
  const y = (value) => 4 + ((high - value) / (high - low || 1)) * (HEIGHT - 8);
  const wide = Math.max(8, Math.min(34, 640 / steps.length));
  const middle = (i) => (i + 0.5) * wide;
  const drawn = steps.map((step, i) => bars(step, i, wide, y));
  const line = svg("polyline", { class: "sum", points: sums.map((value, i) => middle(i) + "," + y(value)).join(" ") });
  const width = wide * steps.length;
  const words = steps.map((step, i) => (step.turn ? "turn " + step.turn : "summary") + " " + signed(step.reward) + ", sum " + signed(sums[i]));
  const picture = svg("svg", { width, height: HEIGHT, viewBox: "0 0 " + width + " " + HEIGHT, role: "img", "aria-label": "rewards: " + words.join("; ") },
    svg("line", { class: "zero", x1: 0, x2: width, y1: y(0), y2: y(0) }), ...drawn, line,
    ...sums.map((value, i) => svg("circle", { class: "sum", cx: middle(i), cy: y(value), r: 2 })));
  const key = names.map((name) => el("span", "key", el("i", "swatch " + termClass(name)), name));
  key.push(el("span", "key", el("i", "swatch line"), "sum so far"));
  if (steps.some((step) => step.process_reward)) key.push(el("span", "key", el("i", "swatch diamond"), "process reward"));
  return el("figure", "timeline", el("div", "scroll", picture), el("figcaption", "", "rewards by step", ...key));
}

function bars(step, i, wide, y) {
  const ends = [0, 0]; // of the stacks above and below zero
  const group = svg("g", { class: "bar" });
  const lines = [step.turn ? "turn " + step.turn : "summary"];
  for (const [name, value] of earned(step)) {
    const side = value > 0 ? 0 : 1;
    const from = ends[side];
    ends[side] += value;
    const top = Math.min(y(from), y(ends[side]));
    const height = Math.max(1, Math.abs(y(from) - y(ends[side])));
    group.append(svg("rect", { class: termClass(name), x: i * wide + wide * 0.2, width: wide * 0.6, y: top, height }));
    lines.push(name + " " + signed(value));
  }
  if (step.process_reward) {
    const [x, at] = [(i + 0.5) * wide, y(step.process_reward)];
    group.append(svg("path", { class: "process", d: "M" + x + " " + (at - 4) + "l4 4l-4 4l-4 -4z" }));
    lines.push("process reward " + signed(step.process_reward));
  }
  group.append(svg("rect", { class: "reach", x: i * wide, width: wide, y: 0, height: HEIGHT }), svg("title", {}, lines.join("\n")));
  group.addEventListener("click", (event) => {
    const turns = event.target.closest(".column").querySelectorAll(".turn");
    if (turns[i]) turns[i].scrollIntoView({ behavior: "smooth" });
  });
  return group;
}
