"""docs/reliability.md: every row names tests that exist, and says how they ended."""

import ast
from datetime import UTC, datetime

import pytest
from reliability_table import BY_HAND, FAULTS, PAGE, ROOT, THREATS, Outcome, Row, outcomes_of, page, today

RESULTS = """<?xml version="1.0"?><testsuites><testsuite>
<testcase classname="tests.storage.test_s3" name="test_a[1]"><properties><property name="figure" value="9 of 9"/></properties></testcase>
<testcase classname="tests.storage.test_s3" name="test_a[2]"><failure/></testcase>
<testcase classname="tests.test_b" name="test_c"><skipped/></testcase>
</testsuite></testsuites>"""


def test_there_are_24_faults_and_11_threats():
    assert (len(FAULTS), len(THREATS)) == (24, 11)


@pytest.mark.parametrize("row", [*FAULTS, *THREATS], ids=lambda row: row.name)
def test_every_row_names_tests_that_exist(row):
    assert_there(row.tests)


@pytest.mark.parametrize("tests", BY_HAND.values(), ids=map(str, BY_HAND))
def test_every_line_of_what_was_broken_by_hand_has_tests_that_decide(tests):
    assert_there(tests)


def assert_there(tests):
    assert tests
    for test in tests:
        file, _, function = test.partition("::")
        tree = ast.parse((ROOT / "tests" / file).read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test


def test_the_page_has_the_rows_of_the_code_with_their_tests():
    written = PAGE.read_text()
    for row in (*FAULTS, *THREATS):
        assert f"| {row.name} | {row.promise} | " in written, "python benchmarks/reliability_table.py"
        assert all(f"`{test}`" in written for test in row.tests)


def test_cases_are_counted_and_what_failed_or_was_not_run_is_said(tmp_path):
    (tmp_path / "r.xml").write_text(RESULTS)
    outcomes = outcomes_of([tmp_path / "r.xml"])
    assert outcomes == {
        "storage/test_s3.py::test_a": [Outcome("passed", ("9 of 9",)), Outcome("failed", ())],
        "test_b.py::test_c": [Outcome("skipped", ())],
    }
    row = Row("x", "y", ("storage/test_s3.py::test_a", "test_b.py::test_c", "test_b.py::test_d"), "z")
    said = "1 of 2 cases held; 1 of its tests not run; 1 skipped; 9 of 9; not shown: z"
    assert today(row, outcomes) == said
    assert today(Row("x", "y", ("test_b.py::test_d",)), outcomes) == "not run"
    assert "0 cases held, 0 failed" in page({}, datetime(2026, 1, 1, tzinfo=UTC))
