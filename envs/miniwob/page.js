// Runs in each page before its own scripts: a clock that only turns move, and the page as text with numbered elements.
(() => {
  "use strict";
  localStorage.clear(); // of the last episode
  sessionStorage.clear();
  const START = Date.UTC(2017, 0, 2, 9);
  const real = { frame: window.requestAnimationFrame.bind(window), timeout: window.setTimeout.bind(window) };
  let now = START, lastJob = 0;
  const jobs = new Map();

  // Time. Timers, frames and dates follow `now`, so that a page does not depend on the load of the machine.
  const add = (run, after, every, args) => {
    jobs.set(++lastJob, { run, at: now + Math.max(Number(after) || 0, 1), every, args });
    return lastJob;
  };
  const drop = (job) => { jobs.delete(job); };
  window.setTimeout = (run, after, ...args) => add(run, after, 0, args);
  window.setInterval = (run, after, ...args) => add(run, after, Math.max(Number(after) || 0, 4), args);
  window.requestAnimationFrame = (run) => add(() => run(now - START), 16, 0, []);
  window.clearTimeout = window.clearInterval = window.cancelAnimationFrame = drop;
  performance.now = () => now - START;
  window.Date = new Proxy(Date, {
    construct: (target, args) => (args.length ? new target(...args) : new target(now)),
    apply: (target) => new target(now).toString(),
    get: (target, name) => (name === "now" ? () => now : target[name]),
  });
  function advance(milliseconds) {
    const end = now + milliseconds;
    for (let count = 0; count < 20000; count++) {
      let next = null;
      for (const [id, job] of jobs) if (job.at <= end && (!next || job.at < next[1].at)) next = [id, job];
      if (!next) break;
      const [id, job] = next;
      now = Math.max(now, job.at);
      if (job.every) job.at = now + job.every;
      else jobs.delete(id);
      try {
        if (typeof job.run === "function") job.run(...(job.args || []));
      } catch (error) {
        console.error(String(error)); // a page's own error ends none of its other timers
      }
    }
    now = end;
  }

  // Which elements a page listens to.
  const heard = new WeakSet();
  const listen = EventTarget.prototype.addEventListener;
  const KINDS = new Set(["click", "mousedown", "mouseup", "pointerdown", "dblclick", "touchstart", "mouseover", "mousemove"]);
  EventTarget.prototype.addEventListener = function (kind, ...rest) {
    if (this instanceof Element && this !== document.body && KINDS.has(kind)) heard.add(this);
    return listen.call(this, kind, ...rest);
  };

  const APART = new Set(["query", "reward-display", "sync-task-cover", "click-canvas"]);
  const NATIVE = new Set(["A", "BUTTON", "INPUT", "SELECT", "TEXTAREA", "OPTION", "SUMMARY"]);
  const SHAPES = new Set(["circle", "rect", "polygon", "path", "line", "ellipse", "text", "image", "polyline"]);
  const MARKED = /\bui-(draggable|droppable|sortable|sortable-handle|resizable-handle|slider-handle|spinner-button)\b/;
  const ROLES = { A: "link", BUTTON: "button", SELECT: "combobox", TEXTAREA: "textarea", IMG: "image", LI: "listitem", TD: "cell",
    TH: "cell", CANVAS: "canvas" };
  const INPUTS = { text: "textbox", password: "textbox", checkbox: "checkbox", radio: "radio", submit: "button",
    button: "button", range: "slider", number: "spinbutton", search: "textbox" };
  // CSS has two names for some; the page is described with the one that its instruction uses.
  const COLORS = { "0,0,0": "black", "255,255,255": "white", "255,0,0": "red", "0,128,0": "green", "0,255,0": "lime",
    "0,0,255": "blue", "255,255,0": "yellow", "255,165,0": "orange", "128,0,128": "purple", "255,192,203": "pink",
    "128,128,128": "grey gray", "0,255,255": "cyan aqua", "255,0,255": "magenta fuchsia", "165,42,42": "brown",
    "238,130,238": "violet", "128,128,0": "olive", "128,0,0": "maroon", "0,0,128": "navy", "192,192,192": "silver",
    "0,128,128": "teal", "255,215,0": "gold" };
  let numbers = new Map(), elements = [];

  const clean = (text) => (text || "").replace(/\s+/g, " ").trim();
  const quoted = (text) => JSON.stringify(text.length > 2000 ? text.slice(0, 2000) + "..." : text);
  const classes = (element) => String((element.className && element.className.baseVal) ?? element.className ?? "");
  const isShape = (element) => element instanceof SVGElement && SHAPES.has(element.tagName);
  function number(element) {
    if (!numbers.has(element)) {
      elements.push(element);
      numbers.set(element, elements.length);
    }
    return numbers.get(element);
  }
  function shown(element) {
    const style = getComputedStyle(element);
    if (style.display === "none" || style.visibility === "hidden" || Number(style.opacity) === 0) return false;
    const box = element.getBoundingClientRect();
    return box.width + box.height > 0 || element.childElementCount > 0;
  }
  const points = (element) => getComputedStyle(element).cursor === "pointer";
  function interactive(element) {
    if (NATIVE.has(element.tagName) || isShape(element) || element.tagName === "CANVAS" || element.tagName === "IMG") return true;
    const role = element.getAttribute("role");
    return heard.has(element) || element.onclick !== null && element.onclick !== undefined || element.isContentEditable ||
      element.hasAttribute("tabindex") || element.draggable || MARKED.test(classes(element)) ||
      ["button", "tab", "link", "option", "checkbox", "menuitem", "radio", "slider"].includes(role) ||
      points(element) && !(element.parentElement && points(element.parentElement)); // the cursor is inherited
  }
  const colorOf = (value) => {
    const parts = (value.match(/[\d.]+/g) || []).map(Number);
    if (parts.length < 3 || parts[3] === 0) return "";
    const triple = parts.slice(0, 3).join(",");
    const names = (COLORS[triple] || `rgb(${triple})`).split(" "), query = document.getElementById("query");
    return names.find((name) => query && query.textContent.includes(name)) || names[0];
  };
  function nameOf(element) {
    const label = element.labels && element.labels.length ? element.labels[0].textContent : "";
    const button = element.tagName === "INPUT" && ["submit", "button"].includes(element.type) ? element.value : "";
    const own = ["SELECT", "TEXTAREA", "INPUT"].includes(element.tagName) ? "" : element.textContent;
    const title = element.getAttribute("aria-label") || element.getAttribute("title") || element.getAttribute("alt");
    return clean(button || own || label || title || element.getAttribute("placeholder") || "");
  }
  // A line for people and models, and the same as fields.
  function describe(element) {
    const tag = element.tagName, style = getComputedStyle(element), kind = element.getAttribute("role");
    const role = isShape(element) ? tag : kind && kind !== "presentation" ? kind :
      tag === "INPUT" ? INPUTS[element.type] || element.type : ROLES[tag] || "element";
    const one = { number: number(element), role, name: nameOf(element), value: null, options: [], words: [], color: "", box: [] };
    const parts = [`[${one.number}]`, role];
    const field = ["INPUT", "TEXTAREA", "SELECT"].includes(tag), bare = !one.name && !field, shape = isShape(element);
    if (!one.name && element.type === "radio" && element.value !== "on") one.name = element.value;
    if (one.name) parts.push(quoted(one.name));
    if (tag === "INPUT" && ["checkbox", "radio"].includes(element.type)) one.words.push(element.checked ? "checked" : "unchecked");
    else if (tag === "SELECT") {
      one.value = [...element.selectedOptions].map((chosen) => clean(chosen.text)).join(", ");
      one.options = [...element.options].map((option) => clean(option.text));
    } else if (field && !["submit", "button"].includes(element.type)) one.value = element.value;
    else if (element.isContentEditable && !one.name) one.value = "";
    if (one.value !== null) parts.push(`value ${quoted(one.value)}`);
    if (one.options.length) parts.push(`options ${one.options.map(quoted).join(", ")}`);
    for (const [attribute, words] of [["aria-expanded", ["expanded", "collapsed"]], ["aria-selected", ["selected", ""]]]) {
      const state = element.getAttribute(attribute);
      if (state !== null && words[state === "true" ? 0 : 1]) one.words.push(words[state === "true" ? 0 : 1]);
    }
    if (element.disabled) one.words.push("disabled");
    if (document.activeElement === element) one.words.push("focused");
    parts.push(...one.words);
    const names = bare && !shape ? clean(classes(element)) || element.id : "";
    if (names) {
      parts.push(`class ${quoted(names)}`);
      one.words.push(...names.split(" "));
    }
    one.color = shape ? colorOf(style.fill) || colorOf(style.stroke) : bare && tag !== "IMG" ? colorOf(style.backgroundColor) : "";
    if (one.color) parts.push(`color ${one.color}`);
    if (shape || MARKED.test(classes(element)) || tag === "CANVAS") {
      const box = element.getBoundingClientRect();
      one.box = [box.left + box.width / 2, box.top + box.height / 2, box.width, box.height].map(Math.round);
      parts.push(`at ${one.box[0]},${one.box[1]} size ${one.box[2]}x${one.box[3]}`);
    }
    return { ...one, line: parts.join(" ") };
  }
  const holds = (element) => [...element.querySelectorAll("*")].some((one) => interactive(one) && shown(one));

  // One line for each numbered element, and one for each run of text between them.
  function lines() {
    const found = []; // texts, and the fields of elements
    let text = "";
    const flush = () => {
      if (clean(text)) found.push(clean(text));
      text = "";
    };
    const put = (element) => { flush(); found.push(describe(element)); };
    function walk(element, clickable) {
      for (const node of element.childNodes) {
        if (node instanceof Text) {
          text += node.data;
          continue;
        }
        if (!(node instanceof Element) || APART.has(node.id) || ["SCRIPT", "STYLE", "DEFS"].includes(node.tagName)) continue;
        if (!shown(node) || node.matches(".ui-dialog > .ui-resizable-handle")) continue;
        const style = getComputedStyle(node), block = !style.display.startsWith("inline");
        const own = interactive(node), native = ["BUTTON", "INPUT", "SELECT", "TEXTAREA", "CANVAS", "IMG"].includes(node.tagName);
        if (node.tagName === "LABEL" && node.control && shown(node.control)) {
          if (node.contains(node.control)) put(node.control); // a label elsewhere is in the name of its control
          continue;
        }
        const long = clean(node.textContent).length > 120;
        if (native || isShape(node) || own && !long && !holds(node)) {
          put(node);
          continue;
        }
        if (clickable && !node.childElementCount && clean(node.textContent)) {
          put(node);
          continue;
        }
        if (block) flush();
        if (block || node.tagName === "BR") text += " ";
        walk(node, clickable || own);
        if (block || node.tagName === "BR") flush();
      }
    }
    walk(document.body, false);
    flush();
    return found;
  }

  // The instruction; a color that it shows instead of naming it is a word in brackets.
  function asked() {
    const query = document.getElementById("query");
    if (!query) return "";
    const colored = [...query.querySelectorAll("*")].filter((one) => !clean(one.textContent) && shown(one));
    const names = colored.map((one) => [one, colorOf(getComputedStyle(one).backgroundColor)]).filter(([, name]) => name);
    const marks = names.map(([one, name]) => one.appendChild(document.createTextNode(` (${name}) `)));
    const text = clean(query.textContent);
    for (const mark of marks) mark.remove();
    return text;
  }

  const at = (n) => {
    const element = elements[n - 1];
    return element && element.isConnected && shown(element) ? element : null;
  };
  const tell = (element) => { for (const kind of ["input", "change"]) element.dispatchEvent(new Event(kind, { bubbles: true })); };
  const NO_TEXT = ["checkbox", "radio", "button", "submit", "file", "image", "reset"];
  const FORMS = { date: "2017-03-01", time: "09:30", color: "#ff0000" };
  function typed(element, n, text) {
    if (["BUTTON", "SELECT", "A"].includes(element.tagName) || element.tagName === "INPUT" && NO_TEXT.includes(element.type))
      return { error: `element ${n} takes no text` };
    if (!["date", "time", "range", "color", "datetime-local", "month", "week"].includes(element.type)) return {};
    element.value = text; // these have no text to type
    if (element.value !== text) return { error: `element ${n} is a field for a ${element.type}, such as ${FORMS[element.type] || 1}` };
    tell(element);
    return { done: true };
  }
  function chosen(element, n, option) {
    if (element.tagName !== "SELECT") return { error: `element ${n} has no options; click it` };
    const wanted = clean(option), names = [...element.options].map((one) => clean(one.text));
    const place = names.includes(wanted) ? names.indexOf(wanted) : [...element.options].findIndex((one) => one.value === wanted);
    if (place < 0) return { error: `element ${n} has no option ${quoted(wanted)}; it has: ${names.join(", ")}` };
    if (element.multiple) element.options[place].selected = true;
    else element.selectedIndex = place;
    tell(element);
    return {};
  }
  function scrolled(element, n, direction) {
    let box = element;
    while (box && box.scrollHeight <= box.clientHeight + 1) box = box.parentElement;
    if (!box) return { error: `element ${n} is in nothing that scrolls` };
    box.scrollTop += (direction === "down" ? 1 : -1) * Math.max(box.clientHeight - 20, 20);
    return {};
  }
  window.agentGym = {
    advance,
    // Two frames on the screen: after the first, images that the page wants have been asked for.
    settle: () => new Promise((done) => {
      real.timeout(done, 200); // where no frame comes
      real.frame(() => real.frame(() => real.timeout(done, 0)));
    }),
    start(seed) {
      core.EPISODE_MAX_TIME = 2 ** 31 - 1; // the longest timer there is, 24 days
      Math.seedrandom(seed);
      core.startEpisodeReal();
      numbers = new Map();
      elements = [];
      advance(50);
    },
    look() {
      return { done: WOB_DONE_GLOBAL, raw: WOB_RAW_REWARD_GLOBAL, asked: asked(), lines: WOB_DONE_GLOBAL ? [] : lines() };
    },
    // Make ready for what the mouse and the keyboard do next with an element: where to press, or an error for the policy.
    aim(n, deed, word) {
      const element = at(n);
      if (!element) return { error: `there is no element ${n} on the page now` };
      element.scrollIntoView({ block: "nearest", inline: "nearest", behavior: "instant" });
      const boxes = [...element.getClientRects()].filter((box) => box.width && box.height);
      const points = [...boxes, element.getBoundingClientRect()].map((box) => [box.left + box.width / 2, box.top + box.height / 2]);
      const free = points.find(([x, y]) => {
        const over = document.elementFromPoint(x, y);
        return over && (element.contains(over) || over.contains(element));
      });
      const [x, y] = free || points[0];
      return { x, y, ...(deed === "type" ? typed(element, n, word) : deed === "select" ? chosen(element, n, word) :
        deed === "scroll" ? scrolled(element, n, word) : {}) };
    },
    // Mark the text of a field that has the focus, so that typing replaces it.
    mark(n) {
      const element = at(n);
      if (!element || !(element.isContentEditable || ["TEXTAREA", "INPUT"].includes(element.tagName))) return;
      element.focus();
      if (element.select) element.select();
      else document.execCommand("selectAll");
    },
  };
})();
