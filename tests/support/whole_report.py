"""A report with every section filled, from plain values; `text` stands in every field that holds text."""

from dataclasses import replace
from datetime import date

import numpy as np

from mast_ray.reporting.activity import DielMap
from mast_ray.reporting.report.charts import Series
from mast_ray.reporting.report.contents import (
    Box,
    Effort,
    Example,
    Histogram,
    Interval,
    Neighbour,
    RejectReason,
    Reliability,
    ReportData,
    ResultTable,
    ThresholdCurve,
    Trials,
)

PIXEL = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw=="


def example(text: str, image_uri: str = PIXEL, audio_uri: str = "", kind: str = "false_alarm") -> Example:
    boxes = (
        Box("truth", 1.0, 2.0, 800.0, 1600.0, None, text, f"label-{text}", "miss"),
        Box("prediction", 2.5, 3.0, 2000.0, 4000.0, 0.8, text, f"id-{text}", "false_alarm"),
    )
    neighbour = Neighbour(text, 1.0, 2.0, 0.9, text)
    return Example(kind, text, text, 0.0, 5.0, boxes, 1, image_uri, audio_uri, text, (neighbour,))  # type: ignore[arg-type]


def whole_report(text: str) -> ReportData:
    table = ResultTable(text, (text, "F1"), ((text, Interval(0.5, 0.4, 0.6)), (text, None)), text)
    series = Series(text, (0.0, 1.0, 2.0), (0.1, 0.5, 0.7), (0.0, 0.4, 0.6), (0.2, 0.6, 0.8))
    calls = np.zeros((3, 24), np.int64)
    calls[0, 5:8] = 3
    effort_s = np.zeros((3, 24))
    effort_s[0, 4:9] = 1800.0
    diel = DielMap(text, date(2024, 5, 6), calls, effort_s, (5.0,) * 3, (18.0,) * 3, text)
    return ReportData(
        title=text,
        summary=text,
        made_at=text,
        facts=((text, text),),
        stages=table,
        effort=Effort(3, 2, 1, 1, 1.5, 2.0, (RejectReason(text, text, 1, 0.0),), ((text, text, text),), 1),
        headline=((text, text), (text, Interval(0.5, 0.4, 0.6)), (text, 12)),
        tables=(table, table),
        curves=(
            ThresholdCurve(text, (0.1, 0.5, 0.9), (0.5, 0.7, 0.9), (0.9, 0.7, 0.3), (0.6, 0.7, 0.4), 0.6),
        ),
        threshold=0.5,
        overlap=Histogram((0.5, 0.75, 1.0), (3, 4)),
        reliability=(Reliability(text, (0.2, 0.8), (0.1, 0.9), (5, 5), 0.1),) * 2,
        scores=Histogram((0.0, 0.5, 1.0), (10, 20)),
        analysed_hours_of_scores=2.0,
        rounds=table,
        round_curves=(series, series),
        label_budget=(series, series),
        label_budget_metric=text,
        trials=Trials((text, "q", "F1"), ((text, 0.1, 0.5), ("b", 0.2, 0.6)), "F1", "q"),
        sites=table,
        diel=(diel, diel, diel),
        examples=(example(text), replace(example(text), kind="miss", focus=0)),
        examples_note=text,
        warnings=(text,),
    )
