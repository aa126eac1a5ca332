// Ticks over time. A time is selected by dragging, or by keys; the wheel, two fingers and keys zoom.

const FEWEST = 8; // bins that are shown
const EDGE = 6; // px around an edge of the selected time, where it can be moved
const LABEL = 90; // px that a time of the axis takes at least
const NOTCH = 1.25; // how much more time a notch of the wheel shows
const MOST_PINCHED = 22; // of a pinch on a touchpad in one event, where 100 are a factor of e: as much as a notch

/** @type {{ boxes: Lane[], of: SelectedRuns | null, shape: string, hidden: number, at: { lane: number, bin: number }, isRead: boolean, most: number, anchor: number | null }} */
const lanes = { boxes: [], of: null, shape: "", hidden: 0, at: { lane: 0, bin: 0 }, isRead: false, most: LANES, anchor: null };

// The bins that are shown.
const shownBins = () => binsOf(state.span);

function setUpTimeline() {
  const box = element("area");
  setUpPinching(box, setUpDragging(box));
  // Of a pinch on a touchpad, what was too little to show another bin.
  let pinched = 0;
  box.addEventListener("wheel", (event) => {
    if (event.deltaX === 0 && event.deltaY === 0) return;
    event.preventDefault();
    const by = event.deltaY || event.deltaX;
    if (event.ctrlKey) {
      pinched += Math.min(Math.max(by, -MOST_PINCHED), MOST_PINCHED);
      const before = state.span;
      zoomAt(placeOf(event), Math.exp(pinched / 100));
      if (state.span !== before) pinched = 0;
    } else if (event.shiftKey || event.deltaX !== 0 && event.deltaY === 0) {
      moveBy(by / 500);
    } else {
      zoomAt(placeOf(event), by > 0 ? NOTCH : 1 / NOTCH);
    }
  }, { passive: false });
  element("lanesbox").addEventListener("keydown", (event) => onLaneKey(event));
  element("lanesbox").addEventListener("focus", () => showValues(lanes.at.lane, lanes.at.bin));
  new ResizeObserver(() => drawSpan()).observe(box);
}

/** @type {(first: number, end: number) => void} */
function showSpan(first, end) {
  const width = Math.min(Math.max(Math.round(end - first), Math.min(FEWEST, data.bins)), data.bins);
  const from = Math.min(Math.max(Math.round(first), 0), data.bins - width);
  changeInPlace({ span: timeRange(from, from + width) }, () => {
    drawSpan();
    if (state.tab === "chart") drawViews();
  });
}

// Shows more or less time around a place, which stays where it is.
/** @type {(place: number, factor: number) => void} */
function zoomAt(place, factor) {
  const [from, to] = shownBins();
  const wider = Math.max((to - from) * factor, FEWEST);
  const part = (place - from) / (to - from);
  showSpan(place - part * wider, place - part * wider + wider);
}

/** @param {number} part */
function moveBy(part) {
  const [from, to] = shownBins();
  const step = Math.sign(part) * Math.max(Math.round(Math.abs(part) * (to - from)), 1);
  showSpan(from + step, to + step);
}

// Arrow keys move from bin to bin and from lane to lane; with Shift they select.
/** @param {KeyboardEvent} event */
function onLaneKey(event) {
  const { lane, bin } = lanes.at;
  /** @type {Record<string, [number, number]>} */
  const ways = { ArrowLeft: [lane, bin - 1], ArrowRight: [lane, bin + 1], ArrowUp: [lane - 1, bin], ArrowDown: [lane + 1, bin],
    Home: [lane, 0], End: [lane, data.bins - 1] };
  /** @type {Record<string, number>} */
  const zooms = { "+": 0.5, "=": 0.5, "-": 2 };
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key in zooms) zoomAt(bin, zooms[event.key]);
  else if (!(event.key in ways)) return;
  event.preventDefault();
  if (!(event.key in ways)) return;
  lanes.anchor = event.shiftKey ? lanes.anchor ?? bin : null;
  showValues(...ways[event.key]);
  const at = lanes.at.bin;
  const [from, to] = shownBins();
  if (at < from || at >= to) moveBy(at < from ? (at - from) / (to - from) : (at + 1 - to) / (to - from));
  // The steps of one selection are one step of the page.
  if (lanes.anchor !== null) (state.time === "" ? change : changeInPlace)({ time: timeRange(Math.min(lanes.anchor, at), Math.max(lanes.anchor, at) + 1), zoom: "" });
}

// Where the pointer is in the area, from 0 to 1.
/** @type {(event: MouseEvent) => number} */
function partOf(event) {
  const area = element("area").getBoundingClientRect();
  return Math.min(Math.max((event.clientX - area.left) / (area.width || 1), 0), 1);
}

// The place of the pointer, in bins.
/** @type {(event: MouseEvent) => number} */
function placeOf(event) {
  const [from, to] = shownBins();
  return from + partOf(event) * (to - from);
}

