// Trees of calls, made of the selected stacks.

// How wide a frame is drawn: by its ticks; in a comparison by the mean of its two shares, so that what vanished is there.
/** @type {(frame: Frame) => number} */
const weightOf = (frame) => isComparison ? shareOf(frame.sides, 0) + shareOf(frame.sides, 1) : frame.ticks;

/** @type {Frame[]} */
const NO_CALLS = [];
/** @type {Sides} */
const NO_SIDES = [0, 0];

// A frame of a view: a function called on a certain way, or (fn = -1) a process, a thread, or all. A function has one frame there for all
// stacks, those whose callers are missing too: they are its ticks that were cut short.
class Frame {
  // What its view draws, once its tree is finished: how wide it is, and its calls in their order, which may be made when they are asked for.
  weight = 0;
  made = NO_CALLS;
  /** @type {(() => Frame[]) | null} */
  makeCalls = null;
  // Whether it is the root of a tree of waits.
  isOfWaits = false;
  // Whether it is the root of a tree of times in exits, in ns.
  isOfExits = false;

  /** @param {Frame | null} parent @param {string} id @param {number} fn @param {string} name */
  constructor(parent, id, fn, name) {
    this.parent = parent;
    this.id = id;
    this.fn = fn;
    this.name = name;
    /** @type {number} */
    this.depth = parent ? parent.depth + 1 : 0;
    this.ticks = 0;
    this.sides = isComparison ? newSides() : NO_SIDES;
    this.modes = [0, 0, 0, 0];
    this.first = Infinity;
    this.cut = 0;
    this.isInlined = false;
    /** @type {Map<string, Frame> | null} By id, if there are any, while its tree is made. */
    this.children = null;
  }

  get calls() {
    if (this.makeCalls) {
      this.made = this.makeCalls();
      this.makeCalls = null;
    }
    return this.made;
  }

  set calls(calls) {
    this.made = calls;
  }

  // The ids of the frames up to this one: what the address of the page says of it.
  get path() {
    const ids = [];
    for (let frame = /** @type {Frame} */ (this); frame.parent; frame = frame.parent) ids.unshift(frame.id);
    return ids.join(".");
  }

  /** @param {Stack | Frame} stack */
  add(stack) {
    this.ticks += stack.ticks;
    if (isComparison) addSides(this.sides, stack.sides);
    for (let mode = 0; mode < MODES.length; mode++) this.modes[mode] += stack.modes[mode];
    if (stack.first < this.first) this.first = stack.first;
  }
}

// The order in which the calls of a frame are shown.
/** @type {() => (a: Frame, b: Frame) => number} */
function orderOfFrames() {
  /** @type {Record<string, (a: Frame, b: Frame) => number>} */
  const orders = { share: (a, b) => b.weight - a.weight || Number(a.name > b.name) - Number(a.name < b.name),
    time: (a, b) => a.first - b.first || b.ticks - a.ticks, name: (a, b) => a.name.localeCompare(b.name) };
  return orders[state.order];
}

class Tree {
  /** @param {string} name */
  constructor(name, fn = -1) {
    this.root = new Frame(null, "", fn, name);
    this.frames = [this.root];
  }

  // The frame called `id` below `parent`.
  /** @type {(parent: Frame, id: string, fn: number, name: string) => Frame} */
  child(parent, id, fn, name) {
    parent.children ??= new Map();
    let frame = parent.children.get(id);
    if (frame === undefined) {
      frame = new Frame(parent, id, fn, name);
      parent.children.set(id, frame);
      this.frames.push(frame);
    }
    return frame;
  }

  // The frame of a node below `parent`, which is `parent` itself when recursion is folded.
  /** @type {(parent: Frame, node: number) => Frame} */
  call(parent, node) {
    const fn = nodes.fn[node];
    if (state.fold !== "" && parent.fn === fn) return parent;
    const frame = this.child(parent, `${fn}`, fn, functions.name[fn]);
    frame.isInlined = (nodes.flags[node] & 2) === 2;
    return frame;
  }

