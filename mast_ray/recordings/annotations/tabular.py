"""Delimited text as people and programs write it: any of tab, comma or semicolon,
BOM or none, CRLF, comma decimals.

Cells that a spreadsheet would take for a formula are written with a leading apostrophe, which is taken away
again on reading.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from mast_ray.config.errors import DataError

MAX_ANNOTATION_BYTES = 200 << 20
HEAD_BYTES = 65_536
_FORMULA = re.compile(r"^'*[=+\-@\t\r\n]")
_DEFUSED = re.compile(r"^'+[=+\-@\t\r\n]")
_EITHER = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")  # 2.500: two and a half, or two thousand five hundred
_ONE_WAY = re.compile(r"[+-]?[\d.,]*\d[\d.,]*")


@dataclass(frozen=True)
class Table:
    """Header and rows; every row is (line number in the file, column name -> text)."""

    columns: tuple[str, ...]
    rows: tuple[tuple[int, Mapping[str, str]], ...]


def decoded(content: bytes, source: str) -> str:
    """Text of an annotation file in UTF-8, UTF-16 or, failing these, as Windows of the West writes it: Latin-1 with
    typographic quotation marks and dots where that has control characters.
    """
    if len(content) > MAX_ANNOTATION_BYTES:
        raise DataError(f"{source}: {len(content)} bytes are too many for an annotation file:\nsplit it")
    if _is_workbook(content):
        raise DataError(f"{source} is a workbook of Excel or LibreOffice:\nsave its sheet as CSV")
    if content[:2] == b"\x1f\x8b" or content[:4] == b"PK\x03\x04":
        raise DataError(f"{source} is a compressed archive:\nunpack it and name the folder")
    if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return content.decode("utf-16", errors="replace")
    for encoding in ("utf-8-sig", "cp1252"):
        with suppress(UnicodeDecodeError):
            return content.decode(encoding)
    return content.decode("latin-1")


def _is_workbook(content: bytes) -> bool:
    """.xlsx and .ods are zip archives, .xls is Microsoft's compound file."""
    is_zipped = content[:4] == b"PK\x03\x04" and (b"xl/" in content or b"opendocument.spreadsheet" in content)
    return is_zipped or content[:4] == b"\xd0\xcf\x11\xe0"


def decoded_head(content: bytes, source: str) -> str:
    """The same of a beginning that holds the header: whole lines, because half a letter at the end would change how all is read."""
    head = content[:HEAD_BYTES]
    return decoded(head[: head.rfind(b"\n") + 1] or head, source)


def lines_of(text: str) -> list[str]:
    """Lines as files have them; `str.splitlines` would also end one at a separator inside a label."""
    return re.split(r"\r\n|\r|\n", text)


def first_line(text: str) -> str:
    return next((line for line in lines_of(text) if line.strip()), "")


def delimiter_of(header: str) -> str:
    return next((mark for mark in ("\t", ";") if mark in header), ",")


def parse_table(text: str, source: str) -> Table:
    """Read header and rows; blank lines are skipped, missing cells are empty. A row with more cells than the header
    cannot be read: each of its numbers may stand one column further on.
    """
    delimiter = delimiter_of(first_line(text))
    # Raven does not quote: a lone quotation mark in a tab-separated cell is part of the text.
    lines = io.StringIO(text, newline="")
    if delimiter == "\t":
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(lines, delimiter=delimiter)
    columns: tuple[str, ...] = ()
    rows = []
    try:
        for cells in reader:
            cells = [_unquoted(cell) if delimiter == "\t" else cell.strip() for cell in cells]
            if not any(cells):
                continue
            if not columns:
                columns = tuple(cells)
            elif any(cells[len(columns) :]):
                raise DataError(
                    f"{source}, line {reader.line_num}: {len(cells)} cells, and the header names {len(columns)} columns:\n"
                    "write decimals with a point, a text with commas in quotation marks, and from R with row.names=FALSE"
                )
            else:
                values = dict(zip(columns, (*cells, *("" for _ in columns[len(cells) :]))))
                rows.append(
                    (reader.line_num, {name: restored(value) for name, value in values.items() if name})
                )
    except csv.Error as error:
        raise DataError(
            f"{source}, line {reader.line_num}: {error}:\nsave it as plain tab- or comma-separated text"
        ) from error
    if delimiter != "\t" and any(re.search(r"[\r\n]", cell) for _, row in rows for cell in row.values()):
        _refuse_open_quotes(text, delimiter, source)
    return Table(columns, tuple(rows))


