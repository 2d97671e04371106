// The divider between the two panels of a run. Owns: the width of the right one, by pointer and by keyboard, kept in this
// tab. Refuses to know: what the panels show.

const KEPT = "ninelives.panel";
const USUAL = 392;
const LEAST = 288;
const LEFT = 420; // what the left panel keeps
const STEP = 24;

// The element between the panels. `moved` is called after each change.
export function divider(moved) {
  const made = document.createElement("div");
  for (const [name, value] of Object.entries({ class: "divider", role: "separator", tabindex: 0, "aria-orientation": "vertical",
    "aria-label": "Width of the details", title: "Drag, or use the arrow keys. Double-click for the usual width." })) made.setAttribute(name, value);
  let width = Number(sessionStorage.getItem(KEPT)) || USUAL;

  const most = () => Math.max(LEAST, made.parentElement.clientWidth - LEFT);
  const show = () => {
    const now = Math.round(Math.min(most(), Math.max(LEAST, width)));
    made.parentElement.style.setProperty("--panel", `${now}px`);
    for (const [name, value] of [["now", now], ["min", LEAST], ["max", most()]]) made.setAttribute(`aria-value${name}`, value);
    moved();
  };
  const set = (next) => { width = Math.min(most(), Math.max(LEAST, next)); sessionStorage.setItem(KEPT, String(Math.round(width))); show(); };
  const drag = (event) => set(made.parentElement.getBoundingClientRect().right - event.clientX - made.offsetWidth / 2);

  made.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    made.setPointerCapture(event.pointerId);
    made.addEventListener("pointermove", drag);
  });
  for (const name of ["pointerup", "pointercancel"]) made.addEventListener(name, () => made.removeEventListener("pointermove", drag));
  made.addEventListener("dblclick", () => set(USUAL));
  made.addEventListener("keydown", (event) => {
    const next = { ArrowLeft: width + STEP, ArrowRight: width - STEP, Home: most(), End: LEAST, Enter: USUAL }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    event.stopPropagation(); // the run has these keys too
    set(next);
  });
  queueMicrotask(() => { if (made.isConnected) show(); });
  return made;
}
