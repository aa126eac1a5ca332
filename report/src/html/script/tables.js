// The tables of what is selected.

const ROWS = 100; // that are shown at first
/** @type {{ limit: number, sort: Record<string, { column: number, isDescending: boolean }>, rows: any[], shown: number, kind: Kind | null }} */
const tables = { limit: ROWS, sort: {}, rows: [], shown: 0, kind: null };

/**
 * @typedef {object} Column
 * @property {string} name
 * @property {(row: any) => any} value
 * @property {boolean} [isNumber]
 * @property {boolean} [isShare] Of `whole`, or of all ticks.
 * @property {() => number} [whole]
 * @property {(row: any) => string} [text] If it isn't just the value.
 * @property {(row: any) => string} [title]
 * @property {(row: any) => string} [interval]
 * @typedef {object} Kind
 * @property {() => any[]} rows
 * @property {Column[]} columns
 * @property {(row: any) => void} choose
 * @property {(row: any) => boolean} isSelected
 * @property {(row: any) => boolean} [isInert] Whether it can't be chosen.
 */

/** @type {(name: string, value: (row: any) => number) => Column} */
const number = (name, value) => ({ name, value, isNumber: true });
/** @type {(name: string, value: (row: any) => number) => Column} */
const share = (name, value) => ({ name, isNumber: true, isShare: true, value,
  text: (row) => percent(value(row), sums.total), title: (row) => `95 % confidence, if ticks are independent of each other: ${intervalText(value(row))}`, interval: (row) => intervalText(value(row)) });
/** @type {(count: number) => string} */
const intervalText = (count) => `${interval(Math.min(count, sums.total), sums.total).map((end) => (100 * end).toFixed(1)).join(" to ")} %`;
const modeColumns = MODES.map((mode, index) => number(mode, (row) => row.modes[index]));
const usual = isComparison ? changeColumns("", (row) => row.sides, "change")
  : [number("ticks", (row) => row.ticks), share("share", (row) => row.ticks), ...modeColumns];
const calls = isComparison ? [...changeColumns("self ", (row) => row.ownSides, "ownChange"), ...changeColumns("total ", (row) => row.totalSides, "totalChange")] : [number("self", (row) => row.own), share("self share", (row) => row.own),
  number("total", (row) => row.total), share("total share", (row) => row.total)];

// Each table: its rows, its columns, the first of which names the row, what choosing a row does, and whether a row is of what is selected.
/** @type {Record<string, Kind>} */
const KINDS = {
  function: {
    rows: () => sumFunctions(sums.stacks, (fn) => fn),
    columns: [{ name: "function", value: (row) => functions.name[row.key] }, ...calls,
      { name: "module", value: (row) => moduleName(row.key) },
      { name: "in", value: (row) => functions.kernel[row.key] ? "kernel" : "user" }],
    choose: (row) => {
      changeInPlace({ about: keyOf(row.key) }, () => drawSandwich(searched()));
      showFunction(row.key);
    },
    isSelected: (row) => row.key === selection?.fn,
  },
  module: {
    rows: () => sumFunctions(sums.stacks, moduleName),
    columns: [{ name: "module", value: (row) => row.key || NO_MODULE }, ...calls],
    choose: (row) => include("module", row.key || NO_MODULE),
    isSelected: (row) => selection !== null && selection.fn >= 0 && row.key === moduleName(selection.fn),
  },
  process: {
    rows: () => sums.process.sorted(),
    columns: [{ name: "process", value: (row) => processName(row.key) }, ...usual],
    choose: (row) => include("pid", row.key === OTHERS ? "" : processId(row.key)),
    isSelected: (row) => {
      const group = selectedGroup();
      return group !== null && row.key === { process: group, thread: processOf[group] }[state.group];
    },
  },
  thread: {
    rows: () => sums.thread.sorted(),
    columns: [{ name: "thread", value: (row) => threadName(row.key) }, ...usual,
      { name: "process", value: (row) => processName(processOf[row.key]) }],
    choose: (row) => { if (threads.tid[row.key] !== null) includeThread(row.key); },
    isSelected: (row) => state.group === "thread" && row.key === selectedGroup(),
  },
  vcpu: {
    rows: () => sums.vcpu.sorted(),
    columns: [{ name: "vCPU", value: (row) => `vCPU ${row.key}` }, ...usual],
    choose: (row) => include("vcpu", String(row.key)),
    isSelected: () => false,
  },
};

/** @type {() => HTMLTableElement} */
const tableElement = () => /** @type {any} */ (element("table"));

function setUpTables() {
  element("intervals").addEventListener("change", () => change({ intervals: element("intervals").checked ? "1" : "" }));
  element("more").addEventListener("click", () => {
    tables.limit *= 10;
    drawTables();
  });
}

