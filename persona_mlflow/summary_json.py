"""What ``summarize --json`` prints, as its JSON Schema says (``summarize --schema``)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray as xr

    from persona_mlflow.analyses import Finding


def schema_text() -> str:
    """The JSON Schema (2020-12) of the document."""
    return files("persona_mlflow").joinpath("summarize.schema.json").read_text(encoding="utf-8").rstrip()


def document(
    rows: Sequence[Mapping[str, Any]],
    findings: Sequence[Finding],
    by: str | None = None,
    over: Sequence[str] | None = None,
) -> str:
    """The summary as JSON: the same results give the same bytes.

    Args:
        rows: As `persona_mlflow.summary.run_summary` gives them, with a ``label``.
        findings: The breakdown and the claims, if they were asked for.
        by: What the breakdown is by.
        over: What it varies.
    """
    items = [dict(row) for row in rows]
    for finding in findings:
        assert finding.data is not None
        for item in items:
            data = finding.data.sel(model=item["label"])
            if finding.entry.key == "claims":
                item["claims"] = _claims(data)
            else:
                item["breakdown"] = {
                    "by": by,
                    "over": list(over) if over else None,
                    "parts": _parts(data),
                }
    return json.dumps(items, ensure_ascii=False, indent=1, allow_nan=False)


def _parts(data: xr.Dataset) -> list[dict[str, Any]]:
    parts = []
    for level in data["level"].values.tolist():
        part = data.sel(level=level)
        if not part["reason"].isel(quantity=0).item() and _number(part["runs"]) is None:
            continue  # another model's level
        quantities = part["quantity"].values.tolist()
        row: dict[str, Any] = {
            "level": level,
            "runs": round(float(part["runs"])),
            "questions": round(float(part["questions"])),
            "metrics": {name: _number(part["value"].sel(quantity=name)) for name in quantities},
        }
        if "low" in part:
            row["intervals"] = {
                name: [_number(part[end].sel(quantity=name)) for end in ("low", "high")]
                for name in quantities
                if row["metrics"][name] is not None
            }
        row["undefined"] = {
            name: part["reason"].sel(quantity=name).item()
            for name in quantities
            if row["metrics"][name] is None
        }
        parts.append(row)
    return parts


def _claims(data: xr.Dataset) -> list[dict[str, Any]]:
    claims = []
    for name in data["claim"].values.tolist():
        row = data.sel(claim=name)
        claims.append(
            {
                "claim": name,
                "verdict": row["verdict"].item(),
                "margin": _number(row["value"]),
                "low": _number(row["low"]),
                "high": _number(row["high"]),
                "reason": row["reason"].item() or None,
            }
        )
    return claims


def _number(value: Any) -> float | None:
    number = float(value)
    return number if number == number and abs(number) != float("inf") else None
