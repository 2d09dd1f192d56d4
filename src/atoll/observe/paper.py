"""What every report is printed on: one HTML file that needs nothing else.

No script, no font, no picture from elsewhere. It reads on a phone and on paper.
"""

from __future__ import annotations

from html import escape

STYLE = """
:root { --ink: #1f2328; --dim: #59636e; --line: #d9dee3; --wash: #f6f8fa; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 2.2rem 1.4rem 4rem; color: var(--ink); background: #fff;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.1rem; margin: 2.4rem 0 .5rem; }
p { margin: .4rem 0; max-width: 60rem; }
.dim, figcaption, .notes { color: var(--dim); }
.found { border-left: 4px solid #0072B2; padding: .2rem 0 .2rem 1rem; margin: 1.2rem 0; }
.scroll { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .42rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { font-weight: 600; color: var(--dim); font-size: .88rem; white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child, .plain td, .plain th { text-align: left; }
.plain td { white-space: normal; vertical-align: top; }
td:first-child { font-weight: 600; }
td svg { width: 46px; height: 15px; vertical-align: middle; margin-right: .5rem; }
tr.best td { background: var(--wash); }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); gap: 1.2rem;
  margin: 1rem 0; }
figure { margin: 0; border: 1px solid var(--line); border-radius: 8px; padding: .9rem .9rem .6rem; }
figure > svg { width: 100%; height: auto; display: block; }
figure h3 { margin: 0 0 .2rem; font-size: 1rem; }
figcaption { font-size: .88rem; }
.keys { display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; font-size: .92rem; margin: .2rem 0 .8rem; }
.keys svg { width: 46px; height: 15px; vertical-align: middle; margin-right: .3rem; }
.notes { padding-left: 1.1rem; font-size: .92rem; }
pre { background: var(--wash); border-radius: 6px; padding: .7rem .9rem; overflow-x: auto; font-size: .88rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
@media print { body { padding: 0; } figure { break-inside: avoid; } }
"""


def whole(title: str, body: str) -> str:
    """Return the text of a file: a body of HTML under a title of plain text."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )
