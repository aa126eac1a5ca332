// The lanes of the timeline: what they have, and how each is drawn.

const SVG = element("svg").namespaceURI;
const LANES = 12; // of processes at first; of a process's threads
const VCPU_LANES = 64;
const PARTS = [...MODES, ...MISSED];

// All ticks of each bin, by vCPU, by recording and together, whatever is selected: lanes are scaled by them.
/** @type {{ all: Float64Array, byVcpu: Map<number, Float64Array>, byRecording: Float64Array[] }} */
let wholes;
derive(() => {
  const all = new Float64Array(data.bins);
  const byVcpu = new Map(vcpus.map((vcpu) => [vcpu, new Float64Array(data.bins)]));
  const byRecording = data.lengths.map(() => new Float64Array(data.bins));
  /** @type {(bin: number, vcpu: number, recording: number, ticks: number) => void} */
  const add = (bin, vcpu, recording, ticks) => {
    all[bin] += ticks;
    byRecording[recording][bin] += ticks;
    const own = byVcpu.get(vcpu);
    if (own) own[bin] += ticks;
  };
  for (let run = 0; run < runs.length; run++) add(runs.bin[run], runs.vcpu[run], threads.recording[runs.thread[run]], runs.ticks[run]);
  for (const { bin, vcpu, recording, parts } of missed) add(bin, vcpu, recording, parts.reduce((sum, ticks) => sum + ticks, 0));
  wholes = { all, byVcpu, byRecording };
});

/**
 * @typedef {"recording" | "vcpu" | "label" | "process" | "thread"} LaneKind
 * Its parts are of each bin the ticks of each kind.
 * @typedef {{ kind: LaneKind, key: number, ticks: number, parts: Float64Array, canOpen?: boolean, isOpen?: boolean }} LaneRow
 * @typedef {{ name: string, row: LaneRow, whole: Float64Array, box: Element }} Lane
 */

/** @type {(row: LaneRow, bin: number, part: number, ticks: number) => void} */
function addToLane(row, bin, part, ticks) {
  row.parts[bin * PARTS.length + part] += ticks;
  row.ticks += ticks;
}

// Ticks of lanes by key: of each bin those of each kind.
class LaneSums {
  /** @type {Map<number, LaneRow>} */
  rows = new Map();

  /** @param {LaneKind} kind */
  constructor(kind) {
    this.kind = kind;
  }

  /** @type {(key: number) => LaneRow} */
  row(key) {
    const row = this.rows.get(key) ?? { kind: this.kind, key, ticks: 0, parts: new Float64Array(data.bins * PARTS.length) };
    this.rows.set(key, row);
    return row;
  }

  // The busiest first.
  sorted() {
    return [...this.rows.values()].sort((a, b) => b.ticks - a.ticks);
  }
}

// The process whose threads have lanes until somebody opens or closes one: the busiest that has several.
/** @type {string[]} */
let usuallyOpen;
derive(() => {
  const [threadsOf, ticks] = [new Map(), new Float64Array(processes.pid.length)];
  for (let run = 0; run < runs.length; run++) {
    const process = processOf[runs.thread[run]];
    if (process === OTHERS || processes.pid[process] === 0) continue;
    ticks[process] += runs.ticks[run];
    threadsOf.set(process, (threadsOf.get(process) ?? new Set()).add(sameThread[runs.thread[run]]));
  }
  const several = [...threadsOf.keys()].filter((process) => threadsOf.get(process).size > 1);
  usuallyOpen = several.sort((a, b) => ticks[b] - ticks[a]).slice(0, 1).map(processId);
});
const NONE_OPEN = "none";
const openProcesses = () => state.open.length > 0 ? state.open : usuallyOpen;

/** @type {(id: string, isOpen: boolean) => void} */
function openProcess(id, isOpen) {
  const others = openProcesses().filter((one) => one !== id && one !== NONE_OPEN);
  const open = isOpen ? [...others, id] : others;
  change({ open: open.length > 0 ? open : [NONE_OPEN] });
}

// What the first lanes are of: vCPUs, or the two recordings of a comparison.
const FIRST = isComparison ? "recording" : "vcpu";

