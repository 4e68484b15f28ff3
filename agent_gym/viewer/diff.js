// Changes of files as people read them: removed and added lines in colour, and long arguments of a call line by line.

const DIFF = /^(diff --git |@@ -\d|--- \S[^\n]*\n\+\+\+ )/m;

const KINDS_OF_LINES = { "+": "added", "-": "removed", "@": "hunk" };
const diffLine = (line, kind) => el("span", kind || "", line + "\n");
const linesOf = (text) => text.replace(/\n$/, "").split("\n");

function kindOfLine(line, before, after) {
  const head = /^(diff --git |index )/.test(line) || (line.startsWith("--- ") && after.startsWith("+++ "))
    || (line.startsWith("+++ ") && before.startsWith("--- "));
  return head ? "file" : KINDS_OF_LINES[line[0]];
}

// Lines before the first head of a difference may begin with a dash for other reasons.
function diffText(text) {
  const at = text.search(DIFF);
  if (at < 0) return null;
  const lines = linesOf(text.slice(at));
  const drawn = lines.map((line, i) => diffLine(line, kindOfLine(line, lines[i - 1] || "", lines[i + 1] || "")));
  return el("div", "text", text.slice(0, at), el("code", "diff", ...drawn));
}

const marked = (text, sign) => linesOf(text).map((line) => diffLine(sign + line, KINDS_OF_LINES[sign]));

// What a call was given: short values in its line, texts of several lines below it. An edit that names the old text and
// the new one is shown as a difference.
function longArguments(given) {
  const long = Object.entries(given).filter(([, value]) => typeof value === "string" && value.includes("\n"));
  const edit = ["old", "old_str", "old_string"].find((name) => typeof given[name] === "string" && given[name]);
  const by = edit && ["text", "new_str", "new_string", "new"].find((name) => typeof given[name] === "string");
  const parts = edit && by ? [el("code", "diff", ...marked(given[edit], "-"), ...(given[by] ? marked(given[by], "+") : []))] : [];
  const left = parts.length ? long.filter(([name]) => name !== edit && name !== by) : long;
  parts.push(...left.map(([, value]) => heard(value)));
  return { parts, hidden: new Set([...left.map(([name]) => name), ...(parts.length > left.length ? [edit, by] : [])]) };
}