def _refuse_open_quotes(text: str, delimiter: str, source: str) -> None:
    """A quotation mark that nothing closes takes the rows that follow into its cell, up to the next mark or to the end."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    begins_at = 1
    try:
        for _ in reader:
            begins_at = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{source}, line {begins_at}: a quotation mark is opened and not closed, and takes the lines below into its cell:\n"
            "take it away, or write it twice inside of quotation marks"
        ) from error


def _unquoted(cell: str) -> str:
    cell = cell.strip(" \r\n")
    return cell[1:-1] if len(cell) >= 2 and cell[0] == cell[-1] == '"' else cell


def number(text: str) -> float | None:
    """`1234.5`, `1234,5` or `1.234,5`; None for an empty cell, and for the `NA` that R writes into one. Raises ValueError
    for anything else, NaN included.
    """
    text = text.strip()
    if text in ("", "NA"):
        return None
    written = text
    if "," in text:
        text = (
            text.replace(".", "").replace(",", ".")
            if text.rfind(",") > text.rfind(".")
            else text.replace(",", "")
        )
    try:
        value = float(text)
    except ValueError:
        is_clock = re.fullmatch(r"\d+(:\d+){1,2}([.,]\d+)?", written)
        what = "a clock time, not a number of seconds" if is_clock else "not a number"
        raise ValueError(f"{written!r} is {what}") from None
    if not abs(value) < 1e12:
        raise ValueError(f"{written!r} is out of range")
    return value


def with_one_reading(table: Table, columns: Iterable[str | None], source: str) -> Table:
    """The same table, where 2.500 in these columns is a number that can be read in one way only.

    Alone it has three decimals. Among decimal commas (in its column; where that has none for sure, in the others) it is 2500
    if some number there has a point for thousands too (1.812,5), and else refused; 2,500 among decimal points likewise.
    """
    names = [name for name in dict.fromkeys(columns) if name in table.columns]
    marks_of = {name: set[str]() for name in names}
    thousands = set[str]()
    for _, row in table.rows:
        for name in names:
            text = row.get(name, "").strip()
            found = [mark for mark in ",." if mark in text] if _ONE_WAY.fullmatch(text) else []
            if found and not _EITHER.fullmatch(text):
                last = max(found, key=text.rfind)
                marks_of[name].add(last)
                thousands |= {*found} - {last}
    marks = set[str]().union(*marks_of.values())
    rows = []
    for line, row in table.rows:
        either = {name: row[name].strip() for name in names if _EITHER.fullmatch(row.get(name, "").strip())}
        for name, text in either.items():
            own, other = ("," if "," in text else "."), ("." if "," in text else ",")
            known = marks_of[name] or marks
            if other not in known:
                continue
            if own in known or own not in thousands:
                raise DataError(
                    f"{source}, line {line}: {text!r} under {name!r} is {text.replace(own, '.')} or {text.replace(own, '')}, "
                    f"for decimals have {other!r} elsewhere:\n"
                    f"write it {text.replace(own, '')} or {text.replace(own, other)}"
                )
            row = {**row, name: text.replace(own, "")}
        rows.append((line, row))
    return Table(table.columns, tuple(rows))


def defused(text: str) -> str:
    return f"'{text}" if _FORMULA.match(text) else text


def restored(text: str) -> str:
    return text[1:] if _DEFUSED.match(text) else text


def in_one_line(text: str) -> str:
    """For formats without quoting: a tab or a line break inside a text becomes a space."""
    return re.sub(r"[\t\r\n]+", " ", text)


def written_table(columns: Sequence[str], rows: Iterable[Sequence[str]], delimiter: str) -> str:
    """Delimited text with a header; cells must be defused already."""
    buffer = io.StringIO(newline="")
    if delimiter == "\t":
        buffer.write("\t".join(columns) + "\n")
        buffer.writelines("\t".join(in_one_line(cell) for cell in row) + "\n" for row in rows)
    else:
        writer = csv.writer(buffer, delimiter=delimiter, lineterminator="\n")
        writer.writerow(columns)
        # The csv module leaves a lone carriage return unquoted: a spreadsheet would begin a
        # new row, and a formula, there.
        writer.writerows([re.sub(r"\r\n?", "\n", cell) for cell in row] for row in rows)
    return buffer.getvalue()


def seconds(value: float) -> str:
    return f"{value:.6f}"


def hertz(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def column_lookup(columns: Sequence[str]) -> dict[str, str]:
    """Lower-cased, tidied column name -> name as written."""
    return {re.sub(r"\s+", " ", name.strip().lower()): name for name in reversed(columns)}


def pick(lookup: Mapping[str, str], aliases: Iterable[str]) -> str | None:
    """The first alias that is a column of the table."""
    return next((lookup[alias] for alias in aliases if alias in lookup), None)


def numbered(
    rows: Iterable[tuple[int, Mapping[str, str]]], source: str
) -> Iterator[tuple[str, Mapping[str, str]]]:
    for line, values in rows:
        yield f"{source}, line {line}", values
