// Ticks over time. A range is selected by dragging, or by the two sliders.

const SVG = element("svg").namespaceURI;
const LANES = 12; // of processes or threads
const VCPU_LANES = 64;
const LANES_OF = { process: "processes", thread: "threads" };
const PARTS = [...MODES, ...MISSED];

const lanes = { boxes: [], at: { lane: 0, bin: 0 }, isRead: false };

function setUpTimeline() {
  element("lanes").addEventListener("change", (event) => change({ lanes: event.target.value }));
  for (const [id, other] of [["begin", "end"], ["end", "begin"]]) {
    const slider = element(id);
    slider.max = data.bins;
    // A slider doesn't pass the other one.
    slider.addEventListener("input", () => {
      const limit = Number(element(other).value);
      slider.value = id === "begin" ? Math.min(slider.value, limit - 1) : Math.max(slider.value, limit + 1);
      markRange(Number(element("begin").value), Number(element("end").value));
    });
    slider.addEventListener("change", () => change({ time: timeRange(Number(element("begin").value), Number(element("end").value)), zoom: "" }));
  }
  element("alltime").addEventListener("click", () => change({ time: "", zoom: "" }));
  setUpDragging(element("timeline"));
  element("lanesbox").addEventListener("keydown", (event) => moveInLanes(event));
  element("lanesbox").addEventListener("focus", () => showValues(lanes.at.lane, lanes.at.bin));
}

// Arrow keys move from bin to bin, and from lane to lane.
function moveInLanes(event) {
  const { lane, bin } = lanes.at;
  const ways = { ArrowLeft: [lane, bin - 1], ArrowRight: [lane, bin + 1], ArrowUp: [lane - 1, bin], ArrowDown: [lane + 1, bin],
    Home: [lane, 0], End: [lane, data.bins - 1] };
  if (!(event.key in ways) || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  showValues(...ways[event.key]);
}

function setUpDragging(box) {
  let from = null;
  const place = (event) => {
    const area = element("area").getBoundingClientRect();
    return Math.min(Math.max((event.clientX - area.left) / (area.width || 1), 0), 1) * data.bins;
  };
  const range = (event) => {
    const edges = [from, place(event)].sort((a, b) => a - b);
    const first = Math.min(Math.round(edges[0]), data.bins - 1);
    return [first, Math.max(Math.round(edges[1]), first + 1)];
  };
  box.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    from = place(event);
    box.setPointerCapture(event.pointerId);
  });
  box.addEventListener("pointermove", (event) => {
    if (from !== null) markRange(...range(event));
    showValues(laneAt(event), Math.floor(place(event)));
  });
  box.addEventListener("pointerup", (event) => {
    if (from === null) return;
    const isDrag = Math.abs(place(event) - from) * element("area").clientWidth / data.bins > 4;
    if (isDrag) change({ time: timeRange(...range(event)), zoom: "" });
    else markRange(...selectedBins());
    from = null;
  });
  box.addEventListener("pointercancel", () => {
    from = null;
    markRange(...selectedBins());
  });
}

// Marks the bins that are being selected.
function markRange(begin, end) {
  const mark = element("mark");
  mark.style.left = `${100 * begin / data.bins}%`;
  mark.style.width = `${100 * (end - begin) / data.bins}%`;
  mark.hidden = begin <= 0 && end >= data.bins;
  element("begin").value = begin;
  element("end").value = end;
  element("begin").setAttribute("aria-valuetext", shownTime(begin));
  element("end").setAttribute("aria-valuetext", shownTime(end));
  element("range").textContent = `${shownTime(begin)} to ${shownTime(end)}`;
}

// By lane and bin: the ticks of each kind that the filters but that of time select; all lanes, in order.
function laneRows() {
  const rows = new Map();
  const row = (key) => {
    if (!rows.has(key)) rows.set(key, { key, ticks: 0, bins: Array.from({ length: data.bins }, () => null) });
    return rows.get(key);
  };
  const add = (key, bin, part, ticks) => {
    const found = row(key);
    found.bins[bin] ??= [0, 0, 0, 0, 0, 0, 0];
    found.bins[bin][part] += ticks;
    found.ticks += ticks;
  };
  const keys = { vcpu: (run) => runs.vcpu[run], process: (run) => processOf[runs.thread[run]], thread: (run) => sameThread[runs.thread[run]] };
  if (state.lanes === "vcpu") vcpus.forEach(row);
  eachRun(sums.all, (run, selected, ticks) => {
    const key = keys[state.lanes](run);
    if (state.lanes !== "process" || processes.pid[key] !== 0) add(key, runs.bin[run], runs.mode[run], ticks);
  });
  if (state.lanes === "vcpu") {
    for (const { bin, vcpu, parts } of missed) {
      if (state.vcpu === "" || String(vcpu) === state.vcpu) parts.forEach((ticks, part) => add(vcpu, bin, MODES.length + part, ticks));
    }
    return [...rows.values()].sort((a, b) => a.key - b.key);
  }
  return [...rows.values()].sort((a, b) => b.ticks - a.ticks);
}