  // The frame of a node of `stack` below `parent`, with its ticks if they are cut short there.
  /** @type {(parent: Frame, node: number, stack: Stack) => Frame} */
  step(parent, node, stack) {
    const frame = this.call(parent, node);
    if (cutAt[stack.node] === node) frame.cut += stack.ticks;
    return frame;
  }

  /** @type {(key: number, kind?: string) => Frame} */
  group(key, kind = state.group) {
    if (kind === "merged") return this.root;
    return this.child(this.root, `g${key}`, -1, GROUP_NAMES[kind](key));
  }

  // Adds each frame's sums to its caller's. What was added to frames before is their own.
  finish() {
    for (let index = this.frames.length - 1; index > 0; index--) this.frames[index].parent?.add(this.frames[index]);
    const compare = orderOfFrames();
    for (const frame of this.frames) frame.weight = weightOf(frame);
    for (const frame of this.frames) frame.calls = frame.children ? [...frame.children.values()].sort(compare) : NO_CALLS;
    return this.root;
  }
}

// The stacks that a frame is on, and where each of them goes on behind it.
/**
 * @typedef {{ stack: Stack, at: number }[]} Rest
 * @typedef {{ frame: Frame, rest: Rest }} Call
 */

// A tree of stacks whose frames get their calls when somebody asks for them: most are too small to be seen. It has the stacks as they are shown when it is made.
class StackTree {
  nodes = nodes;
  depths = depths;
  cutAt = cutAt;
  isFolded = state.fold !== "";
  compare = orderOfFrames();
  root = new Frame(null, "", -1, "all");

  /** @param {Stack[]} stacks @param {string} group @param {boolean} isInverted Whether it begins with callees. */
  constructor(stacks, group, isInverted) {
    this.isInverted = isInverted;
    const rest = stacks.map((stack) => ({ stack, at: isInverted ? stack.node : 1 }));
    for (const stack of stacks) this.root.add(stack);
    this.root.weight = weightOf(this.root);
    this.root.makeCalls = () => group === "merged" ? this.callsOf(this.root, rest) : this.groupsOf(rest, group);
  }

  // The node of a stack at a place, 0 behind its end. A place is a node's number if the tree begins with callees, else its depth.
  /** @type {(stack: Stack, at: number) => number} */
  nodeAt({ node }, at) {
    if (this.isInverted) return at;
    if (at > this.depths[node]) return 0;
    while (this.depths[node] > at) node = this.nodes.parent[node];
    return node;
  }

  /** @param {number} at */
  next(at) {
    return this.isInverted ? this.nodes.parent[at] : at + 1;
  }

  /** @type {(rest: Rest, group: string) => Frame[]} */
  groupsOf(rest, group) {
    /** @type {Map<number, Call>} */
    const calls = new Map();
    for (const one of rest) {
      const key = one.stack.group;
      const call = calls.get(key) ?? { frame: new Frame(this.root, `g${key}`, -1, GROUP_NAMES[group](key)), rest: [] };
      calls.set(key, call);
      call.frame.add(one.stack);
      call.rest.push(one);
    }
    return this.finish(calls);
  }

  /** @type {(caller: Frame, rest: Rest) => Frame[]} */
  callsOf(caller, rest) {
    /** @type {Map<number, Call>} */
    const calls = new Map();
    for (let { stack, at } of rest) {
      let node = this.nodeAt(stack, at);
      if (node === 0) continue;
      const fn = this.nodes.fn[node];
      const call = calls.get(fn) ?? { frame: new Frame(caller, `${fn}`, fn, functions.name[fn]), rest: [] };
      calls.set(fn, call);
      call.frame.isInlined = (this.nodes.flags[node] & 2) === 2;
      do {
        if (this.cutAt[stack.node] === node) call.frame.cut += stack.ticks;
        at = this.next(at);
        node = this.nodeAt(stack, at);
      } while (this.isFolded && node > 0 && this.nodes.fn[node] === fn);
      call.frame.add(stack);
      call.rest.push({ stack, at });
    }
    return this.finish(calls);
  }

