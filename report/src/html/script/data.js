// Names come from the guest: they only ever become text, never HTML.

// Types are for TypeScript's checker, which tests run; the module `data` says what the page's data are.
/**
 * @typedef {Record<string, string>} Words
 * @typedef {{ recording: number[], pid: (number | null)[], tid: (number | null)[], name: string[] }} ThreadColumns Null: all that aren't told apart.
 * @typedef {ThreadColumns & { labels: Words[] }} Threads
 * @typedef {{ looks: string[], states: string[], timed: boolean, rows: string, rare: { waits: number, seen: number }, threads: ThreadColumns }} WaitData
 * @typedef {{ reasons: string[], halts: number[], timed: boolean, intervals: string, rows: string, lost: number }} ExitData
 * @typedef {{ function: number, begin: string, ticks: number, offsets: number[], texts: string[], ticksAt: number[], places: number[], names: string[],
 *   source: { file: string, first: number, texts: string[], ticksAt: number[] } | null }} CodeData
 * @typedef {{ pids: number[], tids: number[], comms: string[], vcpus: number[], modes: string[], labels: string[], modules: string[], greps: string[] }} Criteria
 * @typedef {object} PageData
 * @property {number} begin
 * @property {number} width
 * @property {number} bins
 * @property {number} length
 * @property {number[]} lengths
 * @property {{ begin: number | null, end: number | null }[]} times
 * @property {number[]} restarts
 * @property {{ recording: number, begin: number, end: number | null }[]} pauses
 * @property {{ process: number, time: number, program: string }[]} execs
 * @property {boolean} comparison
 * @property {string[]} files
 * @property {string[]} naming
 * @property {number} hz
 * @property {string | null} event
 * @property {Criteria & { not: Criteria, transforms: string[] }} selection
 * @property {{ recording: number[], pid: number[], name: string[] }} processes
 * @property {ThreadColumns} threads
 * @property {Words[]} [labels]
 * @property {number[]} [labelled]
 * @property {{ name: string[], build: string[] }} modules
 * @property {{ name: string[], module: number[], kernel: number[], low: string[], span: string[], lines: string[] }} functions
 * @property {CodeData[]} code
 * @property {number} rare
 * @property {{ threads: (number | null)[], node: number }} halted
 * @property {WaitData} [waits]
 * @property {ExitData} [exits]
 * @property {string} nodes
 * @property {string} cells
 * @property {string} missed
 * @typedef {{ parent: Int32Array, fn: Int32Array, flags: Uint8Array, length: number }} Calls A tree of calls, by node.
 * @typedef {{ node: Int32Array, ticks: Float64Array, length: number }} Cells
 * @typedef {{ bin: Uint16Array, vcpu: Uint16Array, mode: Uint8Array, thread: Int32Array, ticks: Float64Array, begin: Int32Array, length: number }} Runs
 * @typedef {{ bin: number, recording: number, vcpu: number, idle: number, parts: number[] }} MissedRow
 * @typedef {[number, number]} Bins The first bin, and the one behind the last.
 * @typedef {((name: string) => boolean) | null} Search Which names are searched for.
 */

const MODES = ["user", "kernel", "interrupt", "idle"];
const IDLE = MODES.indexOf("idle");
const MISSED = ["stolen", "lost", "others"];

// Most elements have only some properties of an input.
/** @type {(id: string) => HTMLInputElement} */
const element = (id) => /** @type {any} */ (document.getElementById(id));

// A new element with these properties and children.
/** @type {<Tag extends keyof HTMLElementTagNameMap>(tag: Tag, properties?: Record<string, unknown>, ...children: (Node | string)[]) => HTMLElementTagNameMap[Tag]} */
function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && name !== "list") Object.assign(made, { [name]: value });
    else made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

// Reads numbers as the module `pack` writes them.
class Packed {
  /** @param {string} text */
  constructor(text) {
    this.bytes = atob(text);
    this.at = 0;
  }

  get hasMore() {
    return this.at < this.bytes.length;
  }

  next() {
    let number = this.bytes.charCodeAt(this.at++);
    if (number < 128) return number;
    number -= 128;
    let scale = 128;
    for (;;) {
      const byte = this.bytes.charCodeAt(this.at++);
      number += (byte & 127) * scale;
      if (byte < 128) return number;
      scale *= 128;
    }
  }

  nextDifference() {
    const number = this.next();
    return number % 2 === 1 ? -(number + 1) / 2 : number / 2;
  }
}

// Numbers by node. A parent's number is lower than its children's.
/** @type {(text: string) => Calls} */
function readNodes(text) {
  const packed = new Packed(text);
  const length = packed.next();
  const [parent, fn, flags] = [new Int32Array(length).fill(-1, 0, 1), new Int32Array(length).fill(-1, 0, 1), new Uint8Array(length)];
  for (let node = 1; node < length; node++) {
    parent[node] = node - packed.next();
    const number = packed.next();
    fn[node] = Math.floor(number / 4);
    flags[node] = number % 4;
  }
  return { parent, fn, flags, length };
}

