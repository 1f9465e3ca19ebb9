"""docs/scaling.md shows what benchmarks/paper_schedule.py computes, and the arithmetic is the stated one."""

from pathlib import Path

import pytest
from paper_schedule import Assumed, Measured, schedule, step_time, tables

REPOSITORY = Path(__file__).resolve().parent.parent


def test_the_tables_of_the_document_are_those_of_the_script():
    text = (REPOSITORY / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert [table for table in tables() if table not in text] == []


def test_a_step_of_one_node_is_its_compute_and_of_many_small_ones_the_exchange_shows():
    assumed = Assumed(parameters=1e9, nvlink_gb_per_s=100.0, network_gb_per_s=10.0, shortest_step_s=0.1)
    one = step_time(8 * 256, 8, 1000.0, assumed)
    assert one.compute_s == pytest.approx(256 / 400)  # 0.4 of an H200
    assert one.exchange_s == pytest.approx(8 * 7 / 8 / 100) and one.exposed_s == 0.0
    two = step_time(16, 16, 1000.0, assumed)  # a chunk each, on two nodes
    assert (two.per_gpu, two.compute_s) == (1.0, 0.1)
    assert two.exchange_s == pytest.approx(8 * 7 / 8 / 100 + 8 / 2 / 10)
    assert two.seconds == pytest.approx(0.1 + two.exchange_s - 0.1 * 2 / 3)


def test_gpus_beyond_the_printed_batch_change_nothing():
    assert (
        schedule(64, 0, Measured(), Assumed())["pretrain"]
        == schedule(256, 0, Measured(), Assumed())["pretrain"]
    )


def test_hours_of_a_full_batch_are_chunks_over_rate():
    hours = schedule(8, 256, Measured(), Assumed())["pretrain"]
    assert hours == pytest.approx(400 * 481_245 / (2052.5 * 0.4 * 8) / 3600, rel=0.01)
