// Trees of calls, made of the selected stacks.

// How wide a frame is drawn: by its ticks; in a comparison by the mean of its two shares, so that what vanished is there.
const weightOf = (frame) => isComparison ? shareOf(frame.sides, 0) + shareOf(frame.sides, 1) : frame.ticks;

// A frame of a view: a function called on a certain way, or (fn = -1) a process, a thread, or all. A function has one frame there for all
// stacks, those whose callers are missing too: they are its ticks that were cut short.
class Frame {
  constructor(parent, id, fn, name) {
    this.parent = parent;
    this.id = id;
    this.fn = fn;
    this.name = name;
    this.depth = parent ? parent.depth + 1 : 0;
    this.ticks = 0;
    this.sides = isComparison ? [0, 0] : null;
    this.modes = [0, 0, 0, 0];
    this.first = Infinity;
    this.cut = 0;
    this.isInlined = false;
    this.children = null; // by id, if there are any
  }

  // The ids of the frames up to this one: what the address of the page says of it.
  get path() {
    const ids = [];
    for (let frame = this; frame.parent; frame = frame.parent) ids.unshift(frame.id);
    return ids.join(".");
  }

  add(stack) {
    this.ticks += stack.ticks;
    if (isComparison) addSides(this.sides, stack.sides);
    for (let mode = 0; mode < MODES.length; mode++) this.modes[mode] += stack.modes[mode];
    if (stack.first < this.first) this.first = stack.first;
  }
}

class Tree {
  constructor(name, fn = -1) {
    this.root = new Frame(null, "", fn, name);
    this.frames = [this.root];
  }

  // The frame called `id` below `parent`.
  child(parent, id, fn, name) {
    parent.children ??= new Map();
    let frame = parent.children.get(id);
    if (!frame) {
      frame = new Frame(parent, id, fn, name);
      parent.children.set(id, frame);
      this.frames.push(frame);
    }
    return frame;
  }

  // The frame of a node below `parent`, which is `parent` itself when recursion is folded.
  call(parent, node) {
    const fn = nodes.fn[node];
    if (state.fold !== "" && parent.fn === fn) return parent;
    const frame = this.child(parent, `${fn}`, fn, functions.name[fn]);
    frame.isInlined = (nodes.flags[node] & 2) === 2;
    return frame;
  }

  // The frame of a node of `stack` below `parent`, with its ticks if they are cut short there.
  step(parent, node, stack) {
    const frame = this.call(parent, node);
    if (cutAt[stack.node] === node) frame.cut += stack.ticks;
    return frame;
  }

  group(key) {
    if (state.group === "merged") return this.root;
    return this.child(this.root, `g${key}`, -1, GROUP_NAMES[state.group](key));
  }

  // Adds each frame's sums to its caller's. What was added to frames before is their own.
  finish() {
    for (let index = this.frames.length - 1; index > 0; index--) this.frames[index].parent.add(this.frames[index]);
    const compare = { share: (a, b) => b.weight - a.weight || a.name.localeCompare(b.name),
      time: (a, b) => a.first - b.first || b.ticks - a.ticks, name: (a, b) => a.name.localeCompare(b.name) }[state.order];
    for (const frame of this.frames) frame.weight = weightOf(frame);
    for (const frame of this.frames) frame.calls = frame.children ? [...frame.children.values()].sort(compare) : [];
    return this.root;
  }
}

// The frames of a node and its callers, for trees that begin with callers: each node is looked up once as long as the group is the same.
function framesFrom(tree, rootOf) {
  const known = new Array(nodes.length);
  const groups = new Int32Array(nodes.length); // in which a node's frame is known, counted from 1
  let [count, last] = [0, null];
  return (group, node) => {
    if (count === 0 || group !== last) count++;
    last = group;
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
    const way = [];
    for (let node = stack.node; node !== call; node = nodes.parent[node]) way.push(node);
    way.reverse().reduce((at, node) => callees.step(at, node, stack), callees.root).add(stack);
  }
  return { callers: callers.finish(), callees: callees.finish() };
}

// The frame with this path below `root`; `root` if there is none.
function frameAt(root, path) {
  let frame = root;
  for (const id of path === "" ? [] : path.split(".")) {
    frame = frame.children?.get(id);
    if (!frame) return root;
  }
  return frame;
}

// The names of a frame and its callers, the outermost first, whichever end the tree begins with.
function stackOf(frame, isInverted) {
  const names = [];
  for (let at = frame; at && (at.parent || at.fn >= 0); at = at.parent) names.push(at.name);
  return isInverted ? names : names.reverse();
}
