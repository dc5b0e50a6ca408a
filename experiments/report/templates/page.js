// A heading sorts its column: numbers with their units first, in their order, then texts; again: the other way round.
"use strict";
const SCALE = { s: 1, ms: 1e-3, "\u00b5s": 1e-6, us: 1e-6, ns: 1e-9, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 };
function key(cell) {
  const text = cell ? cell.textContent.trim() : "";
  const found = /^\[?([+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?) ?([^\W\d]*)/i.exec(text);
  return found ? [0, parseFloat(found[1].replaceAll(",", "")) * (SCALE[found[2]] ?? 1), text] : [text ? 1 : 2, 0, text];
}
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, place = head.cellIndex, body = head.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") === "ascending", sign = down ? -1 : 1;
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].map(row => [key(row.cells[place]), row]);
    rows.sort(([a], [b]) => (a[0] === 2) - (b[0] === 2)
      || sign * (a[0] - b[0] || a[1] - b[1] || a[2].localeCompare(b[2])));
    body.append(...rows.map(([, row]) => row));
  });
}
