// The tables of what is selected.

const ROWS = 100; // that are shown at first
const tables = { limit: ROWS, sort: {}, rows: [], shown: 0, kind: null };

const number = (name, value) => ({ name, value, isNumber: true });
const share = (name, value) => ({ name, isNumber: true, isShare: true, value,
  text: (row) => percent(value(row), sums.total), title: (row) => `95 % confidence, if ticks are independent of each other: ${intervalText(value(row))}`, interval: (row) => intervalText(value(row)) });
const intervalText = (count) => `${interval(Math.min(count, sums.total), sums.total).map((end) => (100 * end).toFixed(1)).join(" to ")} %`;
const modeColumns = MODES.map((mode, index) => number(mode, (row) => row.modes[index]));
const usual = isComparison ? changeColumns("", (row) => row.sides, "change")
  : [number("ticks", (row) => row.ticks), share("share", (row) => row.ticks), ...modeColumns];
const calls = isComparison ? [...changeColumns("self ", (row) => row.ownSides, "ownChange"), ...changeColumns("total ", (row) => row.totalSides, "totalChange")] : [number("self", (row) => row.own), share("self share", (row) => row.own),
  number("total", (row) => row.total), share("total share", (row) => row.total)];

// Each table: its rows, its columns, the first of which names the row, what choosing a row does, and whether a row is of what is selected.
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
    isSelected: (row) => row.key === selection.fn,
  },
  module: {
    rows: () => sumFunctions(sums.stacks, moduleName),
    columns: [{ name: "module", value: (row) => row.key || NO_MODULE }, ...calls],
    choose: (row) => include("module", row.key || NO_MODULE),
    isSelected: (row) => selection.fn >= 0 && row.key === moduleName(selection.fn),
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

function setUpTables() {
  element("intervals").addEventListener("change", (event) => change({ intervals: event.target.checked ? "1" : "" }));
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
  const compare = (a, b) => column.isNumber ? column.value(a) - column.value(b) : column.value(a).localeCompare(column.value(b));
  let rows = kind.rows();
  if (isComparison) compareRows(rows);
  if (state.tab === "function" && isHit) rows = rows.filter((row) => isHit(functions.name[row.key]));
  const order = sort.isDescending ? (a, b) => compare(b, a) : compare;
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
  const body = element("table").tBodies[0];
  if (!body || !TABLES.includes(state.tab)) return;
  while (body.rows.length > tables.shown) body.lastChild.remove();
  const index = selection ? tables.rows.findIndex(tables.kind.isSelected) : -1;
  if (index >= tables.shown) body.append(rowOf(tables.kind, tables.rows[index]));
  const selected = body.rows[Math.min(index, tables.shown)];
  for (const row of body.rows) {
    row.classList.toggle("chosen", row === selected);
    if (row === selected) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  }
}

// Scrolls the table to the marked row.
function showRow() {
  const selected = element("table").querySelector("tr.chosen");
  if (!selected) return;
  const box = element("rows");
  // The head of the table stands still above the rows.
  const top = selected.offsetTop - element("table").tHead.offsetHeight;
  if (top < box.scrollTop || selected.offsetTop + selected.offsetHeight > box.scrollTop + box.clientHeight) box.scrollTop = top;
}

function headOf(column, index, sort) {
  const head = make("th", { scope: "col", className: column.isNumber ? "n" : "" });
  const isSorted = index === sort.column;
  if (isSorted) head.setAttribute("aria-sort", sort.isDescending ? "descending" : "ascending");
  const onclick = () => {
    tables.sort[state.tab] = { column: index, isDescending: isSorted ? !sort.isDescending : column.isNumber === true };
    drawTables();
    element("table").tHead.rows[0].cells[index].firstChild.focus();
  };
  head.append(make("button", { type: "button", textContent: column.name, onclick }));
  return head;
}

function rowOf(kind, row) {
  const cellsOfRow = kind.columns.map((column, index) => {
    const text = column.text ? column.text(row) : String(column.value(row));
    if (index === 0) {
      return make("th", { scope: "row", className: "name" }, make("button", { type: "button", textContent: text, onclick: () => kind.choose(row) }));
    }
    const isWide = state.intervals !== "" && column.interval;
    const cell = make("td", { className: column.isNumber ? "n" : "", textContent: isWide ? `${text}, ${column.interval(row)}` : text });
    if (column.title) cell.title = column.title(row);
    if (column.isShare) {
      cell.classList.add("bar");
      cell.style.setProperty("--share", sums.total > 0 ? `${100 * column.value(row) / sums.total}%` : "0%");
    }
    return cell;
  });
  return make("tr", {}, ...cellsOfRow);
}
