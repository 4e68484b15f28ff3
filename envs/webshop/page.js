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

function element(piece) {
  if (piece.click === null) {
    const text = document.createElement("span");
    text.className = "text";
    text.textContent = plain(piece.text);
    return text;
  }
  const button = document.createElement("button");
  button.type = "button";
  button.className = piece.kind;
  button.textContent = plain(piece.text);
  button.setAttribute("aria-pressed", piece.chosen);
  button.addEventListener("click", () => act("click", piece.click));
  return button;
}

function row(name, value) {
  const line = document.createElement("tr");
  for (const text of [name, value]) line.appendChild(document.createElement("td")).textContent = text;
  return line;
}

function show(state) {
  visit = state.visit;
  $("instruction").textContent = plain(state.instruction);
  $("page").replaceChildren(...state.pieces.map(element));
  $("turns").textContent = `${state.turns} of ${state.max_turns} turns`;
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
