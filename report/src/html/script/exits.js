// Why the guest's vCPUs exited, in the selected time and of the selected vCPUs. Which processes and functions made these exits isn't known here.

/**
 * @typedef {{ bin: number, begin: number, length: number }} ExitInterval
 * @typedef {{ interval: number, reason: number, vcpu: number, count: number, time: number, left: number, longest: number, classes: [number, number][] }} ExitEntry
 * @typedef {{ reason: number, count: number, time: number, left: number, longest: number, classes: Map<number, number>, times: Map<number, number> }} ExitRow Times in ns by interval.
 * @typedef {{ total: number, time: number, rows: ExitRow[] }} ExitSums
 */
/** @type {(exits: ExitData) => ExitInterval[]} */
function readIntervals({ intervals }) {
  const packed = new Packed(intervals);
  const read = [];
  for (let bin = 0; packed.hasMore;) {
    bin += packed.nextDifference();
    read.push({ bin, begin: packed.next(), length: packed.next() });
  }
  return read;
}

/** @type {(exits: ExitData) => ExitEntry[]} */
function readExits({ rows }) {
  const packed = new Packed(rows);
  const read = [];
  for (let interval = 0; packed.hasMore;) {
    interval += packed.nextDifference();
    /** @type {ExitEntry} */
    const entry = { interval, reason: packed.next(), vcpu: packed.next(), count: packed.next(), time: packed.next(), left: packed.next(), longest: packed.next(), classes: [] };
    for (let left = packed.next(), at = 0; left > 0; left--) {
      at += packed.next();
      entry.classes.push([at, packed.next()]);
      at++;
    }
    read.push(entry);
  }
  return read;
}

let hasExits = false;
/** @type {ExitInterval[]} */
let exitIntervals = [];
/** @type {ExitEntry[]} */
let exitEntries = [];
derive(() => {
  hasExits = data.exits !== undefined;
  exitIntervals = data.exits ? readIntervals(data.exits) : [];
  exitEntries = data.exits ? readExits(data.exits) : [];
});
/** @type {(reason: number) => string} */
const reasonName = (reason) => data.exits?.reasons[reason] ?? "";
/** @type {(row: ExitRow) => boolean} */
const isHalt = (row) => data.exits?.halts[row.reason] === 1;

// The selected exits by reason: those with the most time first, halts last. Only times and vCPUs select them.
/** @returns {ExitSums} */
function sumExits() {
  const [begin, end] = selectedBins();
  /** @type {Map<number, ExitRow>} */
  const rows = new Map();
  for (const entry of exitEntries) {
    const bin = exitIntervals[entry.interval]?.bin;
    if (bin !== undefined && (bin < begin || bin >= end) || !isSelectedVcpu(entry.vcpu)) continue;
    const row = rows.get(entry.reason) ?? { reason: entry.reason, count: 0, time: 0, left: 0, longest: 0, classes: new Map(), times: new Map() };
    rows.set(entry.reason, row);
    row.count += entry.count;
    row.time += entry.time;
    row.left += entry.left;
    row.longest = Math.max(row.longest, entry.longest);
    for (const [number, count] of entry.classes) row.classes.set(number, (row.classes.get(number) ?? 0) + count);
    row.times.set(entry.interval, (row.times.get(entry.interval) ?? 0) + entry.time);
  }
  const all = [...rows.values()].sort((a, b) => Number(isHalt(a)) - Number(isHalt(b)) || b.time - a.time);
  return { rows: all, total: all.reduce((sum, { count }) => sum + count, 0), time: all.reduce((sum, { time }) => sum + time, 0) };
}

// The shortest time of a class of the histogram, in ns; recording/FORMAT.md describes them.
/** @type {(number: number) => number} */
const classBegin = (number) => number < 8 ? number : (8 + number % 8) * 2 ** (Math.floor(number / 8) - 1);

// The time that at least so many percent of the exits don't exceed, in ns: the middle of its class.
/** @type {(row: ExitRow, percent: number) => number} */
function percentileOf({ classes, longest }, percent) {
  const sorted = [...classes].sort((a, b) => a[0] - b[0]);
  const all = sorted.reduce((sum, [, count]) => sum + count, 0);
  let seen = 0;
  for (const [number, count] of sorted) {
    seen += count;
    if (100 * seen >= percent * all) return Math.min(Math.floor((classBegin(number) + classBegin(number + 1)) / 2), longest);
  }
  return 0;
}

// The module of the frames that are reasons of exits, where these are samples.
const EXIT_MODULE = "[host:exit]";

// The tree of samples of exits, the reasons first: each sample has the mean time of the selected exits for its reason.
/** @type {(sums: AllSums, exited: ExitSums) => Frame} */
function exitTree(sums, exited) {
  /** @type {Stack[]} */
  const stacks = [];
  const means = new Map(exited.rows.map((row) => [reasonName(row.reason), row.time / row.count]));
  for (const stack of sums.stacks) {
    let outermost = stack.node;
    while (nodes.parent[outermost] > 0) outermost = nodes.parent[outermost];
    const fn = nodes.fn[outermost];
    const mean = fn >= 0 && moduleName(fn) === EXIT_MODULE ? means.get(functions.name[fn]) : undefined;
    if (mean === undefined) continue;
    stacks.push({ ...stack, ticks: stack.ticks * mean, modes: stack.modes.map((ticks) => ticks * mean) });
  }
  const { root } = new StackTree(stacks, "merged", false);
  root.isOfExits = true;
  return root;
}
