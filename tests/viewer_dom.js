"use strict";
// Runs the page's script without a browser: just enough of a document to hold what the script draws, printed as text.
const fs = require("node:fs");
const vm = require("node:vm");

class Node {
  constructor(tag) {
    const own = { className: "", children: [], style: {}, dataset: {}, value: "", listeners: {}, hidden: true };
    Object.assign(this, { tag, tagName: tag.toUpperCase(), ...own });
  }
  get nodeType() { return 1; }
  get firstChild() { return this.children[0]; }
  set textContent(text) { this.children = [String(text)]; }
  get classList() { return { toggle() {} }; }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  setAttribute() {}
  scrollIntoView() {}
  closest() { return null; }
  querySelectorAll() { return []; }
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
const document = Object.assign(new Node("document"), {
  getElementById: $, createElement: (tag) => new Node(tag), createElementNS: (space, tag) => new Node(tag), body: new Node("body"),
});
class IntersectionObserver { observe() {} disconnect() {} }  // nothing is scrolled here
vm.runInNewContext(script, { document, IntersectionObserver, location: { hash: "" }, addEventListener() {}, innerWidth: 0, innerHeight: 0 });
// The keys named on the command line are pressed.
for (const key of process.argv.slice(3)) document.listeners.keydown({ key, target: document, preventDefault() {} });
// Folded parts are drawn when they are opened.
const open = (node) => {
  for (const child of node.children) if (typeof child !== "string") open(child);
  if (node.tag === "details") { node.open = true; node.listeners.toggle?.(); }
};
open($("episode"));
console.log($("episode").lines(0).join("\n"));