// Samples, and idle ticks without a sample: the node and the ticks of each cell; of each run of cells, which have bin, vCPU, mode and thread in common, these,
// its ticks, and its first cell. Behind the last run `begin` has the number of all cells.
/** @type {(text: string, missed: MissedRow[], halted: PageData["halted"]) => [Cells, Runs]} */
function readCells(text, missed, halted) {
  const packed = new Packed(text);
  const idle = missed.filter((row) => row.idle > 0);
  const sampled = packed.next();
  const length = sampled + idle.length;
  const cells = { node: new Int32Array(length), ticks: new Float64Array(length), length };
  const [bins, vcpus, modes, threads, sums, begins] = Array.from({ length: 6 }, () => /** @type {number[]} */ ([]));
  /** @type {(bin: number, vcpu: number, mode: number, thread: number, ticks: number, begin: number) => void} */
  const addRun = (bin, vcpu, mode, thread, ticks, begin) => {
    bins.push(bin);
    vcpus.push(vcpu);
    modes.push(mode);
    threads.push(thread);
    sums.push(ticks);
    begins.push(begin);
  };
  let [bin, thread] = [0, 0];
  for (let cell = 0; cell < sampled;) {
    bin += packed.next();
    const number = packed.next();
    thread += packed.nextDifference();
    const begin = cell;
    const end = begin + packed.next();
    let sum = 0;
    for (let node = 0; cell < end; cell++) {
      node += packed.next();
      const ticks = packed.next();
      cells.node[cell] = node;
      cells.ticks[cell] = ticks;
      sum += ticks;
    }
    addRun(bin, Math.floor(number / 4), number % 4, thread, sum, begin);
  }
  idle.forEach((row, index) => {
    addRun(row.bin, row.vcpu, IDLE, halted.threads[row.recording] ?? 0, row.idle, sampled + index);
    cells.node[sampled + index] = halted.node;
    cells.ticks[sampled + index] = row.idle;
  });
  begins.push(length);
  const runs = { bin: new Uint16Array(bins), vcpu: new Uint16Array(vcpus), mode: new Uint8Array(modes), thread: new Int32Array(threads),
    ticks: new Float64Array(sums), begin: new Int32Array(begins), length: bins.length };
  return [cells, runs];
}

/** @type {(text: string) => MissedRow[]} */
function readMissed(text) {
  const packed = new Packed(text);
  const rows = [];
  while (packed.hasMore) {
    const [bin, place] = [packed.next(), packed.next()];
    const [recording, vcpu] = [Math.floor(place / 65536), place % 65536];
    rows.push({ bin, recording, vcpu, idle: packed.next(), parts: [packed.next(), packed.next(), packed.next()] });
  }
  return rows;
}

/** @type {PageData} */
let data = JSON.parse(element("data").textContent ?? "");

// Each computes what follows from the data: at first, and again when a live page has newer ones.
/** @type {(() => void)[]} */
const derivations = [];
/** @param {() => void} compute */
function derive(compute) {
  derivations.push(compute);
  compute();
}

/** @type {Words} */
const NO_LABELS = {};
// The data's threads, each with its labels.
/** @type {(of: PageData) => Threads} */
const labelledThreads = (of) =>
  ({ ...of.threads, labels: of.threads.pid.map((_, thread) => of.labels?.[of.labelled?.[thread] ?? -1] ?? NO_LABELS) });

let { functions, modules, processes } = data;
let threads = labelledThreads(data);
// The numbers that the data's functions and threads have in these tables: newer data have others.
/** @type {{ functions: number[], threads: number[] } | null} */
let renumbered = null;

// The stacks as they were recorded; transforms.js has those that are shown.
/** @type {Calls} */
let recorded;
/** @type {MissedRow[]} */
let missed;
/** @type {Cells} */
let cells;
/** @type {Runs} */
let runs;
let allTicks = 0;
derive(() => {
  recorded = readNodes(data.nodes);
  missed = readMissed(data.missed);
  [cells, runs] = readCells(data.cells, missed, data.halted);
  allTicks = runs.ticks.reduce((sum, ticks) => sum + ticks, 0);
  if (!renumbered) return;
  const { functions: ofFunctions, threads: ofThreads } = renumbered;
  recorded.fn = recorded.fn.map((fn) => fn < 0 ? fn : ofFunctions[fn]);
  runs.thread = runs.thread.map((thread) => ofThreads[thread]);
});
// What functions without a module are filtered by.
const NO_MODULE = "[none]";