// The lanes of what the filters but that of time select: vCPUs, or recordings, then the busiest values of the label that graphs are grouped by, if they are, and the
// busiest processes, each with its threads if it is open. Idle is no process.
/** @type {(most: number) => { rows: LaneRow[], vcpus: number, labels: number, processes: number }} */
function laneRows(most) {
  const [byFirst, byLabel, byProcess, byThread] = [new LaneSums(FIRST), new LaneSums("label"), new LaneSums("process"), new LaneSums("thread")];
  const opened = new Set(openProcesses());
  const firstOf = oncePerKey((key) => byFirst.row(key));
  (isComparison ? [0, 1] : vcpus.filter(isSelectedVcpu)).forEach(firstOf);
  const threadsOf = new Map();
  // The lanes that a thread's ticks are in.
  const lanesOf = oncePerKey((one) => {
    const thread = sameThread[one];
    const process = processOf[thread];
    if (processes.pid[process] === 0) return [];
    threadsOf.set(process, (threadsOf.get(process) ?? new Set()).add(thread));
    return [byProcess.row(process), ...opened.has(processId(process)) ? [byThread.row(thread)] : [], ...isByLabel() ? [byLabel.row(GROUPS[state.group](one))] : []];
  });
  eachRun(sums.all, (run, ticks) => {
    const [bin, mode] = [runs.bin[run], runs.mode[run]];
    addToLane(firstOf(isComparison ? sideOf(run) : runs.vcpu[run]), bin, mode, ticks);
    for (const row of lanesOf(runs.thread[run])) addToLane(row, bin, mode, ticks);
  });
  for (const { bin, vcpu, recording, parts } of missed) {
    if (isSelectedVcpu(vcpu)) parts.forEach((ticks, part) => addToLane(firstOf(isComparison ? recording : vcpu), bin, MODES.length + part, ticks));
  }
  const allVcpus = [...byFirst.rows.values()].sort((a, b) => a.key - b.key);
  const [allLabels, allProcesses, allThreads] = [byLabel.sorted(), byProcess.sorted(), byThread.sorted()];
  const rows = [...allVcpus.slice(0, VCPU_LANES), ...allLabels.slice(0, most)];
  for (const row of allProcesses.slice(0, most)) {
    const own = [...threadsOf.get(row.key)];
    rows.push({ ...row, canOpen: own.length > 1, isOpen: own.length > 1 && opened.has(processId(row.key)) });
    rows.push(...own.length > 1 ? allThreads.filter(({ key }) => processOf[key] === row.key).slice(0, LANES) : []);
  }
  return { rows, vcpus: allVcpus.length, labels: allLabels.length, processes: allProcesses.length };
}

/** @type {Record<LaneKind, (key: number) => string>} */
const LANE_NAMES = { recording: (key) => ["before", "after"][key], vcpu: (key) => `vCPU ${key}`,
  label: (key) => GROUP_NAMES[state.group](key), process: processName, thread: threadName };
/** @type {(row: LaneRow) => Float64Array} */
const wholeOf = (row) => row.kind === "vcpu" ? wholes.byVcpu.get(row.key) ?? wholes.all : row.kind === "recording" ? wholes.byRecording[row.key] : wholes.all;
/** @type {(row: LaneRow, bin: number) => Float64Array} */
const partsOf = ({ parts }, bin) => parts.subarray(bin * PARTS.length, (bin + 1) * PARTS.length);

// The selected ticks of a lane in the selected time.
/** @param {LaneRow} row */
function selectedTicks(row) {
  const [begin, end] = selectedBins();
  let ticks = 0;
  for (let bin = begin; bin < end; bin++) for (let mode = 0; mode < MODES.length; mode++) ticks += row.parts[bin * PARTS.length + mode];
  return ticks;
}

// The share that a full lane of a process, thread or label stands for: the largest one. vCPUs and recordings fill their lanes.
/** @type {(rows: LaneRow[]) => number} */
function scaleOf(rows) {
  let scale = 0;
  for (const row of rows) {
    if (row.kind === FIRST) continue;
    wholes.all.forEach((whole, bin) => { if (whole > 0) scale = Math.max(scale, partsOf(row, bin).reduce((sum, ticks) => sum + ticks) / whole); });
  }
  return scale || 1;
}

// The pauses of what a lane is of. Those of one recording of several are none of their common lanes.
/** @type {(row: LaneRow) => PageData["pauses"]} */
const pausesOf = ({ kind, key }) => data.pauses.filter(({ recording }) => kind === "recording" ? recording === key : data.lengths.length === 1);

