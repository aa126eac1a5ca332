// Sums of the selected ticks. All of them are exact.

// Which functions a text means: a part of their names, or a regular expression; null if that is none.
/** @type {(text: string, isRegex: boolean) => ((name: string) => boolean) | null} */
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
/** @type {(isWanted: (name: string, fn: number) => boolean) => Uint8Array} */
const functionsWhere = (isWanted) => Uint8Array.from(functions.name, (name, fn) => isWanted(name, fn) ? 1 : 0);

// 1 for the nodes of a tree that have one of the functions on their stack.
/** @type {(tree: Calls, wanted: Uint8Array) => Uint8Array} */
function nodesWith(tree, wanted) {
  const has = new Uint8Array(tree.length);
  for (let node = 1; node < tree.length; node++) has[node] = has[tree.parent[node]] | wanted[tree.fn[node]];
  return has;
}

// 1 for the recorded nodes whose stacks are selected, and shown.
function selectedNodes() {
  const selected = Uint8Array.from(shownAs, (place) => place < 0 ? 0 : 1);
  /** @type {(wanted: Uint8Array, value: number) => void} */
  const restrict = (wanted, value) => {
    const has = nodesWith(recorded, wanted);
    for (let node = 0; node < recorded.length; node++) if (has[node] !== value) selected[node] = 0;
  };
  /** @type {(name: string) => Uint8Array} */
  const ofModule = (name) => functionsWhere((_, fn) => (moduleName(fn) || NO_MODULE) === name);
  if (state.module !== "") restrict(ofModule(state.module), 1);
  leftOut("module").forEach((name) => restrict(ofModule(name), 0));
  if (state.function !== "") {
    const isWanted = matcher(state.function, state.regex !== "");
    if (isWanted) restrict(functionsWhere(isWanted), 1);
  }
  state.only.forEach((key) => restrict(functionsWhere((_, fn) => keyOf(fn) === key), 1));
  state.hide.forEach((key) => restrict(functionsWhere((_, fn) => keyOf(fn) === key), 0));
  return selected;
}

// 1 for the threads that are selected, whatever their labels are if these don't count.
function selectedThreads(hasLabels = true) {
  const [pids, without] = [leftOut("pid"), leftOut("label")];
  /** @type {(thread: number, label: string) => boolean} */
  const has = (thread, label) => labelKeys.some((key) => labelName(thread, key) === label);
  return Uint8Array.from(processOf, (process, thread) =>
    (state.pid === "" || processId(process) === state.pid) && (state.tid === "" || threadId(sameThread[thread]) === state.tid)
    && !pids.includes(processId(process))
    && !(hasLabels && (state.label !== "" && !has(thread, state.label) || without.some((label) => has(thread, label)))) ? 1 : 0);
}

// Whether a vCPU is selected.
/** @type {(vcpu: number) => boolean} */
const isSelectedVcpu = (vcpu) => (state.vcpu === "" || String(vcpu) === state.vcpu) && !leftOut("vcpu").includes(String(vcpu));

// The numbers of the cells that all filters but that of time select, in order.
function selectedCells() {
  const [byNode, byThread] = [selectedNodes(), selectedThreads()];
  const wanted = selectedModes();
  const byMode = MODES.map((mode) => wanted.includes(mode));
  const byVcpu = new Map(vcpus.map((vcpu) => [vcpu, isSelectedVcpu(vcpu)]));
  const byRun = Uint8Array.from(runs.thread, (thread, run) =>
    byThread[thread] && byMode[runs.mode[run]] && byVcpu.get(runs.vcpu[run]) ? 1 : 0);
  const selected = new Int32Array(cells.length);
  let length = 0;
  for (let cell = 0; cell < cells.length; cell++) {
    if (byRun[cells.run[cell]] && byNode[cells.node[cell]]) selected[length++] = cell;
  }
  return selected.subarray(0, length);
}

