"""What the page reads off a heat map are the numbers behind it."""

import html
import json
import re
from datetime import date

import numpy as np
import pytest

from mast_ray.reporting.activity import DielMap
from mast_ray.reporting.report.calendars import diel_heat_map


@pytest.mark.parametrize(("seconds", "per_hour"), [(60.0, 180.0), (10.0, 1080.0), (3600.0, 3.0)])
def test_the_rate_of_a_cell_is_that_of_its_calls_also_where_seconds_were_recorded(seconds, per_hour):
    """Hours had two digits: three calls in a minute were 150 per hour, and ten seconds were nothing recorded."""
    calls, effort_s = np.zeros((1, 24), np.int64), np.zeros((1, 24))
    calls[0, 5], effort_s[0, 5] = 3, seconds
    drawn = str(diel_heat_map(DielMap("A", date(2024, 5, 6), calls, effort_s)))
    cells = json.loads(html.unescape(re.search(r'data-cells="([^"]*)"', drawn)[1]))
    assert cells["calls"][5] / cells["effort"][5] == pytest.approx(per_hour, rel=1e-3)
