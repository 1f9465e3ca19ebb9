"""Documents that code and documentation point to can be opened by a reader of the repository."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PAGES = [*REPOSITORY.glob("*.md"), *sorted((REPOSITORY / "docs").rglob("*.md"))]
CODE = [path for folder in ("mast_ray", "jobs", "benchmarks") for path in (REPOSITORY / folder).rglob("*.py")]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_of_a_page_leads_to_a_file(page):
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    near = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in near if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("path", [*CODE, *PAGES], ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_every_document_named_exists_and_none_is_cited_by_a_number_alone(path):
    text = path.read_text(encoding="utf-8")
    named = re.findall(r"\bdocs/\w+\.md\b|(?<![\w/])[A-Z]{3,}\.md\b", text)
    assert [name for name in named if not (REPOSITORY / name).exists()] == []
    assert not re.findall(r"\((?:[A-Z]{4,} |paper,? (?:appendix |section )?)(?:[0-9]|[A-D]\b)", text)
