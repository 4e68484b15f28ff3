// WebShop's pages as people expect a shop. All is read off the world's text, in either of its two forms, and off the
// calls; the exact text stays below. What reads as no page of the shop is shown as any other text.

const BUTTON = /^( *)\[((?:clicked )?)button\] (.*) \[\2button_\]$/; // of "text_rich"; only options are indented
const PRODUCT = /^[A-Z0-9]{10}$/;
// In "text" nothing tells names of options from their values. The first is a name, and so are these.
const OPTION = /^(colou?r|flavou?r|length|(?:shoe |window )?size|model|pack|pattern|scent|style|(?:fit|material) type|.* name)$/;

function readPage(text) {
  const rich = !text.includes(" [SEP] ");
  const pieces = text.split(rich ? "\n" : " [SEP] ").filter((piece) => piece.trim()).map((piece) => {
    const [, indent, chosen, name] = (rich && BUTTON.exec(piece)) || [];
    return { text: (name || piece).trim(), chosen: Boolean(chosen), option: Boolean(indent) };
  });
  const at = pieces.findIndex((piece) => piece.text === "Instruction:");
  const shown = pieces.slice(at + 2);
  const texts = shown.map((piece) => piece.text);
  if (pieces.length && pieces[0].text === "Thank you for shopping with us!") {
    return { kind: "done", score: texts[texts.findIndex((one) => one.startsWith("Your score")) + 1] };
  }
  if (at < 0 || !["Search", "Back to Search"].includes(texts[0])) return null;
  const page = { instruction: pieces[at + 1].text, buttons: texts.filter((one) => ["Back to Search", "< Prev", "Next >"].includes(one)) };
  if (texts[0] === "Search") return { ...page, kind: "index" };
  if (/^Page \d+ /.test(texts[1])) return { ...page, kind: "results", found: texts[1], products: products(texts.slice(2)) };
  const price = texts.findIndex((one) => one.startsWith("Price: "));
  if (price < 0) return { ...page, kind: "details", texts: texts.slice(2) };
  const buttons = [...page.buttons, ...texts.slice(price + 2)];
  return { ...page, kind: "item", buttons, title: texts[price - 1], price: texts[price].slice(7), options: options(shown.slice(2, price - 1), rich) };
}

function products(texts) {
  const found = [];
  for (const text of texts) {
    if (PRODUCT.test(text)) found.push([text]);
    else if (found.length) found.at(-1).push(text);
  }
  return found;
}

function options(pieces, rich) {
  const groups = [];
  for (const piece of pieces) {
    if (!groups.length || (rich ? !piece.option : OPTION.test(piece.text))) groups.push({ name: piece.text, values: [] });
    else groups.at(-1).values.push(piece);
  }
  return groups;
}

// The pages of an episode, one for each step, with what was searched for and chosen before. Options stay chosen until
// the next page of results.
function shopPages(episode) {
  if (episode.shop) return episode.shop;
  let visit = { query: "", chosen: {} };
  episode.shop = episode.steps.map((step, k) => {
    const page = readPage(stepText(episode, k, "observation"));
    if (!page) return null;
    if (page.kind === "index") visit = { query: "", chosen: {} };
    for (const call of step.tool_calls.filter((one) => !one.error)) {
      const given = String(Object.values(call.arguments || {})[0]).trim().toLowerCase();
      if (call.name === "search") visit = { query: given, chosen: {} };
      for (const { name, values } of page.options || []) {
        if (values.some((value) => value.text === given)) visit = { ...visit, chosen: { ...visit.chosen, [name]: given } };
      }
    }
    if (page.kind === "results") visit = { ...visit, chosen: {} };
    if (page.kind === "item") visit = { ...visit, product: page };
    return { ...page, visit, next: nextClick(episode.steps[k + 1]) };
  });
  return episode.shop;
}

const nextClick = (step) => step && step.tool_calls.length ? String((step.tool_calls[0].arguments || {}).element).toLowerCase() : "";

function shopText(text, page) {
  return page ? [drawPage(page), fold(text, "exact", false)] : [heard(text)];
}

function drawPage({ visit = { query: "", chosen: {} }, next = "", ...page }) {
  const piece = (tag, className, text, ...parts) => text.toLowerCase() === next
    ? el(tag, className + " next", ...parts, el("small", "", "clicked next")) : el(tag, className, ...parts);
  const options = (name, values) => el("p", "options", el("small", "", name), ...values.map(({ text, chosen }) =>
    piece("span", chosen || visit.chosen[name] === text ? "press chosen" : "press", text, text)));
  if (page.kind === "done") {
    const { title, price } = visit.product || {};
    const chosen = Object.entries(visit.chosen).map(([name, text]) => options(name, [{ text }]));
    return el("div", "shop", el("b", "", "Thank you for shopping with us!"), title ? el("p", "", title + ", " + price) : null,
      ...chosen, el("p", "", "score " + page.score));
  }
  const shown = {
    index: () => [],
    results: () => [el("small", "", page.found), el("ul", "", ...page.products.map(([id, title, price]) =>
      piece("li", "", id, el("span", "", title), el("b", "", price), el("small", "", id))))],
    item: () => [el("b", "", page.title), el("p", "", page.price), ...page.options.map(({ name, values }) => options(name, values))],
    details: () => [el("div", "text", page.texts.join("\n") || el("i", "note", "nothing"))],
  }[page.kind]();
  const buttons = page.buttons.map((text) => piece("span", text === "Buy Now" ? "press buy" : "press", text, text));
  return el("div", "shop", el("p", "wish", page.instruction),
    el("p", "query", el("span", "", visit.query || "\u00a0"), el("span", "press", "Search")), ...shown,
    buttons.length ? el("p", "options", ...buttons) : null);
}
