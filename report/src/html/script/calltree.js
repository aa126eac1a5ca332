// The call tree as a table: the same frames as in the graph, a row for each whose caller is open.

const MOST_ROWS = 2000; // that are shown
const INDENT = 14; // px

/** @typedef {HTMLTableRowElement & { frame: Frame }} FrameRow */

class CallTree {
  /** @type {Set<string>} */
  opened = new Set();
  /** @type {Set<string>} */
  closed = new Set();
  /** @type {Set<string>} */
  usual = new Set();
  // Whether what is open stays so: of newer data of a live page.
  isHeld = false;
  current = "";
  root = new Frame(null, "", -1, "");
  /** @type {Frame[]} */
  hits = [];
  isCrowded = false;
  /** @type {Search} */
  isHit = null;
  /** @type {Map<string, FrameRow>} */
  elements = new Map();

  /** @param {HTMLElement} box @param {(frame: Frame, view: View) => void} select */
  constructor(box, select) {
    this.box = box;
    this.select = select;
    const columns = isComparison ? ["before", "after", "change"] : ["total", "", "self", ""];
    this.columns = [...columns, "function", "module"];
    this.body = make("tbody");
    const head = make("tr", {}, ...this.columns.map((textContent, index) => make(textContent ? "th" : "td", { textContent, className: index < columns.length ? "n" : "", ...textContent ? { scope: "col" } : {} })));
    box.append(make("table", { role: "treegrid", "aria-label": "Call tree" }, make("thead", {}, head), this.body));
    this.body.addEventListener("click", (event) => this.onClick(event));
    this.body.addEventListener("keydown", (event) => this.onKey(event));
    this.body.addEventListener("focusin", (event) => this.onFocus(event));
    setUpTip(this.body, (target) => {
      const frame = target.closest("tr")?.frame;
      return frame ? tipOf(frame, this.root) : null;
    });
  }

  // What was opened and closed by hand stays so; all else is open along the heaviest path of the biggest group.
  /** @type {(root: Frame, isHit: Search) => void} */
  draw(root, isHit) {
    Object.assign(this, { root, isHit });
    if (!this.isHeld) {
      this.usual = new Set();
      for (let frame = /** @type {Frame | null} */ (root); frame; frame = this.heaviest(frame)) this.usual.add(frame.path);
    }
    this.list();
  }

  /** @type {(frame: Frame) => Frame | null} */
  heaviest(frame) {
    return frame.calls.reduce((most, call) => call.weight > (most?.weight ?? 0) ? call : most, /** @type {Frame | null} */ (null));
  }

  /** @param {Frame} frame */
  isOpen(frame) {
    return frame.calls.length > 0 && !this.closed.has(frame.path) && (this.opened.has(frame.path) || this.usual.has(frame.path));
  }

  // Makes the rows of all frames whose callers are open.
  list() {
    const hadFocus = this.body.contains(document.activeElement);
    /** @type {Frame[]} */
    const frames = [];
    const rest = [this.root];
    while (rest.length > 0 && frames.length < MOST_ROWS) {
      const frame = /** @type {Frame} */ (rest.pop());
      if (frame.weight > 0 || frame === this.root) frames.push(frame);
      if (this.isOpen(frame)) rest.push(...frame.calls.toReversed());
    }
    this.isCrowded = rest.length > 0;
    this.elements = new Map();
    this.hits = frames.filter((frame) => frame.fn >= 0 && this.isHit?.(frame.name));
    this.body.replaceChildren(...frames.map((frame) => this.row(frame)));
    if (!this.elements.has(this.current)) this.current = "";
    const current = this.elements.get(this.current);
    current?.setAttribute("tabindex", "0");
    if (hadFocus) current?.focus({ preventScroll: true });
    noteCrowd();
    this.mark(selection?.fn ?? -1);
  }

