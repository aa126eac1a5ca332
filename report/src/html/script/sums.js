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
function functionsWhere(isWanted) {
  const { name } = functions;
  const wanted = new Uint8Array(name.length);
  for (let fn = 0; fn < name.length; fn++) if (isWanted(name[fn], fn)) wanted[fn] = 1;
  return wanted;
}

// 1 for the nodes of a tree that have one of the functions on their stack.
/** @type {(tree: Calls, wanted: Uint8Array) => Uint8Array} */
function nodesWith(tree, wanted) {
  const has = new Uint8Array(tree.length);
  for (let node = 1; node < tree.length; node++) has[node] = has[tree.parent[node]] | wanted[tree.fn[node]];
  return has;
}

// Whether stacks are selected by their functions or modules.
const isOfStacks = () => state.module !== "" || state.function !== "" || [state.only, state.hide, leftOut("module")].some((list) => list.length > 0);

// 1 for the recorded nodes whose stacks are selected, and shown; null if all are.
function selectedNodes() {
  if (!isOfStacks() && state.transform.length === 0) return null;
  const selected = new Uint8Array(recorded.length);
  for (let node = 0; node < recorded.length; node++) if (shownAs[node] >= 0) selected[node] = 1;
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

// What selects runs and their cells: all filters but that of time.
const RUN_FILTERS = /** @type {(keyof State)[]} */ ([...FILTERS.filter((name) => name !== "time"), "regex", "idle", "only", "hide", "not", "transform"]);
// What they select, and its sums by time and group; then what they selected before: a filter is often removed again. Arrays are always the same ones: others
// would have to be collected.
/** @type {{ by: string, all: SelectedRuns, sums: Map<string, AllSums> }[]} */
let selections;
const KNOWN = 8; // sums of a selection, at most
/** @type {Int32Array} */
let places; // of sums by node, for sumStacks
derive(() => {
  selections = ["", ""].map((by) =>
    ({ by, all: { run: new Int32Array(runs.length), ticks: new Float64Array(runs.length), nodes: null, length: 0 }, sums: new Map() }));
  places = new Int32Array(recorded.length);
});

function selectedNow() {
  const by = JSON.stringify(RUN_FILTERS.map((name) => state[name]));
  if (selections[0].by !== by) selections.reverse();
  if (selections[0].by !== by) selections[0] = { by, all: selectRuns(selections[0].all), sums: new Map() };
  return selections[0];
}

// The runs that are selected, in the arrays of `former` ones.
/** @type {(former: SelectedRuns) => SelectedRuns} */
function selectRuns(former) {
  const byThread = selectedThreads();
  const wanted = selectedModes();
  const byMode = MODES.map((mode) => wanted.includes(mode));
  const byVcpu = oncePerKey(isSelectedVcpu);
  const all = { ...former, nodes: selectedNodes(), length: 0 };
  for (let run = 0; run < runs.length; run++) {
    if (!byThread[runs.thread[run]] || !byMode[runs.mode[run]] || !byVcpu(runs.vcpu[run])) continue;
    const ticks = all.nodes ? ticksOfNodes(run, all.nodes) : runs.ticks[run];
    if (ticks === 0) continue;
    all.run[all.length] = run;
    all.ticks[all.length++] = ticks;
  }
  return all;
}

// The ticks of a run's cells with these nodes.
/** @type {(run: number, byNode: Uint8Array) => number} */
function ticksOfNodes(run, byNode) {
  let ticks = 0;
  for (let cell = runs.begin[run]; cell < runs.begin[run + 1]; cell++) if (byNode[cells.node[cell]]) ticks += cells.ticks[cell];
  return ticks;
}

// Calls `each` for each run that is selected, with its selected ticks.
/** @type {(selected: SelectedRuns, each: (run: number, ticks: number) => void) => void} */
function eachRun({ run, ticks, length }, each) {
  for (let place = 0; place < length; place++) each(run[place], ticks[place]);
}

// `make`, which is asked once for each number.
/** @type {<Made>(make: (key: number) => Made) => (key: number) => Made} */
function oncePerKey(make) {
  /** @type {any[]} */
  const made = [];
  return (key) => made[key] ??= make(key);
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
 * @typedef {{ run: Int32Array, ticks: Float64Array, nodes: Uint8Array | null, length: number }} SelectedRuns Runs with their selected ticks, and which recorded nodes these have.
 * @typedef {{ total: number, sides: Sides, all: SelectedRuns, process: Sums, thread: Sums, vcpu: Sums, mode: number[], stacks: Stack[], missed: number[] }} AllSums
 */

/** @type {(sides: Sides, run: number, ticks: number) => void} */
function addToSides(sides, run, ticks) {
  sides[sideOf(run)] += ticks;
  if (isComparison) addToBlock(sides, run, ticks);
}

// Adds ticks of a run to a sum: by mode, and by recording where two are compared.
/** @type {(sum: Row, run: number, ticks: number) => void} */
function addTicks(sum, run, ticks) {
  sum.ticks += ticks;
  sum.modes[runs.mode[run]] += ticks;
  addToSides(sum.sides, run, ticks);
  if (runs.bin[run] < sum.first) sum.first = runs.bin[run];
}

// Ticks by key.
class Sums {
  /** @type {Map<number, Row>} */
  rows = new Map();

  /** @type {(key: number) => Row} */
  row(key) {
    let row = this.rows.get(key);
    if (!row) {
      row = { key, ticks: 0, first: Infinity, modes: [0, 0, 0, 0], sides: newSides() };
      this.rows.set(key, row);
    }
    return row;
  }

  // The same sums by what `keyOf` says of their keys.
  /** @type {(keyOf: (key: number) => number) => Sums} */
  by(keyOf) {
    const sums = new Sums();
    for (const { key, ticks, first, modes, sides } of this.rows.values()) {
      const row = sums.row(keyOf(key));
      row.ticks += ticks;
      row.first = Math.min(row.first, first);
      modes.forEach((count, mode) => { row.modes[mode] += count; });
      addSides(row.sides, sides);
    }
    return sums;
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

const isByLabel = () => state.group.startsWith("label ");

// The selected ticks: their number, by process, thread, vCPU, and by group and node.
/** @returns {AllSums} */
function sumUp() {
  const { all, sums: byTime } = selectedNow();
  const time = selectedBins();
  if (isComparison) divided = dividedTime(time);
  const by = JSON.stringify([time, state.group]);
  const known = byTime.get(by) ?? sumUpRuns(all, time);
  if (byTime.size >= KNOWN) byTime.clear();
  byTime.set(by, known);
  return known;
}

/** @type {(all: SelectedRuns, time: Bins) => AllSums} */
function sumUpRuns(all, [begin, end]) {
  const [thread, vcpu] = [new Sums(), new Sums()];
  const group = GROUPS[state.group];
  /** @type {Map<number, number[]>} */
  const members = new Map(); // runs, by group
  const rowOf = oncePerKey((one) => thread.row(sameThread[one]));
  const runsOf = oncePerKey((one) => {
    const key = group(one);
    const its = members.get(key) ?? [];
    members.set(key, its);
    return its;
  });
  const rowOfVcpu = oncePerKey((one) => vcpu.row(one));
  eachRun(all, (run, ticks) => {
    if (runs.bin[run] < begin || runs.bin[run] >= end) return;
    addTicks(rowOf(runs.thread[run]), run, ticks);
    addTicks(rowOfVcpu(runs.vcpu[run]), run, ticks);
    runsOf(runs.thread[run]).push(run);
  });
  const { ticks, sides, modes } = vcpu.by(() => 0).row(0);
  return { total: ticks, sides, mode: modes, all, process: thread.by((thread) => processOf[thread]), thread, vcpu,
    stacks: sumStacks(members, all.nodes), missed: missedTicks(begin, end) };
}

// The ticks of each group's nodes, one group after the other: of its runs' cells with selected nodes.
/** @type {(members: Map<number, number[]>, byNode: Uint8Array | null) => Stack[]} */
function sumStacks(members, byNode) {
  /** @type {Stack[]} */
  const stacks = [];
  places.fill(-1); // a node's sum of an earlier group is below the present one's first
  for (const [group, its] of members) {
    const first = stacks.length;
    for (const run of its) {
      const [bin, mode] = [runs.bin[run], runs.mode[run]];
      for (let cell = runs.begin[run]; cell < runs.begin[run + 1]; cell++) {
        const recordedNode = cells.node[cell];
        if (byNode !== null && byNode[recordedNode] === 0) continue;
        const node = shownAs[recordedNode];
        if (places[node] < first) {
          places[node] = stacks.length;
          stacks.push({ group, node, ticks: 0, first: bin, modes: [0, 0, 0, 0], sides: newSides() });
        }
        const stack = stacks[places[node]];
        stack.modes[mode] += cells.ticks[cell];
        if (bin < stack.first) stack.first = bin;
        if (isComparison) addToSides(stack.sides, run, cells.ticks[cell]);
      }
    }
  }
  for (const stack of stacks) {
    stack.ticks = stack.modes[0] + stack.modes[1] + stack.modes[2] + stack.modes[3];
    if (!isComparison) stack.sides[0] = stack.ticks;
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