// When the process of a lane executed another program.
/** @type {(row: LaneRow) => PageData["execs"]} */
const execsOf = ({ kind, key }) => kind === "process" ? data.execs.filter(({ process }) => process === key) : [];

// The paths of a lane's marks: what is at other times than the page's is outside of it.
/** @param {LaneRow} row */
function marksOf(row) {
  const at = (/** @type {number} */ time) => (time - data.begin) / data.width;
  const pauses = pausesOf(row).map(({ begin, end }) => `M${at(begin)} 0H${end === null ? data.bins : at(end)}V100H${at(begin)}z`);
  return { paused: pauses.join(""), exec: execsOf(row).map(({ time }) => `M${at(time)} 0V100`).join("") };
}

// A lane: an area for each kind of ticks, one for the pauses of the guest, and a line where the process executed another program.
/** @type {(row: LaneRow, scale: number) => Lane} */
function drawLane(row, scale) {
  const [name, whole] = [LANE_NAMES[row.kind](row.key), wholeOf(row)];
  const paths = PARTS.map(() => "");
  whole.forEach((all, bin) => {
    if (all === 0) return;
    let bottom = 100;
    partsOf(row, bin).forEach((ticks, part) => {
      const height = 100 * ticks / all / (row.kind === FIRST ? 1 : scale);
      if (ticks > 0) paths[part] += `M${bin} ${(bottom - height).toFixed(1)}h1V${bottom.toFixed(1)}h-1z`;
      bottom -= height;
    });
  });
  const areas = paths.map((path, part) => shape("path", { class: PARTS[part], d: path })).filter((_, part) => paths[part] !== "");
  areas.push(...Object.entries(marksOf(row)).filter(([, path]) => path !== "").map(([kind, path]) => shape("path", { class: kind, d: path })));
  const about = { preserveAspectRatio: "none", role: "img", class: row.kind, "aria-label": `${name}: ${ticksOf(row.ticks)} over time` };
  return { name, row, whole, box: shape("svg", about, ...areas) };
}

// Areas are stretched, hatching is not: in a box that shows these bins.
/** @type {(hatching: string, bins: Bins, box: Element) => void} */
function stretchHatching(hatching, [from, to], { clientWidth, clientHeight }) {
  const stretch = `scale(${(to - from) / (clientWidth || 1)} ${100 / (clientHeight || 1)}) rotate(45)`;
  for (const pattern of document.querySelectorAll(`${hatching} pattern`)) pattern.setAttribute("patternTransform", stretch);
}

// The name of a lane, which is a filter, with its share of the selected ticks; that of a process opens its threads.
/** @type {(lane: Lane) => HTMLElement} */
function laneName({ name, row }) {
  if (row.kind === "recording") {
    const { key } = row;
    return make("div", { className: "recording", title: data.files[key] ?? "" }, make("span", { className: "fold" }), make("span", { className: "name", textContent: name }),
      make("span", { className: "share", textContent: duration(data.lengths[key]) }));
  }
  const opener = row.canOpen ? make("button", { type: "button", className: "fold", textContent: row.isOpen ? "▾" : "▸", "aria-expanded": row.isOpen, "aria-label": `Threads of ${name}`,
    onclick: () => openProcess(processId(row.key), !row.isOpen) }) : make("span", { className: "fold" });
  const choose = make("button", { type: "button", className: "name", textContent: name, title: `${name}: only this; with Alt all but this`, onclick: (/** @type {MouseEvent} */ event) => chooseLane(row, name, event.altKey) });
  return make("div", { className: row.kind }, opener, choose, make("span", { className: "share", textContent: percent(selectedTicks(row), sums.total) }));
}

/** @type {(row: LaneRow, name: string, isWithout: boolean) => void} */
function chooseLane({ kind, key }, name, isWithout) {
  const choose = isWithout ? exclude : include;
  if (kind === "vcpu") choose("vcpu", String(key));
  // There is no filter for what has no label.
  else if (kind === "label" && labelNames.includes(name)) choose("label", name);
  else if (kind === "process" && key !== OTHERS) choose("pid", processId(key));
  else if (kind === "thread" && threads.tid[key] !== null) includeThread(key);
}
