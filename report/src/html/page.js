"use strict";

// Names come from the guest: they only ever become text, never HTML.

const HEIGHT = 17;
const THINNEST = 0.5; // px

const element = (id) => document.getElementById(id);

function readFrames() {
  const data = JSON.parse(element("frames").textContent);
  const frames = [];
  const parents = [];
  const ends = []; // by depth, where the next child begins
  for (let i = 0; i < data.frames.length; i += 3) {
    const [name, depth, count] = data.frames.slice(i, i + 3);
    const parent = depth > 0 ? parents[depth - 1] : null;
    const begin = parent ? ends[depth - 1] : 0;
    const frame = { name: data.names[name], kernel: data.kernel[name] === 1, module: data.modules[name], depth, count, begin, parent };
    if (parent) ends[depth - 1] = begin + count;
    parents[depth] = frame;
    ends[depth] = begin;
    frames.push(frame);
  }
  return { frames, leftOut: data.left_out };
}

const { frames, leftOut } = readFrames();
const graph = element("graph");
const root = frames[0];
let focus = root;
let icicle = false;
let wanted = "";

const percent = (part, whole) => (whole > 0 ? (100 * part / whole).toFixed(2) : "0.00") + " %";
const isHit = (frame) => wanted !== "" && frame.name.toLowerCase().includes(wanted);
const isWithin = (frame, outer) => {
  while (frame && frame.depth > outer.depth) frame = frame.parent;
  return frame === outer;
};

function describe(frame) {
  let text = `${frame.name}: ${frame.count} ticks, ${percent(frame.count, root.count)} of all`;
  if (frame.module) text += `, in ${frame.module}`;
  if (focus !== root) text += `, ${percent(frame.count, focus.count)} of ${focus.name}`;
  return text;
}

function draw() {
  const width = graph.clientWidth;
  const drawn = frames.filter((frame) =>
    isWithin(focus, frame) || (isWithin(frame, focus) && frame.count / focus.count * width >= THINNEST));
  const deepest = drawn.reduce((depth, frame) => Math.max(depth, frame.depth), 0);
  graph.style.height = `${(deepest + 1) * HEIGHT}px`;
  const boxes = drawn.map((frame) => {
    const above = frame.depth < focus.depth;
    const left = above ? 0 : (frame.begin - focus.begin) / focus.count;
    const share = above ? 1 : frame.count / focus.count;
    const box = document.createElement("div");
    box.className = "f";
    if (frame.kernel) box.classList.add("k");
    else if (frame.depth < 2 || frame.name.startsWith("[")) box.classList.add("o");
    if (share * width < 8) box.classList.add("thin");
    else box.textContent = frame.name;
    if (above) box.classList.add("above");
    if (isHit(frame)) box.classList.add("hit");
    box.style.left = `${100 * left}%`;
    box.style.width = `${100 * share}%`;
    box.style.top = `${(icicle ? frame.depth : deepest - frame.depth) * HEIGHT}px`;
    box.title = describe(frame);
    box.frame = frame;
    return box;
  });
  graph.replaceChildren(...boxes);
  element("reset").disabled = focus === root;
  showFound();
}

// Each sample counts once, however many frames of its stack are hits.
function showFound() {
  let sum = 0;
  let end = -1;
  for (const frame of frames) {
    if (frame.begin >= end && isWithin(frame, focus) && isHit(frame)) {
      sum += frame.count;
      end = frame.begin + frame.count;
    }
  }
  element("found").textContent = wanted === "" ? "" : `found in ${percent(sum, focus.count)}`;
}

function sortBy(table, column, header) {
  const body = table.tBodies[0];
  const key = (row) => row.cells[column].textContent;
  const isNumber = header.classList.contains("n");
  const last = header.getAttribute("aria-sort");
  const descending = isNumber ? last !== "descending" : last === "ascending"; // the largest, or A, first
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const compare = (a, b) => (isNumber ? parseFloat(key(a)) - parseFloat(key(b)) : key(a).localeCompare(key(b)));
  const rows = [...body.rows].sort((a, b) => (descending ? compare(b, a) : compare(a, b)));
  body.append(...rows);
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    header.classList.add("sorts");
    header.tabIndex = 0;
    header.addEventListener("click", () => sortBy(table, column, header));
    header.addEventListener("keydown", (event) => {
      if (event.key === "Enter") sortBy(table, column, header);
    });
  });
}

if (root.count > 0) {
  element("tools").hidden = false;
  graph.addEventListener("click", (event) => {
    if (!event.target.frame) return;
    focus = event.target.frame;
    draw();
  });
  graph.addEventListener("mouseover", (event) => {
    if (event.target.frame) element("detail").textContent = describe(event.target.frame);
  });
  element("reset").addEventListener("click", () => {
    focus = root;
    draw();
  });
  element("turn").addEventListener("click", () => {
    icicle = !icicle;
    element("turn").textContent = icicle ? "Flames" : "Icicle";
    draw();
  });
  element("search").addEventListener("input", (event) => {
    wanted = event.target.value.toLowerCase();
    draw();
  });
  window.addEventListener("resize", draw);
  const note = leftOut > 0 ? ` The ${leftOut} smallest frames are left out.` : "";
  element("detail").textContent = `Click a frame to look closer.${note}`;
  draw();
}
