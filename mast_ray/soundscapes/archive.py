"""Writes a synthetic archive: audio, Raven tables of what is annotated, and the truth about everything.

    audio/SITE01/SITE01_20240506_053000.wav   annotations/SITE01_20240506_053000.Table.1.selections.txt
    recordings.csv  sites.csv  truth.csv  spec.json

Files appear whole or not at all. Running it again skips what is there; the events of each rendered recording wait in
`.events/` until all are done, because truth.csv is written last.
"""

from __future__ import annotations

import csv
import dataclasses
import errno
import glob
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import soundfile

from mast_ray.config.errors import DataError
from mast_ray.recordings.annotations.model import Annotation, AnnotationSet
from mast_ray.recordings.annotations.writing import annotations_as_text
from mast_ray.soundscapes.call_store import use_call_store, write_call_store
from mast_ray.soundscapes.clips import isolated_calls, read_clips
from mast_ray.soundscapes.damage import DAMAGE_BEGUN
from mast_ray.soundscapes.render import Event, RecordingPlan, SoundscapeSpec, plan_archive, render_blocks
from mast_ray.soundscapes.sites import draw_site
from mast_ray.storage.spread import process_pool

TRUTH_COLUMNS = ("path", *Event._fields)
_CALLS = ".calls"


@dataclass(frozen=True)
class ArchiveSummary:
    """What an archive holds after a call of write_archive."""

    out_dir: Path
    num_written: int
    num_skipped: int  # were there already
    hours_by_site: dict[str, float]
    events_by_site: dict[str, int]
    hours_by_role: dict[str, float]
    events_by_role: dict[str, int]


def write_archive(
    spec: SoundscapeSpec,
    out_dir: Path | str,
    progress: Callable[[int, int], None] = lambda done, total: None,
    num_processes: int = 1,
) -> ArchiveSummary:
    """Render every recording of `spec` that is not yet in `out_dir`;
    `progress(done, total)` counts recordings.
    """
    out = Path(out_dir)
    _claim(spec, out)
    plans = plan_archive(spec)
    known = _known_events(out)
    damaged = {row["path"] for row in read_rows(out / "damaged.csv")}
    half_damaged = {row["path"] for row in read_rows(out / DAMAGE_BEGUN)}  # by a run that was interrupted
    todo = [
        plan
        for plan in plans
        if plan.path in half_damaged or not _is_there(plan, out, plan.path in known, plan.path in damaged)
    ]
    done = len(plans) - len(todo)
    progress(done, len(plans))
    for _ in _rendered(todo, out, num_processes):
        done += 1
        progress(done, len(plans))
    (out / DAMAGE_BEGUN).unlink(missing_ok=True)
    known |= _known_events(out)
    _write_rows(
        out / "truth.csv",
        TRUTH_COLUMNS,
        ((plan.path, *event) for plan in plans for event in known[plan.path]),
    )
    _write_rows(
        out / "recordings.csv",
        ("path", "site", "start_time", "is_annotated", "role", "duration_s"),
        (
            (
                p.path,
                p.site_name,
                p.start_time.isoformat(),
                str(p.is_annotated).lower(),
                p.role,
                spec.recording_s,
            )
            for p in plans
        ),
    )
    sites = [draw_site(spec, index) for index in range(spec.num_sites)]
    _write_rows(
        out / "sites.csv",
        ("site", "latitude", "longitude", "timezone"),
        ((s.name, round(s.latitude, 5), round(s.longitude, 5), spec.timezone) for s in sites),
    )
    for folder in (".events", _CALLS):
        shutil.rmtree(out / folder, ignore_errors=True)
    for plan in todo:  # what a run that was killed had begun
        target = out / plan.path
        for begun in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):
            begun.unlink(missing_ok=True)
    return _summary(out, plans, known, num_written=len(todo))


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV table; none when there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _claim(spec: SoundscapeSpec, out: Path) -> None:
    """Write spec.json, or see that the one there is the same: two archives in one folder would mix."""
    text = json.dumps(dataclasses.asdict(spec), indent=1) + "\n"
    path = out / "spec.json"
    if path.exists():
        # knobs that came later had their defaults then
        there = json.loads(json.dumps(dataclasses.asdict(SoundscapeSpec()))) | json.loads(path.read_text())
        if there != json.loads(text):
            raise DataError(
                f"{out} holds a synthetic archive made with other settings (see its spec.json):\n"
                "choose another --out, or delete that folder"
            )
        return
    # a run that was stopped while it wrote spec.json has left no more than that
    if out.exists() and any(entry.name != _partial(path).name for entry in out.iterdir()):
        raise DataError(f"{out} is not empty and holds no synthetic archive:\nchoose another --out")
    out.mkdir(parents=True, exist_ok=True)
    _write_text(path, text)


