"use strict";
// Shows what the server says about a visit, and sends back what is clicked. Texts of products are untrusted: they
// become text nodes and nothing else.
const $ = (id) => document.getElementById(id);
let visit = "";

async function ask(path, body) {
  const answer = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const content = await answer.json();
  if (answer.ok) show(content);
  else $("turns").textContent = content.detail;
}

// Marks that turn the direction of writing around (U+202E and the like) would show a text, and what follows, mirrored.
function plain(text) {
  return text.replace(/[\u202a-\u202e\u2066-\u2069]/g, (c) => "\u27e8U+" + c.charCodeAt(0).toString(16).toUpperCase() + "\u27e9");
}

const act = (name, argument) => ask("act", { visit, name, argument });

function tag(name, className, text, ...children) {
  const made = document.createElement(name);
  made.className = className;
  made.append(plain(text), ...children);
  return made;
}

function button(piece, className, ...children) {
  const made = tag("button", className, children.length ? "" : piece.text, ...children);
  made.type = "button";
  if (piece.kind === "option") made.setAttribute("aria-pressed", piece.chosen);
  made.addEventListener("click", () => act("click", piece.click));
  return made;
}

// Lays out the pieces of a page in their order: a product with the texts behind it is a card, options stand behind their
// name, buttons in a row.
function lay(pieces) {
  const parts = [];
  const inside = (className) => {
    if (!parts.length || parts.at(-1).className !== className) parts.push(tag("div", className, ""));
    return parts.at(-1);
  };
  pieces.forEach((piece, at) => {
    const next = pieces[at + 1], before = pieces.slice(0, at).findLast((one) => one.kind !== "text");
    if (piece.kind === "link" && piece.click !== null) {
      const end = pieces.findIndex((one, i) => i > at && one.kind !== "text");
      const [title, ...rest] = pieces.slice(at + 1, end < 0 ? undefined : end).map((one) => one.text);
      const card = [tag("span", "", title || ""), ...rest.map((text) => tag("b", "", text)), tag("small", "", piece.text)];
      inside("cards").append(button(piece, "card", ...card));
    } else if (piece.click !== null) {
      inside("row").append(button(piece, piece.text === "Buy Now" ? "buy" : ""));
    } else if (next && next.kind === "option") {
      parts.push(tag("div", "row", "", tag("span", "", piece.text)));
    } else if (piece.kind !== "text" || !before || before.kind !== "link") {
      const title = next && next.text.startsWith("Price: ");
      parts.push(tag(title ? "h2" : "p", piece.text.startsWith("Price: ") ? "price" : "", piece.text));
    }
  });
  return parts;
}

function row(name, value) {
  const line = document.createElement("tr");
  for (const text of [name, value]) line.appendChild(document.createElement("td")).textContent = text;
  return line;
}

function show(state) {
  visit = state.visit;
  $("instruction").replaceChildren("You want: ", tag("b", "", state.instruction));
  $("page").replaceChildren(...lay(state.pieces));
  const sum = state.earned.reduce((total, [, reward]) => total + reward, 0);
  $("turns").textContent = `${state.turns} of ${state.max_turns} turns, reward so far ${+sum.toFixed(4)}`;
  $("earned").replaceChildren(...state.earned.map(([action, reward]) => row(plain(action), String(+reward.toFixed(4)))));
  $("search").hidden = state.over;
  $("result").hidden = !state.over;
  $("score").textContent = `Your reward: ${state.score}`;
  $("parts").replaceChildren(...Object.entries(state.parts).map(([name, value]) => row(name, String(value))));
  document.body.dataset.page = state.page;
}

$("search").addEventListener("submit", (event) => { event.preventDefault(); act("search", $("keywords").value); });
$("new").addEventListener("click", () => ask("start", {}));
// The address may name the task: /?index=3, and what to do there, which makes a visit that can be passed on.
const asked = new URLSearchParams(location.search);
ask("start", asked.has("index") ? { index: Number(asked.get("index")) } : {}).then(async () => {
  for (const action of asked.getAll("act")) {
    const cut = action.indexOf(":");
    await act(action.slice(0, cut), action.slice(cut + 1));
  }
});
