// Draws trees of calls as frames, which pointers and keys can move in.

const HEIGHT = 20; // px of a frame
const THINNEST = 1; // px of a frame that is drawn
const MOST = 6000; // frames that are drawn
const SHADES = 5; // of a mode's colour

/** @type {(frame: Frame) => boolean} */
const isInterrupt = (frame) => 2 * frame.modes[2] > frame.ticks;

// The shade of each module: those with the most ticks, but for idle ones, differ from each other, and neither filters nor newer data change any.
/** @type {number[]} */
const shades = [];
const nextShades = [0, 0];
derive(() => {
  const ticks = modules.name.map((name, module) => ({ module, ticks: 0 }));
  for (let run = 0; run < runs.length; run++) {
    if (runs.mode[run] === IDLE) continue;
    for (let cell = runs.begin[run]; cell < runs.begin[run + 1]; cell++) {
      const fn = recorded.fn[cells.node[cell]];
      if (fn >= 0 && functions.module[fn] >= 0) ticks[functions.module[fn]].ticks += cells.ticks[cell];
    }
  }
  ticks.sort((a, b) => b.ticks - a.ticks || a.module - b.module);
  const isOfKernel = new Set(functions.module.filter((_, fn) => functions.kernel[fn]));
  for (const { module } of ticks) shades[module] ??= nextShades[Number(isOfKernel.has(module))]++ % SHADES;
});

// The class of a frame's colour.
/** @type {(frame: Frame) => string} */
function colourOf(frame) {
  if (isComparison) return changeClass(frame.sides);
  if (frame.fn < 0) return "group";
  if (2 * frame.modes[3] > frame.ticks) return "idle";
  const mode = functions.kernel[frame.fn] === 0 ? "user" : isInterrupt(frame) ? "interrupt" : "kernel";
  return `${mode} s${shades[functions.module[frame.fn]]}`;
}

// What a tooltip says of a frame.
/** @type {(frame: Frame, root: Frame) => [string, ...string[]]} */
function tipOf(frame, root) {
  const own = frame.calls.reduce((rest, called) => rest - called.ticks, frame.ticks);
  const isOfChart = frame instanceof ChartFrame;
  const time = isOfChart ? `${shownTime(frame.from)} to ${shownTime(frame.to)}` : "";
  return [frame.name, time, countText(frame, root), isComparison || frame.fn < 0 || isOfChart ? "" : `self ${countOf(own, root)}`,
    frame.fn < 0 ? "" : [moduleName(frame.fn), frame.isInlined ? "inlined" : ""].filter(Boolean).join(", "),
    isComparison ? chanceText(frame.sides) : modesText(frame),
    frame.fn < 0 ? "" : functions.lines[frame.fn].split(", ")[0],
    frame.cut > 0 ? `callers of ${countOf(frame.cut, root)} missing` : ""];
}

/** @type {(frame: Frame) => string} */
const modesText = ({ modes, ticks }) => MODES.map((mode, index) => ({ mode, part: modes[index] })).filter(({ part }) => part > 0)
  .map(({ mode, part }) => `${mode} ${percent(part, ticks)}`).join(", ");

/**
 * @typedef {HTMLDivElement & { frame: Frame }} FrameElement
 * @typedef {{ frame: Frame, left: number, share: number, isAbove: boolean }} Box
 * @typedef {Flames | CallTree} View
 */

class Flames {
  // Whether it begins with callers whatever the graph does.
  isUpright = false;
  current = "";
  root = new Frame(null, "", -1, "");
  zoomed = this.root;
  hangs = true;
  isHeld = false;
  isCrowded = false;
  /** @type {Frame[]} */
  hits = [];
  /** @type {Map<string, FrameElement>} */
  elements = new Map();

  // Draws into `box`. `name` says what the tree is, `select` gets the frame that is selected, `enter` the one to look closer at.
  /** @param {HTMLElement} box @param {string} name @param {(frame: Frame, view: View) => void} select @param {(frame: any) => void} enter */
  constructor(box, name, select, enter) {
    this.box = box;
    this.select = select;
    this.enter = enter;
    box.setAttribute("role", "tree");
    box.setAttribute("aria-label", name);
    box.addEventListener("click", (event) => this.onClick(event));
    box.addEventListener("contextmenu", (event) => this.onMenu(event));
    box.addEventListener("keydown", (event) => this.onKey(event));
    box.addEventListener("focusin", (event) => this.onFocus(event));
    setUpTip(box, ({ frame }) => frame ? tipOf(frame, this.root) : null);
  }

  // Has `redraw` draw anew with the outermost frame where it is in the pane, so that no other frame comes under the pointer.
  /** @param {() => void} redraw */
  hold(redraw) {
    this.isHeld = true;
    redraw();
    this.isHeld = false;
  }