// Two fingers zoom: the times that they came to stay under them. They select no time: `giveUp` ends what the first one has begun.
/** @type {(box: HTMLElement, giveUp: () => void) => void} */
function setUpPinching(box, giveUp) {
  /** @type {Map<number, PointerEvent>} */
  const fingers = new Map();
  /** @type {number[]} */
  let held = [];
  const begin = () => { held = [...fingers.values()].map(placeOf); };
  box.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "touch") return;
    fingers.set(event.pointerId, event);
    begin();
    if (fingers.size > 1) giveUp();
  });
  box.addEventListener("pointermove", (event) => {
    if (!fingers.has(event.pointerId)) return;
    fingers.set(event.pointerId, event);
    if (fingers.size !== 2) return;
    const [one, other] = [...fingers.values()].map(partOf);
    const width = (held[1] - held[0]) / (other - one);
    // Fingers that meet or pass each other say nothing.
    if (width > 0 && width < Infinity) showSpan(held[0] - one * width, held[0] - one * width + width);
  });
  for (const name of /** @type {const} */ (["pointerup", "pointercancel"])) {
    box.addEventListener(name, (event) => {
      fingers.delete(event.pointerId);
      begin();
    });
  }
}

// Has pointers select a time in the box. Returns what gives up a selection that is under way.
/** @type {(box: HTMLElement) => () => void} */
function setUpDragging(box) {
  /** @type {number | null} */
  let from = null;
  let began = 0;
  /** @type {(event: PointerEvent) => Bins} */
  const range = (event) => {
    const edges = [from ?? 0, placeOf(event)].sort((a, b) => a - b);
    const first = Math.min(Math.round(edges[0]), data.bins - 1);
    return [first, Math.max(Math.round(edges[1]), first + 1)];
  };
  // The other edge of the selected time, if the pointer is at one.
  /** @type {(event: PointerEvent) => number | null} */
  const otherEdge = (event) => {
    if (state.time === "") return null;
    const [first, end] = selectedBins();
    const [left, right] = shownBins();
    /** @param {number} edge */
    const distance = (edge) => Math.abs(placeOf(event) - edge) * box.clientWidth / (right - left);
    return distance(first) <= EDGE ? end : distance(end) <= EDGE ? first : null;
  };
  const leave = () => {
    from = null;
    markRange(...selectedBins());
  };
  box.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    from = otherEdge(event) ?? placeOf(event);
    began = event.clientX;
    box.setPointerCapture(event.pointerId);
  });
  box.addEventListener("pointermove", (event) => {
    if (from !== null) markRange(...range(event));
    box.classList.toggle("edge", from === null && otherEdge(event) !== null);
    showValues(laneAt(event), Math.floor(placeOf(event)), event);
  });
  box.addEventListener("pointerup", (event) => {
    if (from === null) return;
    const isDrag = Math.abs(event.clientX - began) > 4;
    const bins = range(event);
    leave();
    if (isDrag) change({ time: timeRange(...bins), zoom: "" });
  });
  box.addEventListener("pointercancel", leave);
  box.addEventListener("pointerleave", hideTip);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || from === null) return;
    event.preventDefault();
    leave();
  }, true);
  return leave;
}

// Marks the bins that are being selected.
/** @type {(begin: number, end: number) => void} */
function markRange(begin, end) {
  const mark = element("mark");
  const [from, to] = shownBins();
  mark.style.left = `${100 * (begin - from) / (to - from)}%`;
  mark.style.width = `${100 * (end - begin) / (to - from)}%`;
  mark.hidden = begin <= 0 && end >= data.bins;
  element("span").textContent = duration(Math.min(end * data.width, data.length) - begin * data.width);
}

// Which lanes are shown, if not all are.
/** @type {(some: number, all: number, which: string) => string} */
const boundText = (some, all, which) => some < all ? `The ${which.replace(" ", ` ${some} of ${all} `)}.` : "";

// What the lanes are, and what a full one stands for.
/** @type {(scale: number, shown: Record<LaneKind, number>, found: { vcpus: number, labels: number, processes: number }) => string} */
function scaleText(scale, shown, found) {
  const more = [boundText(shown[FIRST], found.vcpus, "first vCPUs"), boundText(shown.label, found.labels, "busiest labels"),
    boundText(shown.process, found.processes, "busiest processes")];
  const full = `A full lane of a ${isComparison ? "recording" : "vCPU"} is all of its ticks, that of a ${shown.label > 0 ? "label, " : ""}process or thread ${percent(scale, 1)} of all ${isComparison ? "" : "vCPUs' "}ticks.`;
  return [full, ...more].filter(Boolean).join(" ");
}

