"""Another split of a prepared archive: three small objects are rewritten, the manifest last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from mast_ray.config.errors import DataError
from mast_ray.config.loading import apply_overrides, parse_set
from mast_ray.config.tree import Config
from mast_ray.storage.lease import held_lease
from mast_ray.storage.stage_folders import sections_hash, write_manifest
from mast_ray.storage.storage import open_storage
from mast_ray.tables.backgrounds import stored_backgrounds
from mast_ray.tables.dealing.dealt_before import bring_back, dealt_again, was_stopped
from mast_ray.tables.dealing.splits import BlockRow
from mast_ray.tables.prepared import Prepared, open_prepared
from mast_ray.tables.preparing.finishing import TABLE_KNOBS, SplitSummary, write_split


def as_prepared_but(uri: str, config: Config, sets: Sequence[str]) -> Config:
    """The settings that an archive was prepared with, changed by `sets` alone: sites that are held out stay held out unless
    these say otherwise. Where it lies is as `config` says.
    """
    own = Config.model_validate(_opened(uri, config).manifest.config)
    return apply_overrides(own, parse_set(sets)).model_copy(update={"storage": config.storage})


def resplit(uri: str, config: Config) -> SplitSummary:
    """Deal again with `config.split` and `config.seed`; everything else stays as it was prepared."""
    prepared = _opened(uri, config)
    if prepared.members:
        own = ", ".join(member.storage.url for member in prepared.members)
        raise DataError(
            f"{uri} stands for several archives, each with its own splits:\ndeal these instead: {own}"
        )
    as_prepared = Config.model_validate(prepared.manifest.config)
    changed = as_prepared.model_copy(update={"split": config.split, "seed": config.seed})
    tables = (prepared.recordings, prepared.index, stored_backgrounds(prepared))
    with held_lease(prepared.storage), dealt_again(prepared.storage):
        summary = write_split(prepared.storage, changed, *tables)
        _write(prepared, changed, dict(prepared.manifest.counts) | {"chunks_by_split": summary.chunks})
    return summary


def deal_as(uri: str, rows: list[BlockRow], config: Config) -> SplitSummary:
    """Deal as somebody else has decided: `rows` are what splits.parquet is to hold."""
    prepared = open_prepared(uri, config.storage)
    tables = (prepared.recordings, prepared.index, stored_backgrounds(prepared))
    as_prepared = Config.model_validate(prepared.manifest.config)
    with held_lease(prepared.storage), dealt_again(prepared.storage):
        summary = write_split(prepared.storage, as_prepared, *tables, dealt=rows)
        _write(prepared, as_prepared, dict(prepared.manifest.counts) | {"chunks_by_split": summary.chunks})
    return summary


def _opened(uri: str, config: Config) -> Prepared:
    """As it was dealt before, where dealing it again was cut short."""
    storage = open_storage(uri, config.storage)
    if was_stopped(storage):
        with held_lease(storage):
            bring_back(storage)
    return open_prepared(storage, config.storage)


def _write(prepared: Prepared, config: Config, counts: Mapping[str, Any]) -> None:
    key = sections_hash(config, *TABLE_KNOBS)
    write_manifest(
        prepared.storage, "prepare", config, key, prepared.manifest.inputs, counts, datetime.now(UTC)
    )
