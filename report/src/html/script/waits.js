// Where tasks waited, in the selected part of the looks at the guest's tasks. A task that is in ten looks counts ten times.

// The waits of the page: thread, state, recorded node, in how many looks it was seen, how long its task hadn't run at least, and the looks, as [first, end].
/**
 * @typedef {{ thread: number, state: number, node: number, seen: number, longest: number, runs: [number, number][] }} Wait
 * @typedef {{ fn: number, state: number, seen: number, longest: number, tasks: Map<number, number> }} WaitRow
 * @typedef {Stack & { state: number }} WaitStack
 * @typedef {{ total: number, looks: number, stacks: WaitStack[], rows: Map<string, WaitRow> }} WaitSums
 */
/** @type {(waits: WaitData) => Wait[]} */
function readWaits({ rows, timed }) {
  const packed = new Packed(rows);
  const read = [];
  for (let thread = 0; packed.hasMore;) {
    thread += packed.nextDifference();
    /** @type {Wait} */
    const row = { thread: waiters[thread], state: packed.next(), node: packed.next(), seen: packed.next(), longest: packed.next(), runs: [] };
    for (let left = timed ? packed.next() : 0, at = 0; left > 0; left--) {
      const first = at + packed.nextDifference();
      at = first + packed.next();
      row.runs.push([first, at]);
    }
    read.push(row);
  }
  return read;
}

// The bins of the looks of a recording, if they are known, and their number.
/** @type {(text: string) => { count: number, bins: number[] }} */
function readLooks(text) {
  const packed = new Packed(text);
  const count = packed.next();
  const bins = [];
  for (let bin = 0; packed.hasMore;) {
    bin += packed.nextDifference();
    bins.push(bin);
  }
  return { count, bins };
}

let hasWaits = false;
/** @type {Wait[]} */
let waits = [];
/** @type {ReturnType<typeof readLooks>[]} */
let looks = [];
let isTimed = false;
derive(() => {
  hasWaits = data.waits !== undefined;
  waits = data.waits ? readWaits(data.waits) : [];
  looks = data.waits ? data.waits.looks.map(readLooks) : [];
  isTimed = data.waits?.timed === true;
});
/** @type {(state: number) => string} */
const stateName = (state) => data.waits?.states[state] ?? "";

// Of a recording's looks, how many of the first ones are in these bins.
/** @type {(looks: { bins: number[] }, bins: Bins) => Uint32Array} */
function countLooks({ bins }, [begin, end]) {
  const counts = new Uint32Array(bins.length + 1);
  bins.forEach((bin, look) => { counts[look + 1] = counts[look] + (bin >= begin && bin < end ? 1 : 0); });
  return counts;
}

// The selected waits: their number, that of the looks, by group, state and node, and by state and the function that waits. Labels, vCPUs and modes are those of ticks.
/** @returns {WaitSums} */
function sumWaits() {
  const counts = looks.map((one) => countLooks(one, selectedBins()));
  const [byNode, byThread] = [selectedNodes(), selectedThreads(false)];
  const groupOf = GROUPS[waitGroup()];
  /** @type {WaitSums} */
  const waited = { total: 0, stacks: [], rows: new Map(), looks: looks.reduce((sum, { count }, recording) => sum + (isTimed ? counts[recording].at(-1) ?? 0 : count), 0) };
  /** @type {Map<string, WaitStack>} */
  const stacks = new Map();
  for (const wait of waits) {
    if (byNode !== null && byNode[wait.node] === 0 || !byThread[wait.thread]) continue;
    const of = counts[threads.recording[wait.thread]];
    const seen = isTimed ? wait.runs.reduce((sum, [first, end]) => sum + of[end] - of[first], 0) : wait.seen;
    if (seen === 0) continue;
    waited.total += seen;
    const [node, group] = [shownAs[wait.node], groupOf(wait.thread)];
    const key = `${group} ${wait.state} ${node}`;
    const stack = stacks.get(key) ?? { group, node, state: wait.state, ticks: 0, first: 0, modes: [0, 0, 0, 0], sides: [0, 0] };
    stacks.set(key, stack);
    stack.ticks += seen;
    addWait(waited.rows, wait, nodes.fn[node], seen);
  }
  waited.stacks = [...stacks.values()];
  return waited;
}

/** @type {(rows: Map<string, WaitRow>, wait: Wait, fn: number, seen: number) => void} */
function addWait(rows, wait, fn, seen) {
  const key = `${wait.state} ${fn}`;
  const row = rows.get(key) ?? { fn, state: wait.state, seen: 0, longest: 0, tasks: new Map() };
  rows.set(key, row);
  const thread = sameThread[wait.thread];
  row.seen += seen;
  row.longest = Math.max(row.longest, wait.longest);
  row.tasks.set(thread, (row.tasks.get(thread) ?? 0) + seen);
}

// Looks know no labels.
const waitGroup = () => isByLabel() ? "merged" : state.group;

// Callers first, by group and state.
/** @type {(waited: WaitSums) => Frame} */
function waitTree(waited) {
  const tree = new Tree("all");
  tree.root.isOfWaits = true;
  for (const stack of waited.stacks) {
    /** @type {number[]} */
    const way = [];
    for (let node = stack.node; node > 0; node = nodes.parent[node]) way.push(node);
    const from = tree.child(tree.group(stack.group, waitGroup()), `s${stack.state}`, -1, stateName(stack.state));
    way.reverse().reduce((at, node) => tree.step(at, node, stack), from).add(stack);
  }
  return tree.finish();
}
