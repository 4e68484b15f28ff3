"use strict";
// Runs the page's script without a browser: just enough of a document to hold what the script draws, printed as text.
const fs = require("node:fs");
const vm = require("node:vm");

class Node {
  constructor(tag) { Object.assign(this, { tag, className: "", children: [], style: {}, dataset: {}, value: "", listeners: {} }); }
  get nodeType() { return 1; }
  get firstChild() { return this.children[0]; }
  set textContent(text) { this.children = [String(text)]; }
  get classList() { return { toggle() {} }; }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  scrollIntoView() {}
  lines(depth) {
    const texts = this.children.filter((child) => typeof child === "string").join("");
    const own = "  ".repeat(depth) + this.tag + (this.className ? "." + this.className.replaceAll(" ", ".") : "") + " " + JSON.stringify(texts);
    return [own, ...this.children.filter((child) => typeof child !== "string").flatMap((child) => child.lines(depth + 1))];
  }
}

const [, data, script] = /<script type="application\/json" id="data">([^]*?)<\/script>\s*<script>([^]*?)<\/script>/
  .exec(fs.readFileSync(process.argv[2], "utf8"));
const known = {};
const $ = (id) => known[id] ??= new Node(id);
Object.defineProperty($("data"), "textContent", { get: () => data });
$("filter").value = "all";
$("sort").value = "file";
const document = { getElementById: $, createElement: (tag) => new Node(tag), addEventListener() {}, querySelectorAll: () => [] };
const location = { hash: process.argv[3] ? "#" + process.argv[3] : "" };
vm.runInNewContext(script, { document, location, addEventListener() {}, innerWidth: 0, innerHeight: 0 });
// Folded parts are drawn when they are opened.
const open = (node) => {
  for (const child of node.children) if (typeof child !== "string") open(child);
  if (node.tag === "details") { node.open = true; node.listeners.toggle(); }
};
open($("episode"));
console.log($("episode").lines(0).join("\n"));
