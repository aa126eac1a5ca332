// Transforms of stacks, as the Firefox Profiler has them: which frames are shown of those that were recorded. Each changes what the one before it has
// made. Filters go by what was recorded. The command has the same ones, by the same names: model/transform.rs.

// A tree of calls that is made of another one, node by node: callers come before what they call.
class Rewriting {
  parent = [-1];
  fn = [-1];
  flags = [0];
  /** @type {Map<number, number>} */
  numbers = new Map();

  /** @param {Calls} tree */
  constructor(tree) {
    this.tree = tree;
    this.to = new Int32Array(tree.length); // where each node of the other tree is in this one; -1: nowhere
    this.passed = new Uint8Array(tree.length).fill(2); // what a node's place leaves of the flags of those that it calls, and adds to them
  }

  // Where the caller of a node is.
  /** @param {number} node */
  caller(node) {
    return this.to[this.tree.parent[node]];
  }

  // The flags of a node, whose caller may have vanished: what was inlined into that is no part of what is there now.
  /** @param {number} node */
  flagsOf(node) {
    const [own, passed] = [this.tree.flags[node], this.passed[this.tree.parent[node]]];
    return (own | passed) & 1 | own & passed & 2;
  }

  // A node is a call of `fn` by `parent`.
  /** @type {(node: number, parent: number, fn: number, flags: number) => void} */
  add(node, parent, fn, flags) {
    const key = (parent * functions.name.length + fn) * 4 + flags;
    let number = this.numbers.get(key);
    if (number === undefined) {
      number = this.parent.length;
      this.numbers.set(key, number);
      this.parent.push(parent);
      this.fn.push(fn);
      this.flags.push(flags);
    }
    this.to[node] = number;
  }

  // The node is called by its caller, or is outermost if that isn't there.
  /** @param {number} node */
  keep(node) {
    this.add(node, Math.max(this.caller(node), 0), this.tree.fn[node], this.flagsOf(node));
  }

  // What the node calls is called by its caller.
  /** @param {number} node */
  vanish(node) {
    this.passed[node] = this.flagsOf(node);
    this.to[node] = this.caller(node);
  }

  // The stack isn't there, unless it begins with what the node calls.
  /** @param {number} node */
  drop(node) {
    this.passed[node] = 0;
    this.to[node] = -1;
  }

  /** @returns {Calls} */
  get made() {
    return { parent: Int32Array.from(this.parent), fn: Int32Array.from(this.fn), flags: Uint8Array.from(this.flags), length: this.parent.length };
  }
}

// The outermost node of a function on each stack, 0 if there is none.
/** @type {(tree: Calls, fn: number) => Int32Array} */
function outermostOf(tree, fn) {
  const outermost = new Int32Array(tree.length);
  for (let node = 1; node < tree.length; node++) outermost[node] = outermost[tree.parent[node]] || (tree.fn[node] === fn ? node : 0);
  return outermost;
}

// How many functions of a way each node's stack has, from its outermost frame on: all of them behind the end of the way, -1 where it has left that. A way from
// `anywhere` begins with the outermost call of its first function.
/** @type {(tree: Calls, way: number[], isFolded: boolean, anywhere?: boolean) => Int32Array} */
function alongWay({ parent, fn, length }, way, isFolded, anywhere = false) {
  const along = new Int32Array(length);
  for (let node = 1; node < length; node++) {
    const before = along[parent[node]];
    const isSame = before === way.length || before === 0 && anywhere && fn[node] !== way[0] || isFolded && fn[node] === fn[parent[node]];
    along[node] = isSame ? before : fn[node] === way[before] ? before + 1 : -1;
  }
  return along;
}

// Whether a function is on a stack more than once.
/** @type {(tree: Calls, fn: number) => boolean} */
function isRecursive(tree, fn) {
  const outermost = outermostOf(tree, fn);
  return tree.fn.some((one, node) => one === fn && outermost[node] !== node);
}