  /** @type {(frame: Frame) => FrameRow} */
  row(frame) {
    /** @type {(textContent: string | number, properties?: Record<string, unknown>) => HTMLTableCellElement} */
    const cell = (textContent, properties) => make("td", { role: "gridcell", textContent, ...properties });
    const own = frame.calls.reduce((rest, call) => rest - call.ticks, frame.ticks);
    /** @param {number} count */
    const ticks = (count) => {
      const share = cell(count > 0 ? percent(count, this.root.ticks) : "", { className: "n bar" });
      share.style.setProperty("--share", `${100 * count / Math.max(this.root.ticks, 1)}%`);
      return [cell(count > 0 ? count : "", { className: "n" }), share];
    };
    const numbers = isComparison
      ? [0, 1].map((side) => cell(percent(frame.sides[side], sums.sides[side]), { className: "n" })).concat(cell(points(changeOf(frame.sides)), { className: "n" }))
      : [...ticks(frame.ticks), ...ticks(own)];
    const isOpen = this.isOpen(frame);
    const name = cell("", { className: "name" });
    name.style.paddingLeft = `${8 + INDENT * frame.depth}px`;
    name.append(make("span", { className: "fold", textContent: frame.calls.length === 0 ? "" : isOpen ? "▾" : "▸" }), make("i", { className: colourOf(frame) }), frame.name);
    const made = make("tr", { role: "row", tabIndex: -1 }, ...numbers, name, cell(frame.fn < 0 ? "" : moduleName(frame.fn)));
    const row = Object.assign(made, { frame });
    row.setAttribute("aria-level", String(frame.depth + 1));
    row.setAttribute("aria-label", `${frame.name}: ${countText(frame, this.root)}`);
    if (frame.calls.length > 0) row.setAttribute("aria-expanded", String(isOpen));
    row.classList.toggle("hit", frame.fn >= 0 && this.isHit?.(frame.name) === true);
    this.elements.set(frame.path, row);
    return row;
  }

  /** @param {number} fn */
  mark(fn) {
    for (const row of this.elements.values()) row.classList.toggle("chosen", fn >= 0 && row.frame.fn === fn);
  }

  /** @type {(frame: Frame, isOpen: boolean) => void} */
  open(frame, isOpen) {
    const path = frame.path;
    this.opened.delete(path);
    this.closed.delete(path);
    (isOpen ? this.opened : this.closed).add(path);
  }

  // Opens all frames below one, as far as rows are shown.
  openAll(frame = this.currentFrame()) {
    const rest = [frame];
    for (let count = 0; rest.length > 0 && count < MOST_ROWS; count++) {
      const next = /** @type {Frame} */ (rest.shift());
      this.open(next, true);
      rest.push(...next.calls);
    }
    this.list();
  }

  // Opens the heaviest callee of the selected frame, and its heaviest callee, and so on, and goes to the last one.
  openHeaviest(frame = this.currentFrame()) {
    let last = frame;
    for (let next = /** @type {Frame | null} */ (frame); next; next = this.heaviest(next)) {
      this.open(next, true);
      last = next;
    }
    this.list();
    this.go(last);
  }

  // Opens all callers of a frame and brings it into view.
  /** @param {Frame} frame */
  reveal(frame) {
    for (let caller = frame.parent; caller; caller = caller.parent) this.open(caller, true);
    this.list();
    this.elements.get(frame.path)?.scrollIntoView({ block: "nearest" });
  }

  currentFrame() {
    return this.elements.get(this.current)?.frame ?? this.root;
  }

  /** @param {Frame | null | undefined} frame */
  go(frame) {
    if (frame) this.elements.get(frame.path)?.focus();
  }

  /** @param {any} event */
  onFocus(event) {
    const frame = event.target.frame;
    if (!frame) return;
    this.elements.get(this.current)?.setAttribute("tabindex", "-1");
    this.current = frame.path;
    event.target.setAttribute("tabindex", "0");
    this.select(frame, this);
  }

  /** @param {any} event */
  onClick(event) {
    const frame = event.target.closest("tr")?.frame;
    if (!frame) return;
    this.go(frame);
    if (event.target.classList.contains("fold") || event.detail === 2) {
      this.open(frame, !this.isOpen(frame));
      this.list();
    }
  }

  /** @param {any} event */
  onKey(event) {
    const row = event.target;
    if (!row.frame || event.ctrlKey || event.altKey || event.metaKey) return;
    const { frame } = row;
    /** @param {boolean} isOpen */
    const toggle = (isOpen) => {
      this.open(frame, isOpen);
      this.list();
    };
    /** @type {Record<string, () => void>} */
    const ways = {
      ArrowUp: () => this.go(row.previousElementSibling?.frame),
      ArrowDown: () => this.go(row.nextElementSibling?.frame),
      ArrowRight: () => this.isOpen(frame) ? this.go(frame.calls[0]) : toggle(true),
      ArrowLeft: () => this.isOpen(frame) ? toggle(false) : this.go(frame.parent),
      Enter: () => toggle(!this.isOpen(frame)),
      Home: () => this.go(this.root),
      End: () => this.go([...this.elements.values()].at(-1)?.frame),
      "*": () => this.openAll(frame),
      ContextMenu: focusDetails,
    };
    if (!Object.hasOwn(ways, event.key)) return;
    event.preventDefault();
    ways[event.key]();
  }
}