  /** @param {Map<number, Call>} calls */
  finish(calls) {
    const made = [];
    for (const { frame, rest } of calls.values()) {
      frame.weight = weightOf(frame);
      frame.makeCalls = () => this.callsOf(frame, rest);
      made.push(frame);
    }
    return made.sort(this.compare);
  }
}

// Callers first.
/** @type {(sums: AllSums) => Frame} */
const callTree = (sums) => new StackTree(sums.stacks, state.group, false).root;

// Callees first.
/** @type {(sums: AllSums) => Frame} */
const invertedTree = (sums) => new StackTree(sums.stacks, state.group, true).root;

// What calls a function, and what it calls. A stack with it several times counts by its outermost call.
/** @type {(sums: AllSums, fn: number) => { callers: Frame, callees: Frame }} */
function sandwichTrees(sums, fn) {
  const outermost = outermostOf(nodes, fn);
  const callers = new Tree(functions.name[fn], fn);
  const callees = new Tree(functions.name[fn], fn);
  for (const stack of sums.stacks) {
    const call = outermost[stack.node];
    if (call === 0) continue;
    let frame = callers.root;
    if (cutAt[call] === call) frame.cut += stack.ticks;
    for (let node = nodes.parent[call]; node > 0; node = nodes.parent[node]) frame = callers.step(frame, node, stack);
    if (state.group !== "merged") {
      frame = callers.child(frame, `g${stack.group}`, -1, GROUP_NAMES[state.group](stack.group));
    }
    frame.add(stack);
    /** @type {number[]} */
    const way = [];
    for (let node = stack.node; node !== call; node = nodes.parent[node]) way.push(node);
    way.reverse().reduce((at, node) => callees.step(at, node, stack), callees.root).add(stack);
  }
  return { callers: callers.finish(), callees: callees.finish() };
}

// A function wherever it was called: a frame of all its ticks, how many are its own, and the ticks of each function that has called it, by its outermost calls.
/** @type {(sums: AllSums, fn: number) => { frame: Frame, own: number, callers: [number, number][] }} */
function sumFunction({ stacks }, fn) {
  const outermost = outermostOf(nodes, fn);
  const frame = new Frame(null, "", fn, functions.name[fn]);
  let own = 0;
  /** @type {Map<number, number>} */
  const callers = new Map();
  for (const stack of stacks) {
    const call = outermost[stack.node];
    if (call === 0) continue;
    frame.add(stack);
    if (nodes.fn[stack.node] === fn) own += stack.ticks;
    const caller = nodes.parent[call];
    if (caller > 0) callers.set(nodes.fn[caller], (callers.get(nodes.fn[caller]) ?? 0) + stack.ticks);
  }
  return { frame, own, callers: [...callers].sort((a, b) => b[1] - a[1]) };
}

// The frame with this path below `root`; `root` if there is none.
/** @type {(root: Frame, path: string) => Frame} */
function frameAt(root, path) {
  /** @type {Frame | undefined} */
  let frame = root;
  for (const id of path === "" ? [] : path.split(".")) {
    frame = frame.calls.find((call) => call.id === id);
    if (!frame) return root;
  }
  return frame;
}

// The names of a frame and its callers, the outermost first, whichever end the tree begins with.
/** @type {(frame: Frame, isInverted: boolean) => string[]} */
function stackOf(frame, isInverted) {
  const names = [];
  for (let at = /** @type {Frame | null} */ (frame); at && (at.parent || at.fn >= 0); at = at.parent) names.push(at.name);
  return isInverted ? names : names.reverse();
}
