// The code of a function: its source lines and instructions with their ticks, where the page has them.

/** @type {Map<number, CodeData>} */
let codes;
derive(() => { codes = new Map(data.code.map((code) => [code.function, code])); });

// The function whose code a frame is in: what is inlined has none of its own.
/** @type {(selected: Selected) => number} */
function functionWithCode({ fn, frame, flames }) {
  if (!frame?.isInlined || isFromCallees(flames)) return fn;
  let outer = frame;
  while (outer.parent && outer.isInlined) outer = outer.parent;
  return outer.fn;
}

let drawnCode = -1; // the function that was drawn last

// Draws the code of the function that the address names, else of the one with the most ticks in it. Where it `wasShown` already, it stays where it was scrolled to.
/** @param {boolean} wasShown */
function drawCode(wasShown) {
  const fn = functionOfKey(state.about);
  const code = codes.get(fn ?? -1) ?? data.code[0];
  const name = functions.name[code.function];
  const note = `${ticksOf(code.ticks)} found the processor in ${name}, in all that the page has: filters don't change these.`;
  const choose = make("select", { onchange: (/** @type {any} */ event) => change({ about: keyOf(Number(event.target.value)) }) },
    ...data.code.map((other) => make("option", { value: other.function, textContent: `${functions.name[other.function]} (${ticksOf(other.ticks)})` })));
  choose.value = String(code.function);
  const missing = fn !== undefined && fn !== code.function ? [make("p", { className: "warning", textContent: `The page has no code of ${functions.name[fn]}.` })] : [];
  const kept = wasShown && code.function === drawnCode ? [...element("code").querySelectorAll(".scrolled")].map((box) => box.scrollTop) : [];
  drawnCode = code.function;
  const lists = make("div", { className: "lists" });
  if (code.source) lists.append(codeList("Source", code.source.file, sourceRows(code.source), code));
  lists.append(codeList("Instructions", "", instructionRows(code), code));
  element("code").replaceChildren(make("p", {}, make("label", {}, "Function ", choose)), ...missing, make("p", { className: "note", textContent: note }), lists);
  lists.querySelectorAll(".scrolled").forEach((box, index) => {
    const rows = /** @type {HTMLElement[]} */ ([...box.querySelectorAll("tbody tr")]);
    const most = rows.reduce((most, row) => Number(row.dataset.ticks) > Number(most?.dataset.ticks ?? 0) ? row : most, /** @type {HTMLElement | null} */ (null));
    if (most) box.scrollTop = kept[index] ?? most.offsetTop - box.clientHeight / 2;
  });
}

/** @typedef {[place: string | number, ticks: number | string, ...texts: string[]][]} CodeRows */
/** @type {(name: string, about: string, rows: CodeRows, code: CodeData) => HTMLElement} */
function codeList(name, about, [head, ...body], code) {
  const columns = make("tr", {}, ...head.map((text, index) => make("th", { scope: "col", className: index > 0 && index < 3 ? "n" : "", textContent: text })));
  const table = make("table", {}, make("thead", {}, columns), make("tbody", {}, ...body.map((row) => codeRow(row, code.ticks))));
  return make("section", {}, make("h2", { textContent: about ? `${name}: ${about}` : name }),
    make("div", { className: "scrolled", tabIndex: 0, role: "region", "aria-label": `${name}, ${functions.name[code.function]}` }, table));
}

/** @type {(row: CodeRows[number], all: number) => HTMLElement} */
function codeRow([place, count, ...texts], all) {
  const ticks = Number(count);
  const cell = make("td", { className: "n bar", textContent: ticks > 0 ? percent(ticks, all) : "" });
  cell.style.setProperty("--share", `${100 * ticks / Math.max(all, 1)}%`);
  const row = make("tr", {}, make("th", { scope: "row", textContent: place }), make("td", { className: "n", textContent: ticks > 0 ? ticks : "" }), cell,
    ...texts.map((text) => make("td", { className: "text", textContent: text })));
  row.dataset.ticks = String(ticks);
  return row;
}

/** @type {(source: NonNullable<CodeData["source"]>) => CodeRows} */
function sourceRows(source) {
  /** @type {CodeRows} */
  const rows = source.texts.map((text, index) => [source.first + index, source.ticksAt[index], text]);
  return [["line", "ticks", "share", "source"], ...rows];
}

/** @type {(code: CodeData) => CodeRows} */
function instructionRows(code) {
  const begin = BigInt(`0x${code.begin}`);
  /** @type {CodeRows} */
  const rows = code.texts.map((text, index) =>
    [`0x${(begin + BigInt(code.offsets[index])).toString(16)}`, code.ticksAt[index], text, code.names[code.places[index]] ?? ""]);
  return [["address", "ticks", "share", "instruction", "line"], ...rows];
}
