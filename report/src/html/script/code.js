// The code of a function: its source lines and instructions with their ticks, where the page has them.

const codes = new Map(data.code.map((code) => [code.function, code]));
const openCode = new Set(); // the names of the lists that are open, for the next function too

// The function whose code a frame is in: what is inlined has none of its own.
function functionWithCode({ fn, frame, flames }) {
  if (!frame?.isInlined || state.view === "inverted" || flames === views.callers) return fn;
  let outer = frame;
  while (outer.parent && outer.isInlined) outer = outer.parent;
  return outer.fn;
}

function codeListsOf(selected) {
  const fn = functionWithCode(selected);
  const code = codes.get(fn);
  if (!code) return [];
  const whose = fn === selected.fn ? "it" : functions.name[fn];
  const note = `${ticksOf(code.ticks)} found the processor in ${whose}, in all that the page has: filters don't change these.`;
  const lists = [make("p", { className: "note", textContent: note })];
  if (code.source) lists.push(codeList("Source", code.source.file, () => sourceRows(code), code));
  lists.push(codeList("Instructions", "", () => instructionRows(code), code));
  return lists;
}

// A list that is made when it is opened.
function codeList(name, about, rows, code) {
  const list = make("details", { className: "code" }, make("summary", { textContent: about ? `${name}: ${about}` : name }));
  const fill = () => {
    const [head, ...body] = rows();
    const columns = make("tr", {}, ...head.map((text, index) => make("th", { scope: "col", className: index > 0 && index < 3 ? "n" : "", textContent: text })));
    const table = make("table", {}, make("thead", {}, columns), make("tbody", {}, ...body.map((row) => codeRow(row, code.ticks))));
    list.append(make("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": `${name}, ${functions.name[code.function]}` }, table));
  };
  if (openCode.has(name)) {
    list.open = true;
    fill();
  }
  list.addEventListener("toggle", () => {
    if (list.open) openCode.add(name);
    else openCode.delete(name);
    if (list.open && list.childElementCount === 1) fill();
  });
  return list;
}

function codeRow([place, ticks, ...texts], all) {
  const cell = make("td", { className: "n bar", textContent: ticks > 0 ? percent(ticks, all) : "" });
  cell.style.setProperty("--share", `${100 * ticks / Math.max(all, 1)}%`);
  return make("tr", {}, make("th", { scope: "row", textContent: place }), make("td", { className: "n", textContent: ticks > 0 ? ticks : "" }), cell,
    ...texts.map((text) => make("td", { className: "text", textContent: text })));
}

function sourceRows({ source }) {
  const rows = source.texts.map((text, index) => [source.first + index, source.ticksAt[index], text]);
  return [["line", "ticks", "share", "source"], ...rows];
}

function instructionRows(code) {
  const begin = BigInt(`0x${code.begin}`);
  const rows = code.texts.map((text, index) =>
    [`0x${(begin + BigInt(code.offsets[index])).toString(16)}`, code.ticksAt[index], text, code.names[code.places[index]] ?? ""]);
  return [["address", "ticks", "share", "instruction", "line"], ...rows];
}
