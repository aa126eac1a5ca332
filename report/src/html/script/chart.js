// The stack chart: what each vCPU or thread did over time. Of a bin it shows the way from the outermost function that most ticks took, at each call again: bins don't know
// the order of their ticks. The same way in the next bin is the same frames.

const CHARTS = 16; // lanes that are shown

// The bins of the chart: those that are shown, of the selected time if there is one among them.
/** @returns {Bins} */
function chartBins() {
  const [shown, selected] = [shownBins(), selectedBins()];
  const [from, to] = [Math.max(shown[0], selected[0]), Math.min(shown[1], selected[1])];
  return from < to ? [from, to] : selected;
}

// What the lanes are of: the selected vCPUs, or the threads of the selected time, the busiest first.
/** @type {(kind: ChartKind) => number[]} */
function chartKeys(kind) {
  if (kind === "vcpu") return vcpus.filter(isSelectedVcpu);
  /** @type {(row: Row) => number} */
  const busyTicks = ({ ticks, modes }) => ticks - modes[IDLE];
  return sums.thread.sorted().sort((a, b) => busyTicks(b) - busyTicks(a)).map(({ key }) => key);
}

/**
 * @typedef {"vcpu" | "thread"} ChartKind
 * @typedef {{ row: LaneRow, byBin: Map<number, number[]> }} ChartRuns
 */
// For each key the runs there by bin, of those that the filters but that of time select, and their ticks. A vCPU's other ticks aren't of what is selected, but
// say why nothing is there: those that were stolen, lost or not asked for, and all of its idle ones.
/** @type {(keys: number[], kind: ChartKind, bins: Bins) => ChartRuns[]} */
function chartRuns(keys, kind, [from, to]) {
  const rows = new LaneSums(kind);
  const found = new Map(keys.map((key) => [key, { row: rows.row(key), byBin: new Map() }]));
  /** @type {(key: number, bin: number, part: number, ticks: number) => ChartRuns | undefined} */
  const add = (key, bin, part, ticks) => {
    const its = bin >= from && bin < to ? found.get(key) : undefined;
    if (its) addToLane(its.row, bin, part, ticks);
    return its;
  };
  const isOfVcpus = kind === "vcpu";
  eachRun(sums.all, (run, ticks) => {
    const [bin, mode] = [runs.bin[run], runs.mode[run]];
    const byBin = add(isOfVcpus ? runs.vcpu[run] : sameThread[runs.thread[run]], bin, mode, isOfVcpus && mode === IDLE ? 0 : ticks)?.byBin;
    byBin?.set(bin, byBin.get(bin) ?? []).get(bin)?.push(run);
  });
  if (!isOfVcpus) return [...found.values()];
  for (let run = 0; run < runs.length; run++) if (runs.mode[run] === IDLE) add(runs.vcpu[run], runs.bin[run], IDLE, runs.ticks[run]);
  for (const { bin, vcpu, parts } of missed) parts.forEach((ticks, part) => add(vcpu, bin, MODES.length + part, ticks));
  return [...found.values()];
}

// Finds the way that most ticks of a bin took: of all stacks the outermost node with most ticks, of those that begin with it the next one with most, and so on.
class WayFinder {
  outermost = new Int32Array(nodes.length); // of a node's stack
  // Ticks by node, and the nodes that have any: between two steps there are none.
  ticks = new Float64Array(nodes.length);
  /** @type {number[]} */
  found = [];

  constructor() {
    for (let node = 1; node < nodes.length; node++) this.outermost[node] = this.outermost[nodes.parent[node]] || node;
  }

