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

// By vCPU and bin, the nodes and ticks of the runs there, of what the filters but that of time select.
/** @typedef {[number, Int32Array][]} RunsOfBin Modes, and cells. */
/** @type {(bins: Bins) => Map<number, Map<number, RunsOfBin>>} */
function runsByBin([from, to]) {
  const found = new Map();
  eachRun(sums.all, (run, selected) => {
    const [bin, vcpu] = [runs.bin[run], runs.vcpu[run]];
    if (bin < from || bin >= to) return;
    if (!found.has(vcpu)) found.set(vcpu, new Map());
    const bins = found.get(vcpu);
    if (!bins.has(bin)) bins.set(bin, []);
    bins.get(bin).push([runs.mode[run], selected]);
  });
  return found;
}

// The nodes of a bin's way, the outermost first, each with its ticks by mode.
/** @type {(runsOfBin: RunsOfBin) => { node: number, modes: number[], ticks: number }[]} */
function heaviestWay(runsOfBin) {
  /** @type {Map<number, number[]>} */
  const modesOf = new Map();
  /** @type {Map<number, number[]>} */
  const calls = new Map();
  for (const [mode, selected] of runsOfBin) {
    for (const cell of selected) {
      for (let node = shownAs[cells.node[cell]]; node > 0; node = nodes.parent[node]) {
        let modes = modesOf.get(node);
        if (!modes) {
          modes = [0, 0, 0, 0];
          modesOf.set(node, modes);
          const called = calls.get(nodes.parent[node]);
          if (called) called.push(node);
          else calls.set(nodes.parent[node], [node]);
        }
        modes[mode] += cells.ticks[cell];
      }
    }
  }
  const way = [];
  const sumOf = (/** @type {number} */ node) => {
    const modes = modesOf.get(node) ?? [];
    return { node, modes, ticks: modes.reduce((sum, ticks) => sum + ticks, 0) };
  };
  for (let called = calls.get(0); called;) {
    const next = called.map(sumOf).reduce((most, call) => call.ticks > most.ticks ? call : most);
    way.push(next);
    called = calls.get(next.node);
  }
  return way;
}

// A frame of the chart, from one bin to another. What isn't on the way has no frame: the rest of its ticks isn't its own.
class ChartFrame extends Frame {
  /** @type {ChartFrame[]} */
  calls = [];

  /** @param {Frame | null} parent @param {string} id @param {number} fn @param {string} name @param {number} node @param {Bins} bins */
  constructor(parent, id, fn, name, node, [from, to]) {
    super(parent, id, fn, name);
    this.node = node;
    this.from = from;
    this.to = to;
  }
}

// The frames of a vCPU below one that stands for it, in the order of time.
/** @type {(vcpu: number, bins: Map<number, RunsOfBin>, shown: Bins) => ChartFrame} */
function chartOf(vcpu, bins, [from, to]) {
  const root = new ChartFrame(null, "", -1, `vCPU ${vcpu}`, 0, [from, to]);
  for (let bin = from; bin < to; bin++) {
    let parent = root;
    for (const { node, modes, ticks } of heaviestWay(bins.get(bin) ?? [])) {
      let frame = parent.calls.at(-1);
      if (frame?.node !== node || frame.to !== bin) {
        const fn = nodes.fn[node];
        frame = new ChartFrame(parent, `${bin}-${node}`, fn, functions.name[fn], node, [bin, bin]);
        frame.isInlined = (nodes.flags[node] & 2) === 2;
        parent.calls.push(frame);
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
      rest.push(...frame.calls.filter((call) => (call.to - call.from) / (to - from) * width >= THINNEST));
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
    const byBin = runsByBin(span);
    const shown = vcpus.filter(isSelectedVcpu).slice(0, CHARTS);
    if (this.lanes.length !== shown.length) {
      this.lanes = shown.map(() => new ChartLane(make("div", { className: "graph" }), "Stacks over time", this.select, ({ from, to }) => showSpan(from, to)));
      this.box.replaceChildren(...this.lanes.map((lane) => lane.box));
    }
    this.lanes.forEach((lane, index) => {
      lane.box.setAttribute("aria-label", `Stacks of vCPU ${shown[index]} over time`);
      lane.drawLane(chartOf(shown[index], byBin.get(shown[index]) ?? new Map(), span), span, isHit);
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
