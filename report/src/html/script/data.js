// Names come from the guest: they only ever become text, never HTML.

const MODES = ["user", "kernel", "interrupt", "idle"];
const MISSED = ["stolen", "lost", "others"];

const element = (id) => document.getElementById(id);

// A new element with these properties and children.
function make(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// Reads numbers as the module `pack` writes them.
class Packed {
  constructor(text) {
    this.bytes = atob(text);
    this.at = 0;
  }

  get hasMore() {
    return this.at < this.bytes.length;
  }

  next() {
    let number = 0;
    let scale = 1;
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

// Samples, and idle ticks without a sample: the node and the ticks of each cell, and the run of cells it is in, which have bin, vCPU, mode and thread
// in common.
function readCells(text, missed, halted) {
  const packed = new Packed(text);
  const idle = missed.filter((row) => row.idle > 0);
  const sampled = packed.next();
  const length = sampled + idle.length;
  const cells = { node: new Int32Array(length), ticks: new Float64Array(length), run: new Int32Array(length), length };
  const [bins, vcpus, modes, threads] = [[], [], [], []];
  const addRun = (bin, vcpu, mode, thread) => {
    bins.push(bin);
    vcpus.push(vcpu);
    modes.push(mode);
    threads.push(thread);
  };
  let [bin, thread] = [0, 0];
  for (let cell = 0; cell < sampled;) {
    bin += packed.next();
    const number = packed.next();
    thread += packed.nextDifference();
    const end = cell + packed.next();
    addRun(bin, Math.floor(number / 4), number % 4, thread);
    for (let node = 0; cell < end; cell++) {
      node += packed.next();
      cells.node[cell] = node;
      cells.ticks[cell] = packed.next();
      cells.run[cell] = bins.length - 1;
    }
  }
  idle.forEach((row, index) => {
    addRun(row.bin, row.vcpu, MODES.indexOf("idle"), halted.threads[row.recording]);
    cells.node[sampled + index] = halted.node;
    cells.ticks[sampled + index] = row.idle;
    cells.run[sampled + index] = bins.length - 1;
  });
  const runs = { bin: Uint16Array.from(bins), vcpu: Uint16Array.from(vcpus), mode: Uint8Array.from(modes), thread: Int32Array.from(threads) };
  return [cells, runs];
}

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

const data = JSON.parse(element("data").textContent);
// The stacks as they were recorded; transforms.js has those that are shown.
const recorded = readNodes(data.nodes);
const missed = readMissed(data.missed);
const [cells, runs] = readCells(data.cells, missed, data.halted);
const allTicks = cells.ticks.reduce((sum, ticks) => sum + ticks, 0);
const { functions, modules, threads, processes } = data;
// Behind its functions each module has one that stands for all of them, where it is collapsed.
const moduleFunctions = (() => {
  const first = functions.name.length;
  const isOfKernel = new Map(functions.module.map((module, fn) => [module, functions.kernel[fn]]));
  modules.name.forEach((name, module) => {
    for (const [column, value] of Object.entries({ name: name || "[none]", module, kernel: isOfKernel.get(module) ?? 0, low: "", span: "", lines: "" })) functions[column].push(value);
  });
  return { first, of: (module) => first + module };
})();
const isOfModule = (fn) => fn >= moduleFunctions.first;
const vcpus = [...new Set([...runs.vcpu, ...missed.map((row) => row.vcpu)])].sort((a, b) => a - b);

// A process is known by its number in the list, -1 for all that aren't told apart: pids mean nothing in another recording. In a
// comparison, processes of the same name are the first one of this name, and so are threads of the same names.
const OTHERS = -1;
const isComparison = data.comparison;
const firstOfName = (names) => {
  const first = new Map();
  names.forEach((name, index) => { if (!first.has(name)) first.set(name, index); });
  return names.map((name) => first.get(name));
};
const sameProcess = isComparison ? firstOfName(processes.name.map((name, process) => name || `pid ${processes.pid[process]}`)) : processes.name.map((_, process) => process);
const processOf = (() => {
  const numbers = new Map(processes.pid.map((pid, process) => [`${processes.recording[process]}:${pid}`, sameProcess[process]]));
  return threads.pid.map((pid, thread) => numbers.get(`${threads.recording[thread]}:${pid}`) ?? OTHERS);
})();
// One thread may be in the list several times, with other labels of its process.
const sameThread = firstOfName(threads.name.map((name, thread) => isComparison
  ? JSON.stringify([processOf[thread], threads.tid[thread] === null, name || threads.tid[thread]])
  : `${threads.recording[thread]}:${threads.pid[thread]}:${threads.tid[thread]}`));
// The labels of processes, by their keys and as words.
const labels = data.labels ?? [];
const labelKeys = [...new Set(labels.flatMap(Object.keys))].sort();
const labelName = (thread, key) => `${key}=${labels[data.labelled[thread]][key] ?? "[none]"}`;
const labelNames = [...new Set(labels.flatMap((set) => Object.entries(set).map((label) => label.join("="))))].sort();
// The number of a recording, where there are several: as a part of names, and of what the address of the page says. Where two are compared names have
// none, but one id may be that of another process in each.
const isMerged = data.files.length > 1 && !isComparison;
const ofRecording = (recording) => isMerged ? ` (${recording + 1})` : "";
const inRecording = (recording, id) => isMerged || isComparison ? `${recording + 1}:${id}` : String(id);
const processId = (process) => process === OTHERS ? "null" : inRecording(processes.recording[process], processes.pid[process]);
const threadId = (thread) => inRecording(threads.recording[thread], threads.tid[thread]);
const processName = (process) => process === OTHERS ? "[others]" : isComparison && processes.name[process] ? processes.name[process]
  : `${processes.name[process] || "pid"} ${processes.pid[process]}${ofRecording(processes.recording[process])}`;
const threadName = (thread) => threads.tid[thread] === null ? "[others]"
  : threads.tid[thread] === 0 && threads.pid[thread] === 0 ? processName(processOf[thread])
    : isComparison && threads.name[thread] ? threads.name[thread]
      : `${threads.name[thread] || "tid"} ${threads.tid[thread]}${ofRecording(threads.recording[thread])}`;
const moduleName = (fn) => modules.name[functions.module[fn]] ?? "";
// What functions without a module are filtered by.
const NO_MODULE = "[none]";

// What a function is called in the address of the page.
const keyOf = (fn) => [functions.name[fn], moduleName(fn), functions.kernel[fn] ? "k" : "u"].join("|");
let functionKeys = null;
// The function that is called so, if there is one. Most addresses of the page call none.
function functionOfKey(key) {
  // A module that is called as one of its functions comes after it.
  functionKeys ??= new Map(functions.name.map((_, fn) => [keyOf(fn), fn]).reverse());
  return functionKeys.get(key);
}
const nameOfKey = (key) => functions.name[functionOfKey(key)] ?? key.split("|").slice(0, -2).join("|");

const percent = (part, whole) => `${whole > 0 ? (100 * part / whole).toFixed(1) : "0.0"} %`;
const ticksOf = (count) => `${count} ${count === 1 ? "tick" : "ticks"}`;

// The time of an edge of bins in seconds, as the option --time takes it; empty at the ends of the recording.
const edgeTime = (edge) => edgeTimeIn(edge, data.times[0], data.begin);

function edgeTimeIn(edge, { begin, end }, first) {
  if (edge <= 0) return begin === null ? "" : seconds(begin);
  if (edge >= data.bins) return end === null ? "" : seconds(end);
  return seconds(first + edge * data.width);
}

// Seconds with as many decimals as it takes, at least three.
function seconds(ns) {
  const text = (ns / 1e9).toFixed(9);
  return text.replace(/(\.\d{3}\d*?)0+$/, "$1");
}

// A duration for people.
function duration(ns) {
  const [scale, unit] = ns < 1e6 ? [1e3, "µs"] : ns < 1e9 ? [1e6, "ms"] : [1e9, "s"];
  return `${Number((ns / scale).toPrecision(4))} ${unit}`;
}

// The time of an edge for people.
const shownTime = (edge) => `${((data.begin + Math.min(edge * data.width, data.length)) / 1e9).toFixed(3)} s`;

// Wilson's score interval at 95 %, as in the report.
function interval(part, whole) {
  const z = 1.959964;
  if (whole === 0) return [0, 1];
  const p = part / whole;
  const scale = 1 + z * z / whole;
  const middle = (p + z * z / (2 * whole)) / scale;
  const half = z / scale * Math.sqrt(p * (1 - p) / whole + z * z / (4 * whole * whole));
  return [Math.max(0, middle - half), Math.min(1, middle + half)];
}