def _rendered(plans: list[RecordingPlan], out: Path, num_processes: int) -> Iterator[None]:
    """Render all plans, in this process or in several; bytes do not depend on how many."""
    if num_processes <= 1 or len(plans) < 2:
        for plan in plans:
            write_recording(plan, out)
            yield
        return
    with process_pool(min(num_processes, len(plans))) as pool:
        store = _cut_calls(plans[0].spec.clips_dir, out, pool)
        chunk = max(1, min(4, len(plans) // (4 * num_processes)))
        yield from pool.map(partial(_write_with, store, out), plans, chunksize=chunk)


def _cut_calls(clips_dir: str | None, out: Path, pool: ProcessPoolExecutor) -> str:
    """Cut the calls of all clips into a store beside the archive; no store without clips."""
    if clips_dir is None:
        return ""
    paths = sorted({clip.path for clip in read_clips(clips_dir)})
    write_call_store(out / _CALLS, paths, list(pool.map(isolated_calls, paths, chunksize=16)))
    return str(out / _CALLS)


def _write_with(store: str, out: Path, plan: RecordingPlan) -> None:
    if store:
        use_call_store(store)
    write_recording(plan, out)


def write_recording(plan: RecordingPlan, out: Path) -> None:
    """One recording with its Raven table (when annotated) and its events; audio
    comes last and marks it done.
    """
    target = out / plan.path
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    events: list[Event] = []
    try:
        with soundfile.SoundFile(
            partial, "w", plan.sample_rate_hz, 1, "PCM_16", format=plan.spec.audio_format.upper()
        ) as file:
            for wave, block_events in render_blocks(plan):
                file.write(wave)
                events += block_events
        events.sort()
        _write_text(
            out / ".events" / f"{target.stem}.json", json.dumps({"path": plan.path, "events": events})
        )
        if plan.is_annotated:
            table = out / "annotations" / f"{target.stem}.Table.1.selections.txt"
            _write_text(table, _raven_table(plan, events))
        if target.is_dir():  # put there as damage
            target.rmdir()
        os.replace(partial, target)
    except soundfile.LibsndfileError as error:  # which does not say what the disk said
        is_full = shutil.disk_usage(target.parent).free < 2 * plan.num_samples
        number = errno.ENOSPC if is_full else errno.EIO
        raise OSError(number, os.strerror(number), str(target)) from error
    finally:
        partial.unlink(missing_ok=True)


def _raven_table(plan: RecordingPlan, events: list[Event]) -> str:
    """A Raven selection table; one without rows says that an expert listened and heard nothing."""
    name = Path(plan.path).name
    annotations = tuple(
        Annotation(plan.path, e.begin_s, e.end_s, e.low_hz, e.high_hz, e.label, extra={"Begin File": name})
        for e in events
    )
    return annotations_as_text(AnnotationSet(annotations, frozenset((plan.path,))), "raven")


def _known_events(out: Path) -> dict[str, list[Event]]:
    """Events of every recording rendered so far, by path."""
    known: dict[str, list[Event]] = {}
    if (out / "truth.csv").exists():
        known = {row["path"]: [] for row in read_rows(out / "recordings.csv")}
        for row in read_rows(out / "truth.csv"):
            begin_s, end_s, low_hz, high_hz, snr_db = (
                float(row[name]) for name in ("begin_s", "end_s", "low_hz", "high_hz", "snr_db")
            )
            own = known.setdefault(row["path"], [])  # a run that was stopped here has no recordings.csv yet
            own.append(Event(begin_s, end_s, low_hz, high_hz, row["label"], snr_db))
    for path in sorted((out / ".events").glob("*.json")):
        entry = json.loads(path.read_text())
        known[entry["path"]] = [Event(*event) for event in entry["events"]]
    return known


def _is_there(plan: RecordingPlan, out: Path, has_events: bool, is_damaged: bool) -> bool:
    """Whether a recording was written before and still has its size (or was damaged on purpose)."""
    if is_damaged:
        return has_events
    target = out / plan.path
    if not has_events or not target.is_file():
        return False
    if plan.spec.audio_format == "wav":
        return target.stat().st_size == 44 + 2 * plan.num_samples
    return soundfile.info(target).frames == plan.num_samples


def _summary(
    out: Path, plans: list[RecordingPlan], known: dict[str, list[Event]], num_written: int
) -> ArchiveSummary:
    hours: dict[str, float] = {}
    events: dict[str, int] = {}
    role_hours: dict[str, float] = {}
    role_events: dict[str, int] = {}
    for plan in plans:
        recording_h, num_events = plan.spec.recording_s / 3600.0, len(known[plan.path])
        hours[plan.site_name] = hours.get(plan.site_name, 0.0) + recording_h
        events[plan.site_name] = events.get(plan.site_name, 0) + num_events
        role_hours[plan.role] = role_hours.get(plan.role, 0.0) + recording_h
        role_events[plan.role] = role_events.get(plan.role, 0) + num_events
    return ArchiveSummary(out, num_written, len(plans) - num_written, hours, events, role_hours, role_events)


def _write_rows(path: Path, columns: Iterable[str], rows: Iterable[tuple[object, ...]]) -> None:
    partial = _partial(path)
    with partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
    os.replace(partial, path)


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def _partial(path: Path) -> Path:
    """Where a file lies until it is whole."""
    return path.with_name(f".{path.name}.tmp")