// Each transform: what it does with a function, or with a module or the way of a frame if it is of these, what it is called on a button and on a chip, and its
// key, where the Firefox Profiler's is free.
/** @typedef {{ button: string, chip: string, key: string, of?: "module" | "way", apply: (made: Rewriting, value: any) => (node: number) => void }} Transform */
/** @type {Record<string, Transform>} */
const TRANSFORMS = {
  focus: {
    button: "Focus on it", chip: "focus on", key: "F",
    // Its callers aren't there, nor are stacks without it.
    apply: (made, fn) => {
      made.drop(0);
      return (node) => {
        if (made.tree.fn[node] !== fn && made.caller(node) < 0) made.drop(node);
        else made.keep(node);
      };
    },
  },
  subtree: {
    button: "Focus on its subtree", chip: "subtree of", key: "t", of: "way",
    // Only stacks that begin with the way are there, from its last function on.
    apply: (made, way) => {
      const along = alongWay(made.tree, way, false);
      made.drop(0);
      return (node) => {
        if (along[node] === way.length) made.keep(node);
        else made.drop(node);
      };
    },
  },
  merge: {
    button: "Merge it", chip: "merged", key: "m",
    // Its callers call what it calls, and its own ticks are theirs.
    apply: (made, fn) => (node) => made.tree.fn[node] === fn ? made.vanish(node) : made.keep(node),
  },
  collapse: {
    button: "Collapse its callees", chip: "without callees:", key: "c",
    // The ticks of what it calls are its own.
    apply: (made, fn) => (node) => {
      const caller = made.caller(node);
      if (caller > 0 && made.fn[caller] === fn) made.to[node] = caller;
      else made.keep(node);
    },
  },
  recursion: {
    button: "Collapse its recursion", chip: "without recursion:", key: "r",
    // What is between its outermost call and the innermost one isn't on these stacks.
    apply: (made, fn) => {
      const outermost = outermostOf(made.tree, fn);
      return (node) => {
        if (made.tree.fn[node] === fn && outermost[node] !== node) made.to[node] = made.to[outermost[node]];
        else made.keep(node);
      };
    },
  },
  "focus-module": {
    button: "Focus on its module", chip: "only frames of", key: "g", of: "module",
    // Functions of other modules aren't there, nor are stacks that have no others.
    apply: (made, module) => {
      made.drop(0);
      return (node) => {
        if (functions.module[made.tree.fn[node]] !== module) made.vanish(node);
        else made.keep(node);
      };
    },
  },
  "collapse-module": {
    button: "Collapse its module", chip: "collapsed", key: "C", of: "module",
    // Its functions that call each other are one.
    apply: (made, module) => (node) => {
      if (functions.module[made.tree.fn[node]] !== module) {
        made.keep(node);
        return;
      }
      const [caller, fn] = [made.caller(node), moduleFunctions.get(module) ?? -1];
      if (caller > 0 && made.fn[caller] === fn) made.to[node] = caller;
      else made.add(node, caller, fn, made.flagsOf(node) & 1);
      made.passed[node] = 0;
    },
  },
};

/** @type {(one: string) => [string, string]} */
const kindAndValue = (one) => [one.slice(0, one.indexOf(":")), one.slice(one.indexOf(":") + 1)];

/** @type {(one: string) => string} */
function transformName(one) {
  const [kind, value] = kindAndValue(one);
  const of = TRANSFORMS[kind]?.of;
  return `${TRANSFORMS[kind]?.chip ?? kind} ${of === "module" ? value : of === "way" ? functions.name[readWay(value).at(-1) ?? -1] ?? value : nameOfKey(value)}`;
}

// What is between the names of a way on the command line.
const WAY_SEPARATOR = ";";

