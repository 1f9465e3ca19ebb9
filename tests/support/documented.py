"""What docs/data_formats.md says about the columns of tables."""

from pathlib import Path

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs").rglob("*.md"))


def documented_columns(heading):
    """First cells of the table below a heading that begins with `| column |`."""
    page = next(page for page in PAGES if page.name == "data_formats.md")
    section = page.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = section.partition("| column | what |\n|---|---|\n")[2].partition("\n\n")[0]
    return {name for row in rows.splitlines() for name in row.split("|")[1].strip().split(", ")}