// What the lanes are, and what a full one stands for.
function scaleText(scale, shown, all) {
  const isVcpu = state.lanes === "vcpu";
  const full = isVcpu ? "Full height: all ticks of the vCPU." : `Full height: ${percent(scale, 1)} of all vCPUs' ticks.`;
  if (shown === all) return full;
  return `${full} ${isVcpu ? `The first ${shown} of ${all} vCPUs.` : `The busiest ${shown} of ${all} ${LANES_OF[state.lanes]}.`}`;
}

// All ticks of each bin, by vCPU and together, whatever is selected: lanes are scaled by them.
const wholes = (() => {
  const all = new Float64Array(data.bins);
  const byVcpu = new Map(vcpus.map((vcpu) => [vcpu, new Float64Array(data.bins)]));
  const add = (bin, vcpu, ticks) => {
    all[bin] += ticks;
    byVcpu.get(vcpu)[bin] += ticks;
  };
  for (let cell = 0; cell < cells.length; cell++) {
    const run = cells.run[cell];
    add(runs.bin[run], runs.vcpu[run], cells.ticks[cell]);
  }
  for (const { bin, vcpu, parts } of missed) add(bin, vcpu, parts.reduce((sum, ticks) => sum + ticks, 0));
  return { all, byVcpu };
})();

function drawTimeline() {
  element("lanes").value = state.lanes;
  const all = laneRows();
  const rows = all.slice(0, state.lanes === "vcpu" ? VCPU_LANES : LANES);
  const whole = (row) => state.lanes === "vcpu" ? wholes.byVcpu.get(row.key) : wholes.all;
  const shareOf = (row, bin) => {
    const all = whole(row)[bin];
    return row.bins[bin] && all > 0 ? row.bins[bin].reduce((sum, ticks) => sum + ticks, 0) / all : 0;
  };
  // vCPUs fill their lanes; of processes and threads the largest share does.
  let scale = 1;
  if (state.lanes !== "vcpu") {
    scale = rows.reduce((most, row) => row.bins.reduce((share, _, bin) => Math.max(share, shareOf(row, bin)), most), 0) || 1;
  }
  element("scale").textContent = scaleText(scale, rows.length, all.length);
  const names = { vcpu: (key) => `vCPU ${key}`, process: processName, thread: threadName };
  lanes.boxes = rows.map((row) => drawLane(names[state.lanes](row.key), row, whole(row), scale));
  element("area").style.setProperty("--lanes", rows.length);
  element("names").replaceChildren(...lanes.boxes.map((lane) => make("span", { textContent: lane.name, title: lane.name })));
  element("lanesbox").replaceChildren(...lanes.boxes.map((lane) => lane.box));
  const times = [0, 1, 2, 3, 4].map((quarter) => ((data.begin + data.length * quarter / 4) / 1e9).toFixed(3));
  element("times").replaceChildren(...times.map((time) => make("span", { textContent: `${time} s` })));
  markRange(...selectedBins());
  // What it said may have been of another selection.
  if (lanes.isRead) showValues(lanes.at.lane, lanes.at.bin);
}

// A lane: an area for each kind of ticks.
function drawLane(name, row, whole, scale) {
  const box = document.createElementNS(SVG, "svg");
  box.setAttribute("viewBox", `0 0 ${data.bins} 100`);
  box.setAttribute("preserveAspectRatio", "none");
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", `${name}: ${ticksOf(row.ticks)} over time`);
  const paths = PARTS.map(() => "");
  row.bins.forEach((parts, bin) => {
    if (!parts || whole[bin] === 0) return;
    let bottom = 100;
    parts.forEach((ticks, part) => {
      const height = 100 * ticks / whole[bin] / scale;
      if (ticks > 0) paths[part] += `M${bin} ${(bottom - height).toFixed(1)}h1V${bottom.toFixed(1)}h-1z`;
      bottom -= height;
    });
  });
  paths.forEach((path, part) => {
    if (path === "") return;
    const area = document.createElementNS(SVG, "path");
    area.setAttribute("class", PARTS[part]);
    area.setAttribute("d", path);
    box.append(area);
  });
  return { name, row, whole, box };
}

// The number of the lane under the pointer.
function laneAt(event) {
  const box = element("lanesbox").getBoundingClientRect();
  return Math.floor((event.clientY - box.top) / (box.height || 1) * lanes.boxes.length);
}

// Says what a lane has in a bin: the nearest ones that there are.
function showValues(index, place) {
  const within = (value, count) => Math.min(Math.max(value, 0), count - 1);
  const bin = within(place, data.bins);
  lanes.at = { lane: within(index, lanes.boxes.length), bin };
  lanes.isRead = true;
  const lane = lanes.boxes[lanes.at.lane];
  if (!lane) {
    element("values").textContent = "";
    return;
  }
  const parts = (lane.row.bins[bin] ?? []).map((ticks, part) => [PARTS[part], ticks]).filter(([, ticks]) => ticks > 0);
  const values = parts.map(([part, ticks]) => `${part} ${ticks} (${percent(ticks, lane.whole[bin])})`).join(", ");
  element("values").textContent = `${lane.name}, ${shownTime(bin)} to ${shownTime(bin + 1)}: ${values || "nothing"}`;
}
