"""From findings to what a reader opens: tables, figures and one HTML page."""

from __future__ import annotations

from persona_mlflow.report.write import write_report

__all__ = ["write_report"]
