// The stack chart: what each vCPU did over time. Of a bin it shows the way from the outermost function that most ticks took, at each call again: bins don't know
// the order of their ticks. The same way in the next bin is the same frames.

const CHARTS = 16; // vCPUs that are shown

// The bins of the chart: those that are shown, of the selected time if there is one among them.
/** @returns {Bins} */
function chartBins() {
  const [shown, selected] = [shownBins(), selectedBins()];
  const [from, to] = [Math.max(shown[0], selected[0]), Math.min(shown[1], selected[1])];
  return from < to ? [from, to] : selected;
}

// By vCPU and bin, the runs there, of those that the filters but that of time select.
/** @type {(bins: Bins) => Map<number, Map<number, number[]>>} */
function runsByBin([from, to]) {
  const found = new Map();
  eachRun(sums.all, (run) => {
    const [bin, vcpu] = [runs.bin[run], runs.vcpu[run]];
    if (bin < from || bin >= to) return;
    if (!found.has(vcpu)) found.set(vcpu, new Map());
    const bins = found.get(vcpu);
    if (!bins.has(bin)) bins.set(bin, []);
    bins.get(bin).push(run);
  });
  return found;
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

// The frames of a vCPU below one that stands for it, in the order of time.
/** @type {(vcpu: number, ways: WayFinder, bins: Map<number, number[]>, shown: Bins) => ChartFrame} */
function chartOf(vcpu, ways, bins, [from, to]) {
  const root = new ChartFrame(null, "", -1, `vCPU ${vcpu}`, 0, [from, to]);
  for (let bin = from; bin < to; bin++) {
    let parent = root;
    for (const { node, modes, ticks } of ways.of(bins.get(bin) ?? [])) {
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

// A vCPU's part of the chart. Keys move in it as in a graph.
class ChartLane extends Flames {
  isUpright = true;

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

  get isCrowded() {
    return this.lanes.some((lane) => lane.isCrowded);
  }

  get hits() {
    return this.lanes.flatMap((lane) => lane.hits);
  }

  /** @param {Search} isHit */
  draw(isHit) {
    const span = chartBins();
    const [byBin, ways] = [runsByBin(span), new WayFinder()];
    const shown = vcpus.filter(isSelectedVcpu).slice(0, CHARTS);
    if (this.lanes.length !== shown.length) {
      this.lanes = shown.map(() => new ChartLane(make("div", { className: "graph" }), "Stacks over time", this.select, ({ from, to }) => showSpan(from, to)));
      this.box.replaceChildren(...this.lanes.map((lane) => lane.box));
    }
    this.lanes.forEach((lane, index) => {
      lane.box.setAttribute("aria-label", `Stacks of vCPU ${shown[index]} over time`);
      lane.drawLane(chartOf(shown[index], ways, byBin.get(shown[index]) ?? new Map(), span), span, isHit);
    });
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
