"""A sweep's rows as one table: CSV, or Parquet, with the same columns and values."""

from __future__ import annotations

import csv
import enum
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from malletrain.errors import SweepError

if TYPE_CHECKING:
    from malletrain.replay.sweep import Row

_Value = str | int | float | bool | None


class TableFormat(enum.Enum):
    CSV = "csv"
    PARQUET = "parquet"


def check_format(kind: TableFormat) -> None:
    """Find before the work begins whether its table can be written.

    Raises:
        SweepError: what it needs is not installed.
    """
    if kind is TableFormat.CSV:
        return
    try:
        import pyarrow  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise SweepError(
            f"--format {kind.value} needs {error.name}, which is not installed: "
            f"pip install 'malletrain[replay]', or --format {TableFormat.CSV.value}"
        ) from error


def write(rows: Sequence[Row], path: Path, kind: TableFormat) -> None:
    """Write the table.

    Raises:
        OSError: it cannot be written.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    if kind is TableFormat.CSV:
        path.write_text(_csv(columns), encoding="utf-8")
    else:
        _write_parquet(columns, path)


def _csv(columns: dict[str, list[_Value]]) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(columns)
    rows.writerows([_cell(value) for value in row] for row in zip(*columns.values(), strict=True))
    return text.getvalue()


def _cell(value: _Value) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _write_parquet(columns: dict[str, list[_Value]], path: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415 - an extra
    from pyarrow import parquet  # noqa: PLC0415

    def array(values: list[_Value]) -> pa.Array:
        # What is never known is a number: makespans, limits.
        is_known = any(value is not None for value in values)
        return pa.array(values, type=None if is_known else pa.float64())

    parquet.write_table(pa.table({name: array(v) for name, v in columns.items()}), path)
