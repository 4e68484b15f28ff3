// Texts as people read them: tags and code set apart, thoughts and long answers folded.

const LONG = { characters: 900, lines: 14 };
const MOST_PARTS = 200; // of one text, so that a text of nothing but tags costs no more than another
const OPENS = /<([A-Za-z_][\w-]{0,30})>|```/g;

// Cuts a text into plain parts and parts between <tag> and </tag>, or between fences.
function cut(text) {
  const parts = [];
  const unclosed = new Set();
  let from = 0;
  OPENS.lastIndex = 0;
  for (let found = OPENS.exec(text); found && parts.length + unclosed.size < MOST_PARTS; found = OPENS.exec(text)) {
    const close = found[1] ? "</" + found[1] + ">" : "```";
    if (unclosed.has(close)) continue;
    const start = OPENS.lastIndex;
    const end = text.indexOf(close, start);
    if (end < 0) {
      unclosed.add(close);
      continue;
    }
    if (found.index > from) parts.push({ text: text.slice(from, found.index) });
    parts.push({ tag: found[1] || "code", text: text.slice(start, end) });
    from = OPENS.lastIndex = end + close.length;
  }
  if (from < text.length) parts.push({ text: text.slice(from) });
  return parts;
}

// Calls that stand below, as they were understood, are left out of the text.
function chatText(text, calls) {
  const parts = cut(text).filter((part) => part.tag || part.text.trim());
  const written = parts.filter((part) => part.tag === "tool_call");
  const named = written.length === calls.length && calls.every((call) => call.name);
  const shown = named ? parts.filter((part) => part.tag !== "tool_call") : parts;
  if (written.length && !shown.length) return null;
  return el("div", "text", ...shown.map(({ tag, text: inner }) => {
    if (!tag) return el("span", "", inner);
    if (/^think/.test(tag)) return fold(inner, tag, true);
    const body = el("span", "part", el("b", "tag", tag), el("code", "", inner.trim()));
    return inner.length > LONG.characters ? fold(inner, tag, false) : body;
  }), text ? null : el("i", "note", "nothing"));
}

function heard(text) {
  const long = text.length > LONG.characters || text.split("\n", LONG.lines + 1).length > LONG.lines;
  return long ? fold(text, "", false) : el("div", "text", text || el("i", "note", "nothing"));
}

function fold(text, name, open) {
  const start = text.trim().slice(0, 90).replace(/\s+/g, " ");
  const summary = el("summary", "", name ? el("b", "tag", name) : null, start + "\u2026 ", el("small", "", count(text.length, "character")));
  const details = el("details", "fold " + name, open ? el("summary", "", el("b", "tag", name)) : summary, el("div", "text", text));
  details.open = open;
  return details;
}

function toolCall(call) {
  const given = Object.entries(call.arguments || {}).map(([key, value]) => key + "=" + JSON.stringify(value)).join(", ");
  const shown = call.name ? call.name + "(" + given + ")" : "malformed call";
  return el("li", call.error ? "bad" : "", el("code", "", shown), el("small", "", (call.error ? "error \u00b7 " : "") + milliseconds(call.seconds)));
}
