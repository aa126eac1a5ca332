// Draws trees of calls as frames, which pointers and keys can move in.

const HEIGHT = 18; // px of a frame
const THINNEST = 1; // px of a frame that is drawn
const MOST = 6000; // frames that are drawn

const isInterrupt = (frame) => 2 * frame.modes[2] > frame.ticks;

// The class of a frame's colour.
function colourOf(frame) {
  if (isComparison) return changeClass(frame.sides);
  if (frame.fn < 0) return "group";
  if (2 * frame.modes[3] > frame.ticks) return "idle";
  if (functions.kernel[frame.fn] === 0) return "user";
  return isInterrupt(frame) ? "interrupt" : "kernel";
}

class Flames {
  // Draws into `box`. `name` says what the tree is, `select` gets the frame that is selected, `enter` the one to look closer at.
  constructor(box, name, select, enter) {
    Object.assign(this, { box, select, enter, current: "", root: null, isHeld: false, own: 0 });
    box.setAttribute("role", "tree");
    box.setAttribute("aria-label", name);
    box.addEventListener("click", (event) => this.onClick(event));
    box.addEventListener("contextmenu", (event) => this.onMenu(event));
    box.addEventListener("keydown", (event) => this.onKey(event));
    box.addEventListener("focusin", (event) => this.onFocus(event));
    box.addEventListener("mouseover", (event) => { if (event.target.frame) select(event.target.frame, this, false); });
  }

  // Has `redraw` draw anew with the outermost frame where it is in the window, so that no other frame comes under the pointer.
  hold(redraw) {
    this.isHeld = true;
    redraw();
    this.isHeld = false;
  }

  // Draws the frames below `root`, all the width for `zoomed`, from the top down if it `hangs`. `isInverted`: callees first.
  draw(root, zoomed, { hangs, isInverted }, isHit) {
    Object.assign(this, { root, zoomed, hangs });
    // Frames whose callers are missing are torn there.
    this.box.classList.toggle("torn-above", hangs !== isInverted);
    const hadFocus = this.box.contains(document.activeElement);
    const width = this.box.clientWidth || 1;
    const boxes = [];
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
    const deepest = boxes.reduce((depth, box) => Math.max(depth, box.frame.depth), 0);
    const rows = this.resize(deepest + 1);
    this.elements = new Map();
    this.box.replaceChildren(...boxes.map((box) => this.element(box, width, rows, isHit)));
    if (!this.elements.has(this.current)) this.current = zoomed.path;
    this.elements.get(this.current)?.setAttribute("tabindex", "0");
    if (hadFocus) this.elements.get(this.current)?.focus({ preventScroll: true });
  }

  // Gives the box the height of so many rows, and returns how many it then has. While it is held, and the outermost row is the lowest one, the page scrolls by what
  // is added above that, and only as much is taken away there as the page can scroll back.
  resize(rows) {
    const before = Math.round(this.box.offsetHeight / HEIGHT);
    if (rows === this.own && !this.isHeld) return before;
    this.own = rows;
    const isMoved = this.isHeld && !this.hangs;
    const from = scrollY;
    const after = isMoved ? Math.max(rows, before - Math.floor(from / HEIGHT)) : rows;
    const moved = isMoved ? (after - before) * HEIGHT : 0;
    // The page stays long enough to be scrolled that far.
    document.body.style.minHeight = this.isHeld ? `${Math.ceil(from) + moved + innerHeight}px` : "";
    this.box.style.height = `${after * HEIGHT}px`;
    // Not by so much: a page that has become shorter may have scrolled already.
    if (moved !== 0) scrollTo(scrollX, from + moved);
    return after;
  }

  element({ frame, left, share, isAbove }, width, rows, isHit) {
    const made = make("div", { className: `frame ${colourOf(frame)}`, role: "treeitem", tabIndex: -1 });
    if (share * width < 10) made.classList.add("thin");
    else made.textContent = frame.name;
    made.classList.toggle("above", isAbove);
    made.classList.toggle("cut", frame.cut > 0);
    made.classList.toggle("hit", frame.fn >= 0 && isHit !== null && isHit(frame.name));
    made.setAttribute("aria-level", frame.depth + 1);
    made.setAttribute("aria-label", `${frame.name}: ${countText(frame, this.root)}${frame.cut > 0 ? `, callers of ${ticksOf(frame.cut)} missing` : ""}`);
    made.style.left = `${100 * left}%`;
    made.style.width = `${100 * share}%`;
    made.style.top = `${(this.hangs ? frame.depth : rows - 1 - frame.depth) * HEIGHT}px`;
    made.frame = frame;
    this.elements.set(frame.path, made);
    return made;
  }

  // Marks the frames of the function `fn`, -1 for none.
  mark(fn) {
    for (const made of this.box.children) made.classList.toggle("chosen", fn >= 0 && made.frame.fn === fn);
  }

  onClick(event) {
    if (!event.target.frame) return;
    this.current = event.target.frame.path;
    this.select(event.target.frame, this, true);
    this.enter(event.target.frame);
  }

  onMenu(event) {
    if (!event.target.frame) return;
    event.preventDefault();
    this.select(event.target.frame, this, true);
    focusDetails();
  }

  onFocus(event) {
    if (!event.target.frame) return;
    this.move(event.target.frame);
    this.select(event.target.frame, this, true);
  }

  move(frame) {
    this.elements.get(this.current)?.setAttribute("tabindex", "-1");
    this.current = frame.path;
    this.elements.get(this.current)?.setAttribute("tabindex", "0");
  }

  // The frame beside `frame` that is drawn.
  beside(frame, step) {
    const calls = frame.parent ? frame.parent.calls : [];
    const next = calls[calls.indexOf(frame) + step];
    return next && this.elements.has(next.path) ? next : null;
  }

  onKey(event) {
    const frame = event.target.frame;
    if (!frame || event.ctrlKey || event.altKey || event.metaKey) return;
    const inner = frame.calls.find((called) => this.elements.has(called.path));
    const [up, down] = this.hangs ? [frame.parent, inner] : [inner, frame.parent];
    const ways = { ArrowUp: up, ArrowDown: down, ArrowLeft: this.beside(frame, -1), ArrowRight: this.beside(frame, 1), Home: this.root };
    if (event.key in ways) {
      if (ways[event.key]) this.elements.get(ways[event.key].path)?.focus();
    } else if (event.key === "Enter" || event.key === " ") {
      this.enter(frame);
    } else if (event.key === "Escape") {
      this.current = this.zoomed.parent ? this.zoomed.parent.path : this.current;
      this.enter(this.zoomed.parent ?? this.root);
    } else if (event.key === "ContextMenu" || event.key === "F10" && event.shiftKey) {
      focusDetails();
    } else {
      return;
    }
    event.preventDefault();
  }
}