// Appends a row to a table of columns.
/** @type {(columns: Record<string, unknown[]>, row: Record<string, unknown>) => void} */
function pushRow(columns, row) {
  for (const [column, value] of Object.entries(row)) columns[column].push(value);
}

// Behind its functions each module has one that stands for all of them, where it is collapsed.
/** @type {Map<number, number>} */
const moduleFunctions = new Map();
derive(() => {
  const isOfKernel = new Map();
  functions.module.forEach((module, fn) => isOfKernel.set(module, functions.kernel[fn]));
  modules.name.forEach((name, module) => {
    if (moduleFunctions.has(module)) return;
    moduleFunctions.set(module, functions.name.length);
    pushRow(functions, { name: name || NO_MODULE, module, kernel: isOfKernel.get(module) ?? 0, low: "", span: "", lines: "" });
  });
});
/** @type {(fn: number) => boolean} */
const isOfModule = (fn) => moduleFunctions.get(functions.module[fn]) === fn;

// The threads that are in looks at tasks, by their numbers there: those without ticks, and their processes, are added to the others.
/** @type {number[]} */
let waiters = [];
derive(() => {
  if (!data.waits) return;
  const { recording, pid, tid, name } = data.waits.threads;
  /** @type {Map<string, number>} */
  const known = new Map(threads.pid.map((pid, thread) => /** @type {const} */ ([`${threads.recording[thread]}:${pid}:${threads.tid[thread]}`, thread])).reverse());
  const processKey = (/** @type {number} */ recording, /** @type {number | null} */ pid) => `${recording}:${pid}`;
  const knownProcesses = new Set(processes.pid.map((pid, process) => processKey(processes.recording[process], pid)));
  const mainNames = new Map(pid.map((_, index) => [`${recording[index]}:${tid[index]}`, name[index]]));
  waiters = pid.map((_, index) => {
    const process = processKey(recording[index], pid[index]);
    if (!knownProcesses.has(process)) {
      pushRow(processes, { recording: recording[index], pid: pid[index], name: mainNames.get(process) ?? name[index] });
      knownProcesses.add(process);
    }
    const thread = `${process}:${tid[index]}`;
    if (!known.has(thread)) {
      pushRow(threads, { recording: recording[index], pid: pid[index], tid: tid[index], name: name[index], labels: NO_LABELS });
      known.set(thread, threads.pid.length - 1);
    }
    return known.get(thread) ?? 0;
  });
});
/** @type {number[]} */
let vcpus;
derive(() => {
  const all = new Set(runs.vcpu);
  for (const { vcpu } of missed) all.add(vcpu);
  vcpus = [...all].sort((a, b) => a - b);
});

// A process is known by its number in the list, -1 for all that aren't told apart: pids mean nothing in another recording. In a
// comparison, processes of the same name are the first one of this name, and so are threads of the same names.
const OTHERS = -1;
const isComparison = data.comparison;
/** @type {(names: string[]) => number[]} */
const firstOfName = (names) => {
  const first = new Map(names.map((name, index) => /** @type {const} */ ([name, index])).reverse());
  return names.map((name) => first.get(name) ?? 0);
};
/** @type {number[]} */
let sameProcess;
/** @type {number[]} */
let processOf;
// One thread may be in the list several times, with other labels of its process.
/** @type {number[]} */
let sameThread;
derive(() => {
  sameProcess = isComparison ? firstOfName(processes.name.map((name, process) => name || `pid ${processes.pid[process]}`)) : processes.name.map((_, process) => process);
  const numbers = new Map(processes.pid.map((pid, process) => [`${processes.recording[process]}:${pid}`, sameProcess[process]]));
  processOf = threads.pid.map((pid, thread) => numbers.get(`${threads.recording[thread]}:${pid}`) ?? OTHERS);
  sameThread = firstOfName(threads.name.map((name, thread) => isComparison
    ? JSON.stringify([processOf[thread], threads.tid[thread] === null, name || threads.tid[thread]])
    : `${threads.recording[thread]}:${threads.pid[thread]}:${threads.tid[thread]}`));
});
// The labels of processes, by their keys and as words.
/** @type {string[]} */
let labelKeys;
/** @type {string[]} */
let labelNames;
derive(() => {
  const labels = data.labels ?? [];
  labelKeys = [...new Set(labels.flatMap(Object.keys))].sort();
  labelNames = [...new Set(labels.flatMap((set) => Object.entries(set).map((label) => label.join("="))))].sort();
});
/** @type {(thread: number, key: string) => string} */
const labelName = (thread, key) => `${key}=${threads.labels[thread][key] ?? "[none]"}`;
// The number of a recording, where there are several: as a part of names, and of what the address of the page says. Where two are compared names have
// none, but one id may be that of another process in each.
const isMerged = data.files.length > 1 && !isComparison;
/** @type {(recording: number) => string} */
const ofRecording = (recording) => isMerged ? ` (${recording + 1})` : "";
/** @type {(recording: number, id: number | null) => string} */
const inRecording = (recording, id) => isMerged || isComparison ? `${recording + 1}:${id}` : String(id);
/** @type {(process: number) => string} */
const processId = (process) => process === OTHERS ? "null" : inRecording(processes.recording[process], processes.pid[process]);
/** @type {(thread: number) => string} */
const threadId = (thread) => inRecording(threads.recording[thread], threads.tid[thread]);
/** @type {(process: number) => string} */
const processName = (process) => process === OTHERS ? "[others]" : isComparison && processes.name[process] ? processes.name[process]
  : `${processes.name[process] || "pid"} ${processes.pid[process]}${ofRecording(processes.recording[process])}`;
