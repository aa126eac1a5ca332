// A tooltip at the pointer. What it says is also in the details, in labels and in the status bar: pointers alone see it.

// Shows lines of text near the pointer, the first one as a title. It never leaves the window.
/** @type {(event: MouseEvent, lines: [string, ...string[]]) => void} */
function showTip({ clientX, clientY }, [title, ...lines]) {
  const tip = element("tip");
  tip.replaceChildren(make("strong", { textContent: title }), ...lines.filter(Boolean).map((line) => make("span", { textContent: line })));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = clientX + 14 + width > innerWidth ? clientX - width - 10 : clientX + 14;
  const top = clientY + 18 + height > innerHeight ? clientY - height - 10 : clientY + 18;
  tip.style.left = `${Math.max(left, 4)}px`;
  tip.style.top = `${Math.max(top, 4)}px`;
}

function hideTip() {
  element("tip").hidden = true;
}

// Has a box show what `linesOf` says of the element under the pointer, nothing for null.
/** @type {(box: HTMLElement, linesOf: (target: any) => [string, ...string[]] | null) => void} */
function setUpTip(box, linesOf) {
  box.addEventListener("pointermove", (event) => {
    const lines = event.pointerType === "touch" ? null : linesOf(event.target);
    if (lines) showTip(event, lines);
    else hideTip();
  });
  box.addEventListener("pointerleave", hideTip);
}
