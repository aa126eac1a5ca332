// Keys that work everywhere on the page; those of a view are its own.

/** @type {(target: Element) => boolean} */
const isTyping = (target) => target.matches("input:not([type=checkbox]), select, textarea");

/** @type {Record<string, () => void>} */
const KEYS = {
  "/": () => element("search").focus(),
  "?": () => element("help").togglePopover(),
  f: () => {
    element("filters").togglePopover();
  },
  i: () => { if (hasIdle) change({ idle: state.idle === "" ? "1" : "", zoom: "" }); },
  s: () => toggleDetails(),
  z: () => undo(),
  d: () => { if (selection && selection.fn >= 0) hideFunction(selection.fn); },
  h: () => { if (state.tab === "tree") views.tree.openHeaviest(); },
  Escape: () => { if (!document.querySelector(":popover-open")) change({ time: "", zoom: "" }); },
};

// Those of transforms, of what is selected.
for (const [kind, { key }] of Object.entries(TRANSFORMS)) {
  KEYS[key] = () => { if (selection && transformsOf(selection).includes(kind)) transform(kind, selection); };
}

function setUpKeys() {
  document.addEventListener("keydown", (/** @type {any} */ event) => {
    if (event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey || isTyping(event.target)) return;
    const tab = TABS[Number(event.key) - 1];
    if (tab) change({ tab });
    else if (Object.hasOwn(KEYS, event.key)) KEYS[event.key]();
    else return;
    if (event.key !== "Escape") event.preventDefault();
  });
}

// Goes a step back, if this page has made one.
function undo() {
  if (steps() > 0) history.back();
}
