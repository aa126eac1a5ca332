// A page of a guest that is being recorded. Once a second it loads itself again, and shows the newer data; what is selected stays. Other pages don't have this file.

const PERIOD = 1000; // ms between two loads
const TIMEOUT = 30000; // ms
const BROKEN = "Nothing newer can be loaded: kvmprof view has ended, or doesn't answer. This is what came until then.";

/** @type {{ timer: number, text: string, pointer: PointerEvent | null }} */
const live = { timer: 0, text: element("data").textContent ?? "", pointer: null };

/** @type {() => Promise<Document>} */
const loadPage = () => new Promise((resolve, reject) => {
  const request = Object.assign(new XMLHttpRequest(), { onerror: reject, ontimeout: reject });
  request.onload = () => request.status === 200 && request.responseXML ? resolve(request.responseXML) : reject(new Error(request.statusText));
  request.open("GET", location.pathname);
  request.responseType = "document";
  request.timeout = TIMEOUT;
  request.send();
});

// Whether something is under way that new elements would break off: a click or a drag, or a panel that is open. Nothing is shown while it is paused, either.
const isBusy = () => !element("live").checked || document.hidden || document.querySelector(":active, :popover-open") !== null;

async function update() {
  const page = isBusy() ? null : await loadPage().catch(() => BROKEN);
  if (page === BROKEN) {
    say(BROKEN);
  } else if (page instanceof Document && !isBusy()) {
    take(page);
    const why = page.body.dataset.live ?? "";
    say(why);
    // There is nothing newer.
    element("live").disabled = why !== "";
    if (why !== "") return;
  }
  goOn();
}

function goOn() {
  clearTimeout(live.timer);
  live.timer = element("live").checked ? setTimeout(update, PERIOD) : 0;
}

// Says why nothing newer comes.
/** @param {string} why */
function say(why) {
  element("ended").hidden = why === "";
  if (element("ended").textContent !== why) element("ended").textContent = why;
}

// Shows the data of a newer page.
/** @param {Document} page */
function take(page) {
  const text = page.getElementById("data")?.textContent ?? "";
  element("about").replaceChildren(...page.getElementById("about")?.childNodes ?? []);
  if (text === live.text) return;
  live.text = text;
  const { width } = data;
  if (!readNewer(text)) {
    // Functions will have other numbers.
    changeInPlace({ zoom: "", transform: state.transform.filter((one) => TRANSFORMS[kindAndValue(one)[0]]?.of !== "way") }, () => {});
    location.reload();
    return;
  }
  if (cells.length === 0) return;
  if (!document.body.classList.contains("tool")) {
    start();
    return;
  }
  const [giveFocus, hadTip] = [heldFocus(), !element("tip").hidden];
  const scrolled = ["timeline", "rows", "chart", "details"].map((id) => ({ box: element(id), top: element(id).scrollTop }));
  lanes.at.bin = Math.floor(lanes.at.bin * width / data.width);
  if (lanes.anchor !== null) lanes.anchor = Math.floor(lanes.anchor * width / data.width);
  // A chart has other bins now.
  if (selection?.flames instanceof ChartLane) selection = selection.fn < 0 ? null : { fn: selection.fn, frame: null, flames: null };
  refresh();
  followHidden();
  for (const { box, top } of scrolled) box.scrollTop = top;
  giveFocus();
  if (hadTip) moveAgain();
}

// A frame of a view that isn't shown has its newer ticks, too.
function followHidden() {
  const view = selection?.flames;
  if (view !== views.graph && view !== views.tree || ["flame", "tree"].includes(state.tab)) return;
  view.root = drawnTree();
  follow(view, view.root);
  drawSelection();
}

// What gives the focus to the element that is now in place of the one that has it.
function heldFocus() {
  const active = document.activeElement;
  const box = active?.closest("[id]");
  return () => {
    if (!active || !box || active.isConnected) return;
    const others = /** @type {HTMLElement[]} */ ([...box.querySelectorAll(active.localName)]);
    others.find((one) => one.textContent === active.textContent && one.ariaLabel === active.ariaLabel)?.focus({ preventScroll: true });
  };
}

// Has the tooltip say what is under the pointer now.
function moveAgain() {
  if (!live.pointer) return;
  const { clientX, clientY, pointerType } = live.pointer;
  document.elementFromPoint(clientX, clientY)?.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY, pointerType, bubbles: true }));
}

function setUpLive() {
  const box = make("input", { type: "checkbox", id: "live", checked: true, "aria-keyshortcuts": "l", onchange: goOn });
  element("idling").before(make("label", { className: "check", id: "living", title: "Show what comes, once a second" }, box, " Live"));
  element("pane").prepend(make("p", { className: "warning", id: "ended", role: "status", hidden: true }));
  element("help").querySelector("dl")?.append(make("dt", {}, make("kbd", { textContent: "l" })), make("dd", { textContent: "pauses the live view, and goes on" }));
  KEYS.l = () => box.click();
  // Once a second is too often to be read out.
  for (const id of ["total", "values"]) element(id).ariaLive = "off";
  document.addEventListener("pointermove", (event) => { live.pointer = event; });
  goOn();
}

setUpLive();