// Calls `each` for the cells of each run: with the run, these cells, and their ticks.
/** @type {(selected: Int32Array, each: (run: number, cells: Int32Array, ticks: number) => void) => void} */
function eachRun(selected, each) {
  for (let begin = 0; begin < selected.length;) {
    const run = cells.run[selected[begin]];
    let [end, ticks] = [begin, 0];
    for (; end < selected.length && cells.run[selected[end]] === run; end++) ticks += cells.ticks[selected[end]];
    each(run, selected.subarray(begin, end), ticks);
    begin = end;
  }
}

// Whether a run is of what is compared with (0), or of what is compared (1).
/** @type {(run: number) => number} */
const sideOf = (run) => isComparison ? threads.recording[runs.thread[run]] : 0;

// How the selected time of each side that is compared is divided.
/** @type {{ begin: number, width: number, count: number }[]} */
let divided = [];

/**
 * @typedef {number[] & { blocks?: Uint32Array }} Sides Ticks before and after; see change.js.
 * @typedef {{ key: number, ticks: number, first: number, modes: number[], sides: Sides }} Row
 * @typedef {{ group: number, node: number, ticks: number, first: number, modes: number[], sides: Sides }} Stack
 * @typedef {{ change: number, low: number, high: number, p: number }} Change
 * @typedef {{ key: any, ownSides: Sides, totalSides: Sides, own: number, total: number, seen: number }} FunctionRow
 * @typedef {{ total: number, sides: Sides, all: Int32Array, process: Sums, thread: Sums, vcpu: Sums, mode: number[], stacks: Stack[], missed: number[] }} AllSums
 */

const NO_TICKS = { ticks: 0, first: Infinity };

// Adds ticks of a run to a sum: by mode, and by recording where two are compared.
/** @type {(sum: Row | Stack, run: number, ticks: number) => void} */
function addTicks(sum, run, ticks) {
  sum.ticks += ticks;
  sum.modes[runs.mode[run]] += ticks;
  sum.sides[sideOf(run)] += ticks;
  if (isComparison) addToBlock(sum.sides, run, ticks);
  if (runs.bin[run] < sum.first) sum.first = runs.bin[run];
}

// Ticks by key.
class Sums {
  /** @type {Map<number, Row>} */
  rows = new Map();

  /** @type {(key: number, run: number, ticks: number) => void} */
  add(key, run, ticks) {
    let row = this.rows.get(key);
    if (!row) {
      row = { key, ...NO_TICKS, modes: [0, 0, 0, 0], sides: newSides() };
      this.rows.set(key, row);
    }
    addTicks(row, run, ticks);
  }

  // The largest first.
  sorted() {
    return [...this.rows.values()].sort((a, b) => b.ticks - a.ticks);
  }
}

// Which group of the view a cell's thread is in, and the name of a group. A value of a label is known by the first thread that has it.
/** @type {Record<string, (thread: number) => number>} */
const GROUPS = { process: (thread) => processOf[thread], thread: (thread) => sameThread[thread], merged: () => 0 };
/** @type {Record<string, (key: number) => string>} */
const GROUP_NAMES = { process: processName, thread: threadName };
derive(() => {
  for (const key of labelKeys) {
    const first = firstOfName(threads.name.map((_, thread) => labelName(thread, key)));
    GROUPS[`label ${key}`] = (thread) => first[thread];
    GROUP_NAMES[`label ${key}`] = (thread) => labelName(thread, key);
  }
});

// The selected ticks: their number, by process, thread, vCPU, and by group and node.
/** @returns {AllSums} */
function sumUp() {
  const [begin, end] = selectedBins();
  if (isComparison) divided = dividedTime([begin, end]);
  const all = selectedCells();
  const sums = { total: 0, sides: newSides(), all, process: new Sums(), thread: new Sums(), vcpu: new Sums(), mode: [0, 0, 0, 0] };
  const group = GROUPS[state.group];
  /** @type {Members} */
  const members = new Map(); // runs and their cells, by group
  eachRun(all, (run, selected, ticks) => {
    if (runs.bin[run] < begin || runs.bin[run] >= end) return;
    const thread = runs.thread[run];
    sums.total += ticks;
    sums.sides[sideOf(run)] += ticks;
    if (isComparison) addToBlock(sums.sides, run, ticks);
    sums.mode[runs.mode[run]] += ticks;
    sums.process.add(processOf[thread], run, ticks);
    sums.thread.add(sameThread[thread], run, ticks);
    sums.vcpu.add(runs.vcpu[run], run, ticks);
    const key = group(thread);
    const its = members.get(key);
    if (its) its.push({ run, selected });
    else members.set(key, [{ run, selected }]);
  });
  return { ...sums, stacks: sumStacks(members), missed: missedTicks(begin, end) };
}

