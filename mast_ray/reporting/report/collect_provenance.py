"""What was run on what: hashes, versions, dates and clocks, hours analysed, files rejected and why."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mast_ray.reporting.activity import clock_name, local_start_s
from mast_ray.reporting.report.collect_studies import flat
from mast_ray.reporting.report.contents import Effort, RejectReason, ResultTable
from mast_ray.storage.stage_folders import text_hash
from mast_ray.training.files.origins import licences_of, origins_text, parse_origins

MOST_REJECTS = 200

Trees = dict[str, dict[str, Any]]  # folder -> manifest or card


def effort_of(recordings: pa.Table | None, rejects: pa.Table | None) -> Effort | None:
    """Offered = analysed + rejected; a salvaged recording is analysed, and listed with what was lost."""
    if recordings is None:
        return None
    rows = rejects.to_pylist() if rejects is not None else []
    rejected = [r for r in rows if r["status"] != "salvaged"]
    hours = float(pc.sum(recordings.column("duration_s")).as_py() or 0.0) / 3600
    by_reason: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_reason.setdefault(row["reason"], []).append(row)
    reasons = tuple(
        RejectReason(
            reason, own[0]["detail"] or "", len(own), sum(r["readable_s"] or 0.0 for r in own) / 3600
        )
        for reason, own in sorted(by_reason.items(), key=lambda item: -len(item[1]))
    )
    return Effort(
        num_offered=len(recordings) + len(rejected),
        num_analysed=len(recordings),
        num_rejected=len(rejected),
        num_salvaged=len(rows) - len(rejected),
        hours_analysed=hours,
        hours_offered=hours if not rows else None,
        reasons=reasons,
        rejected_files=tuple((r["path"] or "", r["reason"], r["detail"] or "") for r in rows[:MOST_REJECTS]),
        num_rejected_shown=len(rows),
    )


def clock_warnings(recordings: pa.Table) -> list[str]:
    undated = int(np.isnan(local_start_s(recordings)).sum())
    flags = Counter(
        f for text in recordings.column("time_flags").to_pylist() if text for f in text.split(",")
    )
    out = [
        f"{undated} of {len(recordings)} recordings have no known start time: they are in no hour and date."
    ] * bool(undated)
    return out + [
        f"{count} recordings carry the clock flag {flag}: check their times."
        for flag, count in flags.most_common(4)
    ]


def facts_of(
    manifests: Trees,
    cards: Trees,
    recordings: pa.Table | None,
    detections: pa.Table | None,
    threshold: float | None,
) -> tuple[tuple[str, str], ...]:
    """Name and value of everything that names the run: models, data, dates, zones, code, config, packages."""
    facts: list[tuple[str, str]] = []
    licences: dict[str, str] = {}
    for folder, card in cards.items():
        sha = str(card.get("weights_sha256", ""))[:16]
        name = f"{card.get('kind', 'model')} {folder or ''}".strip()
        began_with = None
        with suppress(TypeError, ValueError):  # a card that was written by hand is shown as far as it goes
            began_with = parse_origins(card.get("began_with"))
        began = origins_text(began_with)
        facts.append((name, f"weights {sha}, data {card.get('data_hash') or '–'}, {began}"))
        licences |= licences_of(name, str(card.get("licence") or ""), began_with)
    facts += [(f"licence of {whose}", text) for whose, text in licences.items()]
    if detections is not None:
        shas = [s for s in pc.unique(detections.column("model_sha")).to_pylist() if s]
        facts.append(("model of the detections", ", ".join(s[:16] for s in shas[:4]) or "–"))
    if threshold is not None:
        facts.append(("score threshold", f"{threshold:.3f}"))
    if recordings is not None and len(recordings):
        known = recordings.column("start_utc").drop_null()
        if len(known):
            ends = pc.min_max(known).as_py()
            facts.append(("dates (UTC)", f"{ends['min']:%Y-%m-%d %H:%M} to {ends['max']:%Y-%m-%d %H:%M}"))
        offsets = sorted(set(recordings.column("utc_offset_s").drop_null().to_pylist()))
        shown = ", ".join(f"UTC{o / 3600:+g}" for o in offsets[:6]) or "unknown"
        sources = Counter(s for s in recordings.column("time_source").to_pylist() if s)
        facts.append(("time zone", f"{shown} ({clock_name(recordings)})"))
        facts.append(
            (
                "times come from",
                ", ".join(f"{name} ({count})" for name, count in sources.most_common()) or "–",
            )
        )
        rates = Counter(recordings.column("sample_rate_hz").drop_null().to_pylist())
        facts.append(
            ("sample rates", ", ".join(f"{r / 1000:g} kHz ({n})" for r, n in rates.most_common(5)) or "–")
        )
    newest = max(manifests.values(), key=lambda m: str(m.get("finished_utc", "")), default={})
    facts += [("code version", str(newest.get("code", "–")))] if newest else []
    config = newest.get("config") or {}
    if config:
        facts.append(
            ("config", f"{config.get('recipe', '')} {text_hash(json.dumps(config, sort_keys=True))}".strip())
        )
    facts += [(name, str(version)) for name, version in (newest.get("packages") or {}).items()]
    return tuple(facts)


def stages_table(manifests: Trees) -> ResultTable | None:
    if not manifests:
        return None
    rows = []
    for folder, m in sorted(manifests.items(), key=lambda item: str(item[1].get("finished_utc", ""))):
        counts = ", ".join(
            f"{k.replace('_', ' ')} {v:,}"
            for k, v in flat(m.get("counts") or {}).items()
            if isinstance(v, int)
        )
        inputs = ", ".join(f"{k} {str(v)[:12]}" for k, v in (m.get("inputs") or {}).items())
        rows.append(
            (
                str(m.get("stage", "?")),
                folder or ".",
                str(m.get("finished_utc", ""))[:19],
                str(m.get("key", "")),
                inputs,
                counts,
            )
        )
    return ResultTable(
        "Stages",
        ("stage", "folder", "finished (UTC)", "config hash", "inputs by hash", "counts"),
        tuple(rows),
    )
