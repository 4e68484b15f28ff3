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
  const most = DIFF.test(text) ? { characters: 6 * LONG.characters, lines: 6 * LONG.lines } : LONG;
  const long = text.length > most.characters || text.split("\n", most.lines + 1).length > most.lines;
  return long ? fold(text, "", false) : diffText(text) || el("div", "text", text || el("i", "note", "nothing"));
}

function fold(text, name, open) {
  const start = text.trim().slice(0, 90).replace(/\s+/g, " ");
  const summary = el("summary", "", name ? el("b", "tag", name) : null, start + "\u2026 ", el("small", "", count(text.length, "character")));
  const details = el("details", "fold " + name, open ? el("summary", "", el("b", "tag", name)) : summary, diffText(text) || el("div", "text", text));
  details.open = open;
  return details;
}

function toolCall(call) {
  const { parts, hidden } = longArguments(call.arguments || {});
  const given = Object.entries(call.arguments || {}).map(([key, value]) => key + "=" + (hidden.has(key) ? "\u2026" : JSON.stringify(value)));
  const shown = call.name ? call.name + "(" + given.join(", ") + ")" : "malformed call";
  const line = el("li", call.error ? "bad" : "", el("code", "", shown), el("small", "", (call.error ? "error \u00b7 " : "") + milliseconds(call.seconds)));
  return parts.length ? [line, el("li", "given", ...parts)] : [line];
}