// The ticks of each group's nodes, one group after the other.
/** @typedef {Map<number, { run: number, selected: Int32Array }[]>} Members */
/** @type {(members: Members) => Stack[]} */
function sumStacks(members) {
  /** @type {Stack[]} */
  const stacks = [];
  const place = new Int32Array(nodes.length).fill(-1); // of a node's sum: that of an earlier group is below the present one's first
  for (const [group, its] of members) {
    const first = stacks.length;
    for (const { run, selected } of its) {
      for (const cell of selected) {
        const node = shownAs[cells.node[cell]];
        if (place[node] < first) {
          place[node] = stacks.length;
          stacks.push({ group, node, ...NO_TICKS, modes: [0, 0, 0, 0], sides: newSides() });
        }
        addTicks(stacks[place[node]], run, cells.ticks[cell]);
      }
    }
  }
  return stacks;
}

// Stolen, lost and other ticks of the selected time and vCPU: whose they were isn't known.
/** @type {(begin: number, end: number) => number[]} */
function missedTicks(begin, end) {
  const parts = [0, 0, 0];
  for (const row of missed) {
    if (row.bin >= begin && row.bin < end && isSelectedVcpu(row.vcpu)) {
      row.parts.forEach((part, index) => { parts[index] += part; });
    }
  }
  return parts;
}

/** @type {(sum: Sides, sides: Sides) => void} */
function addSides(sum, sides) {
  sum[0] += sides[0];
  sum[1] += sides[1];
  const { blocks } = sum;
  if (blocks) sides.blocks?.forEach((ticks, block) => { blocks[block] += ticks; });
}

// Self and total ticks by function, or by what `keyOfFunction` says of it: each tick once, however often it is on the stack.
/** @type {(stacks: Stack[], keyOfFunction: (fn: number) => number | string) => FunctionRow[]} */
function sumFunctions(stacks, keyOfFunction) {
  /** @type {Map<number, Sides>} */
  const byNode = new Map();
  for (const { node, sides } of stacks) {
    const sum = byNode.get(node) ?? newSides();
    byNode.set(node, sum);
    addSides(sum, sides);
  }
  /** @type {Map<number | string, FunctionRow>} */
  const rows = new Map();
  /** @type {(key: number | string) => FunctionRow} */
  const row = (key) => {
    const found = rows.get(key) ?? { key, ownSides: newSides(), totalSides: newSides(), own: 0, total: 0, seen: -1 };
    rows.set(key, found);
    return found;
  };
  for (const [leaf, sides] of byNode) {
    // Nothing is left of a stack all of whose functions were merged.
    if (leaf === 0) continue;
    const own = row(keyOfFunction(nodes.fn[leaf]));
    addSides(own.ownSides, sides);
    for (let node = leaf; node > 0; node = nodes.parent[node]) {
      const found = row(keyOfFunction(nodes.fn[node]));
      if (found.seen !== leaf) addSides(found.totalSides, sides);
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
/** @type {(sums: { stacks: Stack[] }, isHit: (name: string) => boolean) => { ticks: number, sides: Sides }} */
function countFound(sums, isHit) {
  const has = nodesWith(nodes, functionsWhere(isHit));
  const found = { ticks: 0, sides: newSides() };
  for (const stack of sums.stacks) {
    if (!has[stack.node]) continue;
    found.ticks += stack.ticks;
    addSides(found.sides, stack.sides);
  }
  return found;
}