/** @type {(thread: number) => string} */
const threadName = (thread) => threads.tid[thread] === null ? "[others]"
  : threads.tid[thread] === 0 && threads.pid[thread] === 0 ? processName(processOf[thread])
    : isComparison && threads.name[thread] ? threads.name[thread]
      : `${threads.name[thread] || "tid"} ${threads.tid[thread]}${ofRecording(threads.recording[thread])}`;
/** @type {(fn: number) => string} */
const moduleName = (fn) => modules.name[functions.module[fn]] ?? "";

// What a function is called in the address of the page.
/** @type {(fn: number) => string} */
const keyOf = (fn) => [functions.name[fn], moduleName(fn), functions.kernel[fn] ? "k" : "u"].join("|");
/** @type {Map<string, number> | null} */
let functionKeys = null;
derive(() => { functionKeys = null; });
// The function that is called so, if there is one. Most addresses of the page call none.
/** @type {(key: string) => number | undefined} */
function functionOfKey(key) {
  if (!functionKeys) {
    const all = functions.name.map((_, fn) => fn).reverse();
    // A module may be called as one of its functions, which is meant then.
    functionKeys = new Map([...all.filter(isOfModule), ...all.filter((fn) => !isOfModule(fn))].map((fn) => [keyOf(fn), fn]));
  }
  return functionKeys.get(key);
}
/** @type {(key: string) => string} */
const nameOfKey = (key) => functions.name[functionOfKey(key) ?? -1] ?? key.split("|").slice(0, -2).join("|");

// The name by which the command has a function; null if another one has the same name, or for what is no function of the recording.
/** @type {(fn: number) => string | null} */
function nameInCommand(fn) {
  const name = functions.name[fn];
  if (name === undefined || isOfModule(fn)) return null;
  return functions.name.filter((other, index) => other === name && !isOfModule(index)).length === 1 ? name : null;
}

/** @type {(part: number, whole: number) => string} */
const percent = (part, whole) => `${whole > 0 ? (100 * part / whole).toFixed(1) : "0.0"} %`;
/** @type {(count: number) => string} */
const ticksOf = (count) => `${count} ${count === 1 ? "tick" : "ticks"}`;

// The time of an edge of bins in seconds, as the option --time takes it; empty at the ends of the recording.
/** @type {(edge: number) => string} */
const edgeTime = (edge) => edgeTimeIn(edge, data.times[0], data.begin);

/** @type {(edge: number, time: PageData["times"][number], first: number) => string} */
function edgeTimeIn(edge, { begin, end }, first) {
  if (edge <= 0) return begin === null ? "" : seconds(begin);
  if (edge >= data.bins) return end === null ? "" : seconds(end);
  return seconds(first + edge * data.width);
}

// Seconds with as many decimals as it takes, at least three.
/** @type {(ns: number) => string} */
function seconds(ns) {
  const text = (ns / 1e9).toFixed(9);
  return text.replace(/(\.\d{3}\d*?)0+$/, "$1");
}

// A duration for people.
/** @type {(ns: number) => string} */
function duration(ns) {
  const [scale, unit] = /** @type {[number, string]} */ (ns < 1e6 ? [1e3, "µs"] : ns < 1e9 ? [1e6, "ms"] : [1e9, "s"]);
  return `${Number((ns / scale).toPrecision(4))} ${unit}`;
}

// The time of an edge for people.
/** @type {(edge: number) => string} */
const shownTime = (edge) => `${((data.begin + Math.min(edge * data.width, data.length)) / 1e9).toFixed(3)} s`;

// Wilson's score interval at 95 %, as in the report.
/** @type {(part: number, whole: number) => [number, number]} */
function interval(part, whole) {
  const z = 1.959964;
  if (whole === 0) return [0, 1];
  const p = part / whole;
  const scale = 1 + z * z / whole;
  const middle = (p + z * z / (2 * whole)) / scale;
  const half = z / scale * Math.sqrt(p * (1 - p) / whole + z * z / (4 * whole * whole));
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}