// The transform as the command has it; null if it can't: it knows functions by their names alone.
/** @type {(one: string) => string | null} */
function transformInCommand(one) {
  const [kind, value] = kindAndValue(one);
  const of = TRANSFORMS[kind]?.of;
  const names = of === "module" ? [value] : (of === "way" ? readWay(value) : [functionOfKey(value) ?? -1]).map(nameInCommand);
  const isFine = names.every((name) => name !== null && name !== "" && name !== NO_MODULE && !name.includes(WAY_SEPARATOR) && !isOfHalted(name));
  return TRANSFORMS[kind] && isFine ? `${kind}=${names.join(WAY_SEPARATOR)}` : null;
}

// Whether it is called as what stands for halted vCPUs, which have no stack for the command.
/** @type {(name: string) => boolean} */
const isOfHalted = (name) => {
  const fn = recorded.fn[data.halted.node] ?? -1;
  return name === functions.name[fn] || name === moduleName(fn);
};

// A way is written as the numbers of its functions, as in the path of a frame.
/** @type {(text: string) => number[]} */
const readWay = (text) => text.split(".").map((id) => parseInt(id));

// What the transforms `wanted` make of a tree, and where each of its nodes is there.
/** @type {(tree: Calls, wanted: string[]) => [Calls, Int32Array]} */
function transformed(tree, wanted) {
  const place = new Int32Array(tree.length);
  for (let node = 0; node < tree.length; node++) place[node] = node;
  for (const one of wanted) {
    const [kind, value] = kindAndValue(one);
    if (!Object.hasOwn(TRANSFORMS, kind)) continue;
    const made = new Rewriting(tree);
    const { of, apply } = TRANSFORMS[kind];
    const step = apply(made, of === "module" ? modules.name.indexOf(value) : of === "way" ? readWay(value) : functionOfKey(value) ?? -1);
    for (let node = 1; node < tree.length; node++) step(node);
    tree = made.made;
    for (let node = 0; node < place.length; node++) if (place[node] >= 0) place[node] = made.to[place[node]];
  }
  return [tree, place];
}

// The stacks that are shown, where those that were recorded are among them, and of each how many frames it has, and the node behind which its callers are
// missing, 0 if they are all there.
let [nodes, shownAs] = transformed(recorded, []);
let depths = new Uint32Array(nodes.length);
let cutAt = new Int32Array(nodes.length);
let isTransformedBy = "";
derive(() => { isTransformedBy = ""; });

function transformStacks() {
  const wanted = JSON.stringify(state.transform);
  if (wanted === isTransformedBy) return;
  [nodes, shownAs] = transformed(recorded, state.transform);
  [depths, cutAt] = [new Uint32Array(nodes.length), new Int32Array(nodes.length)];
  for (let node = 1; node < nodes.length; node++) {
    depths[node] = depths[nodes.parent[node]] + 1;
    cutAt[node] = nodes.flags[node] & 1 ? node : cutAt[nodes.parent[node]];
  }
  isTransformedBy = wanted;
}

// Transforms the stacks by what is selected, or by its module.
/** @type {(kind: string, selected: Selected) => void} */
function transform(kind, { fn, frame }) {
  const { of } = TRANSFORMS[kind];
  const value = of === "module" ? moduleName(fn) : of === "way" && frame ? wayOf(frame).join(".") : keyOf(fn);
  change({ transform: [...state.transform.filter((one) => one !== `${kind}:${value}`), `${kind}:${value}`], zoom: "" });
}

// The transforms that change anything for what is selected. Frames have a way from the outermost one where callers come first and recursion isn't folded.
/** @type {(selected: Selected) => string[]} */
const transformsOf = ({ fn, frame, flames }) => fn < 0 ? [] : Object.keys(TRANSFORMS).filter((kind) => {
  if (TRANSFORMS[kind].of === "module") return moduleName(fn) !== "" && !isOfModule(fn);
  if (TRANSFORMS[kind].of === "way") return frame !== null && state.fold === "" && flames !== views.callees && !isFromCallees(flames);
  return kind !== "recursion" || isRecursive(nodes, fn);
});
