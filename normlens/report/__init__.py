"""Results as a self-contained report: one directory, written whole or not at all."""

from __future__ import annotations

from normlens.report.write import write_report

__all__ = ["write_report"]
