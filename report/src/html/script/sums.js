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

// 1 for the nodes of a tree that have one of the functions on their stack.
function nodesWith(tree, wanted) {
  const has = new Uint8Array(tree.length);
  for (let node = 1; node < tree.length; node++) has[node] = has[tree.parent[node]] | wanted[tree.fn[node]];
  return has;
}

// 1 for the recorded nodes whose stacks are selected, and shown.
function selectedNodes() {
  const selected = Uint8Array.from(shownAs, (place) => place < 0 ? 0 : 1);
  const restrict = (wanted, value) => {
    const has = nodesWith(recorded, wanted);
    for (let node = 0; node < recorded.length; node++) if (has[node] !== value) selected[node] = 0;
  };
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

// 1 for the threads that are selected.
function selectedThreads() {
  const [pids, without] = [leftOut("pid"), leftOut("label")];
  const has = (thread, label) => labelKeys.some((key) => labelName(thread, key) === label);
  return Uint8Array.from(processOf, (process, thread) =>
    (state.pid === "" || processId(process) === state.pid) && (state.tid === "" || threadId(sameThread[thread]) === state.tid)
    && (state.label === "" || has(thread, state.label))
    && !pids.includes(processId(process)) && !without.some((label) => has(thread, label)) ? 1 : 0);
}

// Whether a vCPU is selected.
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
const sideOf = (run) => isComparison ? threads.recording[runs.thread[run]] : 0;

// How the selected time of each side that is compared is divided.
let divided = null;

const NO_TICKS = { ticks: 0, first: Infinity };

// Adds ticks of a run to a sum: by mode, and by recording where two are compared.
function addTicks(sum, run, ticks) {
  sum.ticks += ticks;
  sum.modes[runs.mode[run]] += ticks;
  sum.sides[sideOf(run)] += ticks;
  if (isComparison) addToBlock(sum.sides, run, ticks);
  if (runs.bin[run] < sum.first) sum.first = runs.bin[run];
}

// Ticks by key.
class Sums {
  constructor() {
    this.rows = new Map();
  }

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
const GROUPS = { process: (thread) => processOf[thread], thread: (thread) => sameThread[thread], merged: () => 0 };
const GROUP_NAMES = { process: processName, thread: threadName };
for (const key of labelKeys) {
  const first = firstOfName(threads.name.map((_, thread) => labelName(thread, key)));
  GROUPS[`label ${key}`] = (thread) => first[thread];
  GROUP_NAMES[`label ${key}`] = (thread) => labelName(thread, key);
}

// The selected ticks: their number, by process, thread, vCPU, and by group and node.
function sumUp() {
  const [begin, end] = selectedBins();
  if (isComparison) divided = dividedTime([begin, end]);
  const all = selectedCells();
  const sums = { total: 0, sides: newSides(), all, process: new Sums(), thread: new Sums(), vcpu: new Sums(), mode: [0, 0, 0, 0] };
  const group = GROUPS[state.group];
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
    if (!members.has(key)) members.set(key, []);
    members.get(key).push({ run, selected });
  });
  sums.stacks = sumStacks(members);
  sums.missed = missedTicks(begin, end);
  return sums;
}

// The ticks of each group's nodes, one group after the other.
function sumStacks(members) {
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
function missedTicks(begin, end) {
  const parts = [0, 0, 0];
  for (const row of missed) {
    if (row.bin >= begin && row.bin < end && isSelectedVcpu(row.vcpu)) {
      row.parts.forEach((part, index) => { parts[index] += part; });
    }
  }
  return parts;
}

function addSides(sum, sides) {
  sum[0] += sides[0];
  sum[1] += sides[1];
  if (sum.blocks) sides.blocks.forEach((ticks, block) => { sum.blocks[block] += ticks; });
}

// Self and total ticks by function, or by what `keyOfFunction` says of it: each tick once, however often it is on the stack.
function sumFunctions(stacks, keyOfFunction) {
  const byNode = new Map();
  for (const stack of stacks) {
    if (!byNode.has(stack.node)) byNode.set(stack.node, newSides());
    addSides(byNode.get(stack.node), stack.sides);
  }
  const rows = new Map();
  const row = (key) => {
    if (!rows.has(key)) rows.set(key, { key, ownSides: newSides(), totalSides: newSides(), seen: -1 });
    return rows.get(key);
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
function countFound(sums, isHit) {
  const has = nodesWith(nodes, functionsWhere(isHit));
  const found = { ticks: 0, sides: [0, 0] };
  for (const stack of sums.stacks) {
    if (!has[stack.node]) continue;
    found.ticks += stack.ticks;
    addSides(found.sides, stack.sides);
  }
  return found;
}
