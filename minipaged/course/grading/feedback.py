"""A page for each student: what holds, what failed, and the mistake that it is.

It holds no expected value, no drawn input and no script.
"""

from html import escape
from pathlib import Path

from ..notebook.mine import write_atomically
from .results import Record, label_of

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46em; margin: 2em auto; padding: 0 1em;
  color: #222; background: #fff; }
h1 { font-size: 1.4em; } h2 { font-size: 1.05em; margin: 0; }
article { border-left: 5px solid #999; padding: .2em 0 .2em 1em; margin: 1.2em 0; }
.passed { border-color: #0072b2; } .failed { border-color: #d55e00; }
.status { font-weight: 600; } dt { color: #666; float: left; width: 6em; } dd { margin-left: 6.5em; }
ul.warnings { background: #fff7e0; padding: .6em 1.6em; } table { border-collapse: collapse; }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<p>{score} of {max_score} points.{unofficial}</p>
{warnings}
{exercises}
</body>
</html>
"""


def page(entry: Record) -> str:
    """The feedback of one submission as an HTML page."""
    warnings = "".join(f"<li>{escape(text)}</li>" for text in entry["warnings"])
    return _PAGE.format(
        title=escape(entry["student"]),
        style=STYLE,
        score=entry["score"],
        max_score=entry["max_score"],
        unofficial="" if entry["official"] else " Graded without a sandbox: not official.",
        warnings=f'<ul class="warnings">{warnings}</ul>' if warnings else "",
        exercises="\n".join(section(e) for e in entry["exercises"]),
    )


def section(e: Record) -> str:
    """One exercise of the page."""
    said = {
        "missing": "no definition of it was found",
        "not done": "not done yet",
        "not graded": "it could not be graded; this is not your fault",
    }
    rows: list[tuple[str, str]] = []
    if e["status"] in ("passed", "failed"):
        rows.append(("holds", e["holds"]))
    if e["status"] != "passed":
        rows += [("saw", e["saw"]), (label_of(e), e["because"]), ("hint", e["hint"])]
    listed = "".join(f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in rows if text)
    kind = e["status"] if e["status"] in ("passed", "failed") else "other"
    return (
        f'<article class="{kind}"><h2>{escape(e["id"])} · {escape(e["title"])} '
        f"(<code>{escape(e['name'])}</code>)</h2>"
        f'<p><span class="status">{escape(said.get(e["status"]) or e["status"])}</span>, '
        f"{e['points']} of {e['max_points']} points</p><dl>{listed}</dl></article>"
    )


def write(entry: Record, folder: Path, key: str) -> None:
    """Write the page of one submission."""
    write_atomically(folder / "feedback" / f"{key}.html", page(entry))
