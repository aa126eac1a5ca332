// Sums of the selected ticks. All of them are exact.

// Which functions a text means: a part of their names, or a regular expression; null if that is none.
function matcher(text, isRegex) {
  if (!isRegex) {
    const wanted = text.toLowerCase();
    return (name) => name.toLowerCase().includes(wanted);
  }
  try {
    const pattern = new RegExp(text, "i");
    return (name) => pattern.test(name);
  } catch {
    return null;
  }
}

// 1 for the functions that are wanted.
const functionsWhere = (isWanted) => Uint8Array.from(functions.name, (name, fn) => isWanted(name, fn) ? 1 : 0);

// 1 for the nodes that have one of the functions on their stack.
function nodesWith(wanted) {
  const has = new Uint8Array(nodes.length);
  for (let node = 1; node < nodes.length; node++) has[node] = has[nodes.parent[node]] | wanted[nodes.fn[node]];
  return has;
}

// 1 for the nodes whose stacks are selected.
function selectedNodes() {
  const selected = new Uint8Array(nodes.length).fill(1);
  const restrict = (wanted, value) => {
    const has = nodesWith(wanted);
    for (let node = 0; node < nodes.length; node++) if (has[node] !== value) selected[node] = 0;
  };
  if (state.module !== "") restrict(functionsWhere((_, fn) => (moduleName(fn) || NO_MODULE) === state.module), 1);
  if (state.function !== "") {
    const isWanted = matcher(state.function, state.regex !== "");
    if (isWanted) restrict(functionsWhere(isWanted), 1);
  }
  state.only.forEach((key) => restrict(functionsWhere((_, fn) => keyOf(fn) === key), 1));
  state.hide.forEach((key) => restrict(functionsWhere((_, fn) => keyOf(fn) === key), 0));
  return selected;
}

// 1 for the threads that are selected.
const selectedThreads = () => Uint8Array.from(processOf, (process, thread) =>
  (state.pid === "" || processId(process) === state.pid) && (state.tid === "" || threadId(sameThread[thread]) === state.tid) ? 1 : 0);

// The numbers of the cells that all filters but that of time select.
function selectedCells() {
  const [byNode, byThread] = [selectedNodes(), selectedThreads()];
  const mode = state.mode === "" ? -1 : MODES.indexOf(state.mode);
  const vcpu = state.vcpu === "" ? -1 : Number(state.vcpu);
  const selected = [];
  for (let cell = 0; cell < cells.length; cell++) {
    if (byNode[cells.node[cell]] && byThread[cells.thread[cell]] && (mode < 0 || cells.mode[cell] === mode)
      && (vcpu < 0 || cells.vcpu[cell] === vcpu)) selected.push(cell);
  }
  return selected;
}

// Whether a cell is of what is compared with (0), or of what is compared (1).
const sideOf = (cell) => isComparison ? threads.recording[cells.thread[cell]] : 0;

// Ticks by the key of a cell and by mode.
class Sums {
  // By the recording, too, where two are compared.
  constructor() {
    this.rows = new Map();
  }

  row(key) {
    let row = this.rows.get(key);
    if (!row) {
      row = { key, ticks: 0, modes: [0, 0, 0, 0], sides: [0, 0], first: Infinity };
      this.rows.set(key, row);
    }
    return row;
  }

  add(key, cell) {
    const row = this.row(key);
    const ticks = cells.ticks[cell];
    row.ticks += ticks;
    row.modes[cells.mode[cell]] += ticks;
    row.sides[sideOf(cell)] += ticks;
    row.first = Math.min(row.first, cells.bin[cell]);
  }

  // The largest first.
  sorted() {
    return [...this.rows.values()].sort((a, b) => b.ticks - a.ticks);
  }
}

// Which group of the view a cell's thread is in.
const GROUPS = { process: (thread) => processOf[thread], thread: (thread) => sameThread[thread], merged: () => 0 };

// The selected ticks: their number, by process, thread, vCPU, and by group and node.
function sumUp() {
  const [begin, end] = selectedBins();
  const all = selectedCells();
  const sums = { total: 0, sides: [0, 0], all, process: new Sums(), thread: new Sums(), vcpu: new Sums(), mode: [0, 0, 0, 0], stacks: [] };
  const group = GROUPS[state.group];
  const stacks = new Map(); // by group, then by node
  for (const cell of all) {
    if (cells.bin[cell] < begin || cells.bin[cell] >= end) continue;
    const thread = cells.thread[cell];
    sums.total += cells.ticks[cell];
    sums.sides[sideOf(cell)] += cells.ticks[cell];
    sums.mode[cells.mode[cell]] += cells.ticks[cell];
    sums.process.add(processOf[thread], cell);
    sums.thread.add(sameThread[thread], cell);
    sums.vcpu.add(cells.vcpu[cell], cell);
    const key = group(thread);
    if (!stacks.has(key)) stacks.set(key, new Sums());
    stacks.get(key).add(cells.node[cell], cell);
  }
  for (const [key, byNode] of stacks) {
    for (const row of byNode.rows.values()) sums.stacks.push({ group: key, node: row.key, ticks: row.ticks, modes: row.modes, sides: row.sides, first: row.first });
  }
  sums.missed = missedTicks(begin, end);
  return sums;
}

// Stolen, lost and other ticks of the selected time and vCPU: whose they were isn't known.
function missedTicks(begin, end) {
  const parts = [0, 0, 0];
  for (const row of missed) {
    if (row.bin >= begin && row.bin < end && (state.vcpu === "" || String(row.vcpu) === state.vcpu)) {
      row.parts.forEach((part, index) => { parts[index] += part; });
    }
  }
  return parts;
}

const added = ([before, after], [one, other]) => [before + one, after + other];

// Self and total ticks by function, or by what `keyOfFunction` says of it: each tick once, however often it is on the stack.
function sumFunctions(stacks, keyOfFunction) {
  const byNode = new Map();
  for (const stack of stacks) {
    const sum = byNode.get(stack.node) ?? [0, 0];
    byNode.set(stack.node, isComparison ? added(sum, stack.sides) : [sum[0] + stack.ticks, 0]);
  }
  const rows = new Map();
  const row = (key) => {
    if (!rows.has(key)) rows.set(key, { key, ownSides: [0, 0], totalSides: [0, 0], seen: -1 });
    return rows.get(key);
  };
  for (const [leaf, sides] of byNode) {
    const own = row(keyOfFunction(nodes.fn[leaf]));
    own.ownSides = added(own.ownSides, sides);
    for (let node = leaf; node > 0; node = nodes.parent[node]) {
      const found = row(keyOfFunction(nodes.fn[node]));
      if (found.seen !== leaf) found.totalSides = added(found.totalSides, sides);
      found.seen = leaf;
    }
  }
  for (const found of rows.values()) {
    found.own = found.ownSides[0] + found.ownSides[1];
    found.total = found.totalSides[0] + found.totalSides[1];
  }
  return [...rows.values()];
}

// The selected ticks with a function on their stack that is searched for.
function countFound(sums, isHit) {
  const has = nodesWith(functionsWhere(isHit));
  return sums.stacks.reduce((found, stack) => has[stack.node]
    ? { ticks: found.ticks + stack.ticks, sides: added(found.sides, stack.sides) } : found, { ticks: 0, sides: [0, 0] });
}