  // The nodes of the way of these runs, the outermost first, each with its ticks by mode.
  /** @type {(its: number[]) => { node: number, modes: number[], ticks: number }[]} */
  of(its) {
    const way = [];
    let [rest, modesOfRest] = this.cellsOf(its);
    for (let level = 1; rest.length > 0; level++) {
      for (const cell of rest) this.add(this.nodeAt(cell, level), cells.ticks[cell]);
      const node = this.takeHeaviest();
      const modes = [0, 0, 0, 0];
      const [deeper, modesOfDeeper] = [/** @type {number[]} */ ([]), /** @type {number[]} */ ([])];
      for (let index = 0; index < rest.length; index++) {
        const [cell, mode] = [rest[index], modesOfRest[index]];
        if (this.nodeAt(cell, level) !== node) continue;
        modes[mode] += cells.ticks[cell];
        if (shownAs[cells.node[cell]] === node) continue;
        deeper.push(cell);
        modesOfDeeper.push(mode);
      }
      way.push({ node, modes, ticks: modes.reduce((sum, ticks) => sum + ticks, 0) });
      [rest, modesOfRest] = [deeper, modesOfDeeper];
    }
    return way;
  }

  // The selected cells of runs that have a stack, and their modes.
  /** @type {(its: number[]) => [number[], number[]]} */
  cellsOf(its) {
    const byNode = sums.all.nodes;
    const [found, modes] = [/** @type {number[]} */ ([]), /** @type {number[]} */ ([])];
    for (const run of its) {
      for (let cell = runs.begin[run]; cell < runs.begin[run + 1]; cell++) {
        const node = cells.node[cell];
        if (byNode !== null && byNode[node] === 0 || shownAs[node] === 0) continue;
        found.push(cell);
        modes.push(runs.mode[run]);
      }
    }
    return [found, modes];
  }

  // The node of a cell's stack at a depth that it has.
  /** @type {(cell: number, level: number) => number} */
  nodeAt(cell, level) {
    let node = shownAs[cells.node[cell]];
    if (level === 1) return this.outermost[node];
    while (depths[node] > level) node = nodes.parent[node];
    return node;
  }

  /** @type {(node: number, ticks: number) => void} */
  add(node, ticks) {
    if (this.ticks[node] === 0) this.found.push(node);
    this.ticks[node] += ticks;
  }

  takeHeaviest() {
    let most = this.found[0];
    for (const node of this.found) if (this.ticks[node] > this.ticks[most]) most = node;
    for (const node of this.found) this.ticks[node] = 0;
    this.found = [];
    return most;
  }
}

// A frame of the chart, from one bin to another. What isn't on the way has no frame: the rest of its ticks isn't its own.
class ChartFrame extends Frame {
  /** @type {ChartFrame[]} */
  steps = [];

  /** @param {Frame | null} parent @param {string} id @param {number} fn @param {string} name @param {number} node @param {Bins} bins */
  constructor(parent, id, fn, name, node, [from, to]) {
    super(parent, id, fn, name);
    this.node = node;
    this.from = from;
    this.to = to;
    this.calls = this.steps;
  }
}

// The frames of a lane below one that stands for it, in the order of time.
/** @type {(its: ChartRuns, ways: WayFinder, shown: Bins) => ChartFrame} */
function chartOf({ row, byBin }, ways, [from, to]) {
  // As a group of a graph it has what can be done with a thread.
  const root = new ChartFrame(null, `${row.kind === "thread" ? "g" : "v"}${row.key}`, -1, LANE_NAMES[row.kind](row.key), 0, [from, to]);
  for (let bin = from; bin < to; bin++) {
    let parent = root;
    for (const { node, modes, ticks } of ways.of(byBin.get(bin) ?? [])) {
      let frame = parent.steps.at(-1);
      if (frame?.node !== node || frame.to !== bin) {
        const fn = nodes.fn[node];
        frame = new ChartFrame(parent, `${bin}-${node}`, fn, functions.name[fn], node, [bin, bin]);
        frame.isInlined = (nodes.flags[node] & 2) === 2;
        parent.steps.push(frame);
      }
      frame.to = bin + 1;
      frame.ticks += ticks;
      if (parent === root) root.ticks += ticks;
      const shown = frame;
      modes.forEach((count, mode) => { shown.modes[mode] += count; });
      if (nodes.flags[node] & 1) frame.cut += ticks;
      parent = frame;
    }
  }
  root.calls.forEach(({ modes }) => modes.forEach((count, mode) => { root.modes[mode] += count; }));
  return root;
}

