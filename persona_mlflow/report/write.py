"""Writing the report: the page, the figures and the tables, each file in place at once or not at all."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from persona_mlflow.errors import UserError
from persona_mlflow.report.figures import render
from persona_mlflow.report.formats import to_csv, to_latex, to_markdown
from persona_mlflow.report.page import Wording, Written, render_page
from persona_mlflow.report.tables import build_table

if TYPE_CHECKING:
    from persona_mlflow.analyses.entry import Finding

PAGE = "report.html"
_NAMED = re.compile(r"<code>((?:figures|tables)/[\w.-]+\.(?:csv|md|tex|svg|png))</code>")


def write_report(
    findings: Sequence[Finding],
    about: Mapping[str, Mapping[str, Any]],
    folder: str | Path,
    *,
    wording: Wording | None = None,
    progress: Callable[[str], None] | None = None,
) -> Path:
    """Write a report.

    Everything is made in a folder beside the files, and moved when all of it is there: an interrupt leaves
    the former report. Files that the former page named and this one does not are removed. Two calls with the
    same findings write the same bytes.

    Args:
        findings: In the order of the page.
        about: See `persona_mlflow.report.page.render_page`.
        folder: Made if it is not there.
        wording: What the page says beside the findings; an experiment's report by default.
        progress: Called with the title of each analysis before it is drawn.

    Returns:
        The path of the page. Beside it are ``figures/KEY.svg|png`` and ``tables/KEY.csv|md|tex``.

    Raises:
        UserError: The folder cannot be written to, or two analyses have the same key.
    """
    folder = Path(folder)
    _check_keys(findings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=".report-", dir=folder))
    except OSError as error:
        raise UserError(
            f"--output {folder}: cannot be written to ({error.strerror}); name another folder"
        ) from error
    try:
        written = []
        for finding in findings:
            if progress is not None:
                progress(finding.entry.title)
            written.append(_write_finding(finding, staged))
        (staged / PAGE).write_text(render_page(written, about, wording), encoding="utf-8", newline="\n")
        _publish(staged, folder, [name for item in written for name in item.files])
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return folder / PAGE


def check_output(folder: Path) -> None:
    """See before any work that a report can be written into a folder.

    Raises:
        UserError: Something else stands where the folder or its files are to be, or it is not writable.
    """
    import os

    for name in (PAGE, "figures", "tables"):
        path = folder / name
        if path.exists() and path.is_dir() != (name != PAGE):
            kind = "a folder" if path.is_dir() else "a file"
            raise UserError(
                f"--output {folder}: {path} is {kind}, where the report has its own; name another"
            )
    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise UserError(f"--output {folder}: cannot be written to ({nearest}); name another folder")


def report_files(page: Path) -> list[Path]:
    """The files of a report: the page, and those beside it that it names."""
    return [page, *(page.parent / name for name in _named(page))]


def _check_keys(findings: Sequence[Finding]) -> None:
    keys = [finding.entry.key for finding in findings]
    for key in keys:
        if not re.fullmatch(r"[A-Za-z][\w.-]*", key):
            raise UserError(f"analysis {key!r}: a key is letters, digits, - and _, a letter first")
        if keys.count(key) > 1:
            raise UserError(f"analysis {key!r}: two analyses have this key; rename one")


def _write_finding(finding: Finding, folder: Path) -> Written:
    if finding.data is None:
        return Written(finding, None, None, ())
    key = finding.entry.key
    table, figure = build_table(finding), render(finding)
    caption = finding.entry.caption
    contents: dict[str, str | bytes] = {
        f"tables/{key}.csv": to_csv(finding.data),
        f"tables/{key}.md": to_markdown(table, caption),
        f"tables/{key}.tex": to_latex(table, caption),
    }
    if figure is not None:
        contents |= {f"figures/{key}.svg": figure.svg, f"figures/{key}.png": figure.png}
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode(errors="replace"))
    return Written(finding, table, figure, tuple(sorted(contents)))


def _named(page: Path) -> list[str]:
    return list(dict.fromkeys(_NAMED.findall(page.read_text(encoding="utf-8")))) if page.is_file() else []


def _publish(staged: Path, folder: Path, names: Sequence[str]) -> None:
    former = _named(folder / PAGE)
    for name in (*names, PAGE):  # the page last: the one that is there stands on its own
        (folder / name).parent.mkdir(exist_ok=True)
        os.replace(staged / name, folder / name)
    for name in set(former) - set(names):
        (folder / name).unlink(missing_ok=True)
