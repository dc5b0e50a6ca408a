"""Style and script of the page, which loads nothing from elsewhere."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #5f6368; --line: #dadce0; --faint: #f6f7f8; --page: #fff;
  --blue: #0069a3; --red: #a83f00; --warn: #fdf3ec; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --soft: #a9aeb5; --line: #4a4f55; --faint: #2b2e33;
  --page: #1f2125; --blue: #7cc4f5; --red: #ffab7a; --warn: #3a2a20; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 78rem; color: var(--ink); background: var(--page);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; overflow-wrap: break-word; }
@media (max-width: 40rem) { body { padding: 1.2rem 1rem 3rem; } }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; padding-top: .9rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
p { margin: .4rem 0; max-width: 60rem; } li { max-width: 60rem; } .soft, figcaption { color: var(--soft); }
a, summary { color: var(--blue); } code { font-size: .92em; overflow-wrap: anywhere; } .lines { white-space: pre-line; }
.opening { font-size: 1.05rem; } nav ul { columns: 20rem; list-style: none; padding: 0; }
.banner, .note { margin: 1rem 0; padding: .55rem .8rem; border-left: 4px solid var(--line); background: var(--faint); }
.banner { border-color: var(--red); background: var(--warn); }
figure { margin: 1rem 0 1.8rem; } figure .wide { max-width: 60rem; background: #fff; }
figure svg { display: block; width: 100%; min-width: 36rem; height: auto; }
figcaption { font-size: .84rem; line-height: 1.45; margin-top: .4rem; max-width: 60rem; }
.wide { overflow-x: auto; } .wide:focus-visible { outline: 2px solid var(--blue); }
td:not(:last-child) { white-space: nowrap; }
table { border-collapse: collapse; font-size: .86rem; margin: .3rem 0 .8rem; }
th { text-align: left; font-weight: 600; vertical-align: bottom; border-bottom: 1.5px solid var(--ink); }
th, td { padding: .22rem .75rem .22rem 0; } td { border-bottom: 1px solid var(--line); vertical-align: top; }
td:last-child { overflow-wrap: anywhere; min-width: 6rem; }
th.n, td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid var(--blue); }
th button:hover, a:hover { text-decoration: underline; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
.verdict { white-space: nowrap; font-weight: 600; } .faster { color: var(--blue); } .slower { color: var(--red); }
.same, .not { color: var(--soft); font-weight: 400; }
ul { margin: .4rem 0; padding-left: 1.2rem; } li { margin: .15rem 0; } details { margin: .4rem 0; }
summary { cursor: pointer; } dl { margin: .3rem 0; } dt { font-weight: 600; margin-top: .4rem; } dd { margin: 0; }
@page { margin: 12mm; }
@media print {
  :root { color-scheme: light; --ink: #000; --soft: #444; --line: #bbb; --faint: #f6f7f8; --page: #fff; --blue: #005a8c;
    --red: #8f3500; --warn: #fdf3ec; }
  body { padding: 0; max-width: none; font-size: 10pt; } nav { display: none; }
  h2, h3 { break-after: avoid; } figure, tr { break-inside: avoid; } thead { display: table-header-group; }
  .wide { overflow: visible; } figure svg { min-width: 0; } table { font-size: 6.5pt; width: 100%; }
  th, td, th.n, td.n, td:not(:last-child), .verdict { white-space: normal; padding-right: .35rem;
    overflow-wrap: anywhere; min-width: 0; }
  th, th.n { overflow-wrap: break-word; }
  details::details-content { content-visibility: visible; block-size: auto; }
}
"""

# A heading sorts its column: numbers with their units first, in their order, then texts; again: the other way round.
SCRIPT = """
"use strict";
const SCALE = { s: 1, ms: 1e-3, "\\u00b5s": 1e-6, us: 1e-6, ns: 1e-9, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 };
function key(cell) {
  const text = cell ? cell.textContent.trim() : "";
  const found = /^\\[?([+-]?[\\d,]*\\.?\\d+(?:e[+-]?\\d+)?) ?([^\\W\\d]*)/i.exec(text);
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
"""