// A lane of the chart, below a strip that says what its ticks are: frames are as wide as bins, however many ticks they had. Keys move in it as in a graph.
class ChartLane extends Flames {
  isUpright = true;
  /** @type {Element} */
  strip = make("div");

  /** @type {(root: ChartFrame, bins: Bins, isHit: Search) => void} */
  drawLane(root, [from, to], isHit) {
    Object.assign(this, { root, zoomed: root, hangs: true, elements: new Map(), hits: [] });
    const width = this.box.clientWidth || 1;
    /** @type {Box[]} */
    const boxes = [];
    const rest = [root];
    for (let index = 0; index < rest.length && boxes.length < MOST; index++) {
      const frame = rest[index];
      const share = (frame.to - frame.from) / (to - from);
      boxes.push({ frame, left: (frame.from - from) / (to - from), share, isAbove: false });
      rest.push(...frame.steps.filter((call) => (call.to - call.from) / (to - from) * width >= THINNEST));
    }
    this.isCrowded = boxes.length < rest.length;
    this.box.replaceChildren(...boxes.map((box) => this.element(box, width, isHit)));
    this.box.style.height = `${HEIGHT * (boxes.reduce((depth, { frame }) => Math.max(depth, frame.depth), 0) + 1)}px`;
    this.box.classList.toggle("searched", isHit !== null);
    if (!this.elements.has(this.current)) this.current = "";
    this.elements.get(this.current)?.setAttribute("tabindex", "0");
  }
}

class StackChart {
  /** @type {ChartLane[]} */
  lanes = [];

  /** @param {HTMLElement} box @param {(frame: Frame, view: View) => void} select */
  constructor(box, select) {
    this.box = box;
    this.select = select;
  }

  note = make("p", { className: "note" });

  get isCrowded() {
    return this.lanes.some((lane) => lane.isCrowded);
  }

  get hits() {
    return this.lanes.flatMap((lane) => lane.hits);
  }

  /** @param {Search} isHit */
  draw(isHit) {
    const [span, ways] = [chartBins(), new WayFinder()];
    const kind = state.group === "thread" ? "thread" : "vcpu";
    const keys = chartKeys(kind);
    const found = chartRuns(keys.slice(0, CHARTS), kind, span);
    const scale = scaleOf(found.map(({ row }) => row));
    if (this.lanes.length !== found.length) {
      this.lanes = found.map(() => new ChartLane(make("div", { className: "graph" }), "Stacks over time", this.select, ({ from, to }) => showSpan(from, to)));
      this.box.replaceChildren(...this.lanes.flatMap((lane) => [lane.strip, lane.box]), this.note);
    }
    this.lanes.forEach((lane, index) => {
      const { name, box } = drawLane(found[index].row, scale);
      box.setAttribute("viewBox", `${span[0]} 0 ${span[1] - span[0]} 100`);
      lane.strip.replaceWith(box);
      lane.strip = box;
      lane.box.setAttribute("aria-label", `Stacks of ${name} over time`);
      lane.drawLane(chartOf(found[index], ways, span), span, isHit);
    });
    if (this.lanes.length > 0) stretchHatching("#charthatching", span, this.lanes[0].strip);
    this.note.textContent = boundText(found.length, keys.length, kind === "vcpu" ? "first vCPUs" : "busiest threads");
  }

  /** @param {number} fn */
  mark(fn) {
    for (const lane of this.lanes) lane.mark(fn);
  }

  /** @param {Frame} frame */
  reveal(frame) {
    for (const lane of this.lanes) lane.reveal(frame);
  }
}