  // Draws the frames below `root`, all the width for `zoomed`, from the top down if it `hangs`. `isInverted`: callees first.
  /** @type {(root: Frame, zoomed: Frame, shape: { hangs: boolean, isInverted: boolean }, isHit: Search) => void} */
  draw(root, zoomed, { hangs, isInverted }, isHit) {
    Object.assign(this, { root, zoomed, hangs });
    // Frames whose callers are missing are torn there.
    this.box.classList.toggle("torn-above", hangs !== isInverted);
    const hadFocus = this.box.contains(document.activeElement);
    const width = this.box.clientWidth || 1;
    /** @type {Box[]} */
    const boxes = [];
    /** @type {Frame[]} */
    const above = [];
    for (let frame = zoomed.parent; frame; frame = frame.parent) above.unshift(frame);
    above.forEach((frame) => boxes.push({ frame, left: 0, share: 1, isAbove: true }));
    const rest = zoomed.weight > 0 ? [{ frame: zoomed, left: 0, share: 1, isAbove: false }] : [];
    // By depth, so that what is beyond the maximum is the innermost.
    let index = 0;
    for (; index < rest.length && boxes.length < MOST; index++) {
      const box = rest[index];
      boxes.push(box);
      let left = box.left;
      for (const frame of box.frame.calls) {
        const share = frame.weight / zoomed.weight;
        if (share * width >= THINNEST) rest.push({ frame, left, share, isAbove: false });
        left += share;
      }
    }
    this.isCrowded = index < rest.length;
    this.elements = new Map();
    this.hits = [];
    const made = boxes.map((box) => this.element(box, width, isHit));
    this.resize(boxes.reduce((depth, box) => Math.max(depth, box.frame.depth), 0) + 1, () => this.box.replaceChildren(...made));
    this.box.classList.toggle("searched", isHit !== null);
    if (!this.elements.has(this.current)) this.current = zoomed.path;
    this.elements.get(this.current)?.setAttribute("tabindex", "0");
    if (hadFocus) this.elements.get(this.current)?.focus({ preventScroll: true });
  }

  // Gives the box the height of so many rows. The outermost row stays where it is in the pane: at the same distance from the edge that it is at. While it is held,
  // the box stays as high as that needs.
  /** @type {(rows: number, fill: () => void) => void} */
  resize(rows, fill) {
    const pane = this.box.parentElement ?? this.box;
    // What asks for places makes the browser find them for all of the page: not where the edge is the top, which stays by itself.
    const away = !this.hangs ? pane.scrollHeight - pane.clientHeight - pane.scrollTop : this.isHeld ? pane.scrollTop : 0;
    const least = this.isHeld && away > 0 ? away + pane.clientHeight : 0;
    this.box.style.height = `${Math.max(rows * HEIGHT, least)}px`;
    this.box.classList.toggle("stands", !this.hangs);
    fill();
    if (!this.hangs) pane.scrollTop = pane.scrollHeight - pane.clientHeight - away;
  }

  /** @type {(box: Box, width: number, isHit: Search) => FrameElement} */
  element({ frame, left, share, isAbove }, width, isHit) {
    const made = Object.assign(make("div", { className: `frame ${colourOf(frame)}`, role: "treeitem", tabIndex: -1 }), { frame });
    if (share * width < 10) made.classList.add("thin");
    else made.textContent = frame.name;
    made.classList.toggle("above", isAbove);
    made.classList.toggle("cut", frame.cut > 0);
    if (frame.fn >= 0 && isHit !== null && isHit(frame.name)) {
      made.classList.add("hit");
      this.hits.push(frame);
    }
    made.setAttribute("aria-level", String(frame.depth + 1));
    made.setAttribute("aria-label", `${frame.name}: ${countText(frame, this.root)}${frame.cut > 0 ? `, callers of ${countOf(frame.cut, this.root)} missing` : ""}`);
    made.style.left = `${100 * left}%`;
    made.style.width = `${100 * share}%`;
    made.style[this.hangs ? "top" : "bottom"] = `${frame.depth * HEIGHT}px`;
    this.elements.set(frame.path, made);
    return made;
  }

  // Marks the frames of the function `fn`, -1 for none.
  /** @param {number} fn */
  mark(fn) {
    for (const made of this.elements.values()) made.classList.toggle("chosen", fn >= 0 && made.frame.fn === fn);
  }

  // Brings a frame into view.
  /** @param {Frame} frame */
  reveal(frame) {
    this.elements.get(frame.path)?.scrollIntoView({ block: "nearest" });
  }

  /** @param {any} event */
  onClick(event) {
    if (!event.target.frame) return;
    this.current = event.target.frame.path;
    this.select(event.target.frame, this);
    this.enter(event.target.frame);
  }

  /** @param {any} event */
  onMenu(event) {
    if (!event.target.frame) return;
    event.preventDefault();
    this.select(event.target.frame, this);
    focusDetails();
  }

  /** @param {any} event */
  onFocus(event) {
    if (!event.target.frame) return;
    this.move(event.target.frame);
    this.select(event.target.frame, this);
  }

  /** @param {Frame} frame */
  move(frame) {
    this.elements.get(this.current)?.setAttribute("tabindex", "-1");
    this.current = frame.path;
    this.elements.get(this.current)?.setAttribute("tabindex", "0");
  }

  // The frame beside `frame` that is drawn.
  /** @type {(frame: Frame, step: number) => Frame | null} */
  beside(frame, step) {
    const calls = frame.parent ? frame.parent.calls : [];
    const next = calls[calls.indexOf(frame) + step];
    return next && this.elements.has(next.path) ? next : null;
  }

  /** @param {any} event */
  onKey(event) {
    /** @type {Frame | undefined} */
    const frame = event.target.frame;
    if (!frame || event.ctrlKey || event.altKey || event.metaKey) return;
    const inner = frame.calls.find((called) => this.elements.has(called.path));
    const [up, down] = this.hangs ? [frame.parent, inner] : [inner, frame.parent];
    /** @type {Record<string, Frame | null | undefined>} */
    const ways = { ArrowUp: up, ArrowDown: down, ArrowLeft: this.beside(frame, -1), ArrowRight: this.beside(frame, 1), Home: this.root };
    if (event.key in ways) {
      const next = ways[event.key];
      if (next) this.elements.get(next.path)?.focus();
    } else if (event.key === "Enter" || event.key === " ") {
      this.enter(frame);
    } else if (event.key === "Escape" && this.zoomed.parent) {
      this.current = this.zoomed.parent.path;
      this.enter(this.zoomed.parent);
    } else if (event.key === "ContextMenu" || event.key === "F10" && event.shiftKey) {
      focusDetails();
    } else {
      return;
    }
    event.preventDefault();
  }
}