function drawTables() {
  const kind = KINDS[state.tab];
  const sort = tables.sort[state.tab] ?? { column: 1, isDescending: true };
  const column = kind.columns[sort.column];
  const isHit = searched();
  /** @type {(a: any, b: any) => number} */
  const compare = (a, b) => column.isNumber ? column.value(a) - column.value(b) : column.value(a).localeCompare(column.value(b));
  let rows = kind.rows();
  if (isComparison) compareRows(rows);
  if (state.tab === "function" && isHit) rows = rows.filter((row) => isHit(functions.name[row.key]));
  if (state.tab === "exit" && isHit) rows = rows.filter((row) => isHit(reasonOf(row)));
  if (state.tab === "wait" && isHit) rows = rows.filter((row) => row.fn >= 0 && isHit(functions.name[row.fn]));
  /** @type {(a: any, b: any) => number} */
  const order = (a, b) => sort.isDescending ? compare(b, a) : compare(a, b);
  /** @type {(a: any, b: any) => number} */
  const byTotal = (a, b) => (b.total ?? 0) - (a.total ?? 0);
  rows.sort((a, b) => order(a, b) || byTotal(a, b));
  const shown = rows.slice(0, tables.limit);
  const head = make("tr", {}, ...kind.columns.map((other, index) => headOf(other, index, sort)));
  const body = shown.map((row) => rowOf(kind, row));
  element("table").replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
  Object.assign(tables, { kind, rows, shown: shown.length });
  markRow();
  element("more").hidden = shown.length === rows.length;
  element("shown").textContent = shown.length < rows.length ? `${shown.length} of ${rows.length} rows.` : `${rows.length} rows.`;
}

// Marks the row of what is selected, which is added at the end if it isn't among the rows that are shown.
function markRow() {
  const [body] = tableElement().tBodies;
  const { kind } = tables;
  if (!body || !kind || !TABLES.includes(state.tab)) return;
  while (body.rows.length > tables.shown) body.lastChild?.remove();
  const index = selection ? tables.rows.findIndex(kind.isSelected) : -1;
  if (index >= tables.shown) body.append(rowOf(kind, tables.rows[index]));
  const selected = body.rows[Math.min(index, tables.shown)];
  for (const row of body.rows) {
    row.classList.toggle("chosen", row === selected);
    if (row === selected) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  }
}

// Scrolls the table to the marked row.
function showRow() {
  const selected = /** @type {HTMLElement | null} */ (element("table").querySelector("tr.chosen"));
  if (!selected) return;
  const box = element("rows");
  // The head of the table stands still above the rows.
  const top = selected.offsetTop - (tableElement().tHead?.offsetHeight ?? 0);
  if (top < box.scrollTop || selected.offsetTop + selected.offsetHeight > box.scrollTop + box.clientHeight) box.scrollTop = top;
}

/** @type {(column: Column, index: number, sort: { column: number, isDescending: boolean }) => HTMLElement} */
function headOf(column, index, sort) {
  const head = make("th", { scope: "col", className: column.isNumber ? "n" : "" });
  const isSorted = index === sort.column;
  if (isSorted) head.setAttribute("aria-sort", sort.isDescending ? "descending" : "ascending");
  const onclick = () => {
    tables.sort[state.tab] = { column: index, isDescending: isSorted ? !sort.isDescending : column.isNumber === true };
    drawTables();
    tableElement().tHead?.rows[0].cells[index].querySelector("button")?.focus();
  };
  head.append(make("button", { type: "button", textContent: column.name, onclick }));
  return head;
}

/** @type {(kind: Kind, row: any) => HTMLElement} */
function rowOf(kind, row) {
  const cellsOfRow = kind.columns.map((column, index) => {
    const text = column.text ? column.text(row) : String(column.value(row));
    if (index === 0) {
      if (kind.isInert?.(row)) return make("th", { scope: "row", className: "name", textContent: text });
      return make("th", { scope: "row", className: "name" }, make("button", { type: "button", textContent: text, onclick: () => kind.choose(row) }));
    }
    const interval = state.intervals !== "" && column.interval ? `, ${column.interval(row)}` : "";
    const cell = make("td", { className: column.isNumber ? "n" : "", textContent: `${text}${interval}` });
    if (column.title) cell.title = column.title(row);
    if (column.isShare) {
      cell.classList.add("bar");
      const whole = column.whole ? column.whole() : sums.total;
      cell.style.setProperty("--share", whole > 0 ? `${100 * column.value(row) / whole}%` : "0%");
    }
    return cell;
  });
  return make("tr", {}, ...cellsOfRow);
}