// Draws lanes of what the filters but that of time select.
function drawLanes() {
  const found = laneRows(lanes.most);
  const scale = scaleOf(found.rows);
  const shown = { recording: 0, vcpu: 0, label: 0, process: 0, thread: 0 };
  found.rows.forEach(({ kind }) => { shown[kind]++; });
  element("scale").textContent = scaleText(scale, shown, found);
  lanes.boxes = found.rows.map((row) => drawLane(row, scale));
  lanes.hidden = found.labels - shown.label + found.processes - shown.process;
  element("lanesbox").replaceChildren(...lanes.boxes.map((lane) => lane.box));
}

function drawTimeline() {
  const which = JSON.stringify([state.open, lanes.most, isByLabel() && state.group]);
  if (lanes.of !== sums.all || lanes.shape !== which) drawLanes();
  Object.assign(lanes, { of: sums.all, shape: which });
  const active = [...element("names").querySelectorAll("button")].findIndex((button) => button === document.activeElement);
  element("names").replaceChildren(...lanes.boxes.map(laneName));
  if (lanes.hidden > 0) {
    element("names").append(make("button", { type: "button", className: "others-button", textContent: `${lanes.hidden} more`, onclick: () => {
      lanes.most *= 4;
      drawTimeline();
    } }));
  }
  element("names").querySelectorAll("button")[active]?.focus({ preventScroll: true });
  drawSpan();
  // What it said may have been of another selection.
  if (lanes.isRead) showValues(lanes.at.lane, lanes.at.bin);
}

// Draws the part of the time that is shown.
function drawSpan() {
  const [from, to] = shownBins();
  const { clientWidth: width } = element("area");
  for (const { box } of lanes.boxes) box.setAttribute("viewBox", `${from} 0 ${to - from} 100`);
  if (lanes.boxes.length > 0) stretchHatching("#hatching", [from, to], lanes.boxes[0].box);
  const [begin, length] = [data.begin + from * data.width, (to - from) * data.width];
  const step = roundStep(length / Math.max(Math.floor(width / LABEL), 1));
  /** @type {<Made extends HTMLElement>(time: number, made: Made) => Made} */
  const at = (time, made) => {
    made.style.left = `${100 * (time - begin) / length}%`;
    return made;
  };
  const marks = [];
  for (let time = Math.ceil(begin / step) * step; time <= begin + length; time += step) {
    marks.push(at(time, make("span", { textContent: `${Number((time / 1e9).toFixed(9))} s` })));
  }
  // Restarts of the guest: a line through the lanes, and what it means above it.
  const restarts = data.restarts.filter((time) => time >= begin && time <= begin + length);
  marks.push(...restarts.map((time) => at(time, make("span", { className: "restart", textContent: "↻", title: `The guest restarted at ${seconds(time)} s` }))));
  element("times").replaceChildren(...marks);
  element("restarts").replaceChildren(...restarts.map((time) => at(time, make("i"))));
  markRange(...selectedBins());
}

// The next longer of 1, 2 and 5 times a power of ten.
/** @type {(least: number) => number} */
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((times) => times * power).find((step) => step >= least) ?? least;
}

// The number of the lane under the pointer.
/** @type {(event: MouseEvent) => number} */
function laneAt(event) {
  const box = element("lanesbox").getBoundingClientRect();
  return Math.floor((event.clientY - box.top) / (box.height || 1) * lanes.boxes.length);
}

// Says what a lane has in a bin: the nearest ones that there are. Pointers have it beside them.
/** @type {(index: number, place: number, event?: PointerEvent) => void} */
function showValues(index, place, event) {
  /** @type {(value: number, count: number) => number} */
  const within = (value, count) => Math.min(Math.max(value, 0), count - 1);
  const bin = within(place, data.bins);
  lanes.at = { lane: within(index, lanes.boxes.length), bin };
  lanes.isRead = true;
  const lane = lanes.boxes[lanes.at.lane];
  if (!lane) {
    element("values").textContent = "";
    return;
  }
  const parts = Array.from(partsOf(lane.row, bin), (ticks, part) => ({ part: PARTS[part], ticks })).filter(({ ticks }) => ticks > 0);
  const values = parts.map(({ part, ticks }) => `${part} ${ticks} (${percent(ticks, lane.whole[bin])})`);
  const when = `${shownTime(bin)} to ${shownTime(bin + 1)}`;
  const [from, to] = [bin, bin + 1].map((edge) => data.begin + edge * data.width);
  values.push(...execsOf(lane.row).filter(({ time }) => time >= from && time < to).map(({ program }) => `executes ${program}`));
  if (pausesOf(lane.row).some(({ begin, end }) => begin < to && from < (end ?? Infinity))) values.push("the guest was paused");
  element("values").textContent = `${lane.name}, ${when}: ${values.join(", ") || "nothing"}`;
  if (event && event.pointerType !== "touch") showTip(event, [lane.name, when, ...values.length > 0 ? values : ["nothing"]]);
}
