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
  // What its view draws, once its tree is finished: how wide it is, and its calls in their order.
  weight = 0;
  calls = NO_CALLS;
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
    /** @type {Map<string, Frame> | null} By id, if there are any. */
    this.children = null;
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
    /** @type {Record<string, (a: Frame, b: Frame) => number>} */
    const orders = { share: (a, b) => b.weight - a.weight || a.name.localeCompare(b.name),
      time: (a, b) => a.first - b.first || b.ticks - a.ticks, name: (a, b) => a.name.localeCompare(b.name) };
    const compare = orders[state.order];
    for (const frame of this.frames) frame.weight = weightOf(frame);
    for (const frame of this.frames) frame.calls = frame.children ? [...frame.children.values()].sort(compare) : NO_CALLS;
    return this.root;
  }
}

// The frames of a node and its callers, for trees that begin with callers: each node is looked up once as long as the group is the same.
/** @type {(tree: Tree, rootOf: (group: number) => Frame) => (group: number, node: number) => Frame} */
function framesFrom(tree, rootOf) {
  /** @type {Frame[]} */
  const known = new Array(nodes.length);
  const groups = new Int32Array(nodes.length); // in which a node's frame is known, counted from 1
  let [count, last] = [0, NaN];
  return (group, node) => {
    if (count === 0 || group !== last) count++;
    last = group;
    /** @type {(node: number) => Frame} */
    const find = (node) => {
      if (node === 0) return rootOf(group);
      if (groups[node] !== count) {
        known[node] = tree.call(find(nodes.parent[node]), node);
        groups[node] = count;
      }
      return known[node];
    };
    return find(node);
  };
}

// Callers first.
/** @type {(sums: AllSums) => Frame} */
function callTree(sums) {
  const tree = new Tree("all");
  const find = framesFrom(tree, (group) => tree.group(group));
  for (const stack of sums.stacks) {
    find(stack.group, stack.node).add(stack);
    if (cutAt[stack.node] > 0) find(stack.group, cutAt[stack.node]).cut += stack.ticks;
  }
  return tree.finish();
}

// Callees first.
/** @type {(sums: AllSums) => Frame} */
function invertedTree(sums) {
  const tree = new Tree("all");
  for (const stack of sums.stacks) {
    let frame = tree.group(stack.group);
    for (let node = stack.node; node > 0; node = nodes.parent[node]) frame = tree.step(frame, node, stack);
    frame.add(stack);
  }
  return tree.finish();
}

// What calls a function, and what it calls. A stack with it several times counts by its outermost call.
/** @type {(sums: AllSums, fn: number) => { callers: Frame, callees: Frame }} */
function sandwichTrees(sums, fn) {
  const outermost = new Int32Array(nodes.length);
  for (let node = 1; node < nodes.length; node++) {
    outermost[node] = outermost[nodes.parent[node]] || (nodes.fn[node] === fn ? node : 0);
  }
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

// The frame with this path below `root`; `root` if there is none.
/** @type {(root: Frame, path: string) => Frame} */
function frameAt(root, path) {
  /** @type {Frame | undefined} */
  let frame = root;
  for (const id of path === "" ? [] : path.split(".")) {
    frame = frame.children?.get(id);
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
