"""Augmentation inside a training run: draws by place in the global batch, and banks of backgrounds.

A bank is a few hundred chunks without calls on the device: of the labelled material, or of the pool's sites.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

import numpy as np
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor

from mast_ray.boxes.batch import ChunkBatch
from mast_ray.spectrogram.augmentation import AugmentStrength, Draws, augment, draw_augmentation
from mast_ray.spectrogram.chunking import Tail
from mast_ray.spectrogram.grid import CHUNK_FRAMES, SEGMENT_FRAMES
from mast_ray.spectrogram.loudness import loudness
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.tables.prepared import Prepared
from mast_ray.tables.reading.chunk_sets import ChunkSet, box_table, chunks_of_split, pair_keys
from mast_ray.tables.reading.reader import ChunkReader
from mast_ray.training.data.feed import batch_of

log = logging.getLogger("mast.training")

NOISE_BANK_CHUNKS = 64
POOL_BANK_CHUNKS = 512  # 128 MiB in half precision
CANDIDATES_PER_CHUNK = 4  # the quietest quarter of what is looked at is kept, site by site
LEAST_FRAMES = CHUNK_FRAMES * 3 // 4  # of audio in a background; clips of 10 s are a little less than a chunk
QUIET = 0.02  # share of cells that stand out; a site whose quietest chunks have more lends none
RUN_CHUNKS = 16  # candidates are looked for in runs of neighbours: a read delivers many chunks


class StepAugmentation:
    """Augments what a worker holds with the draws that its chunks have in the global batch of the step.

    All workers draw for the whole batch from the same generator and take their rows, so a chunk is
    changed in the same way whoever holds it. Mixup and CutMix (off by default), and the statistics of
    others where there is no bank to take them from, pair neighbours on a worker and do depend on how chunks
    were dealt out.
    """

    def __init__(
        self,
        strength: AugmentStrength,
        probability: float,
        normalisation: Normalisation,
        *,
        batch_size: int,
        seed: int,
        device: torch.device,
        noise_bank: Tensor | None = None,
        hidden_boxes: Literal["ignore", "remove"] = "ignore",
    ) -> None:
        self.strength, self.probability, self.normalisation = strength, probability, normalisation
        self.batch_size, self.seed, self.noise_bank, self.hidden_boxes = (
            batch_size,
            seed,
            noise_bank,
            hidden_boxes,
        )
        self._generator = torch.Generator(device)

    def __call__(self, batch: ChunkBatch, step: int, rows: Tensor) -> ChunkBatch:
        self._generator.manual_seed((self.seed * 1_000_003 + step) * 2 + 1)
        one = batch.logmel[:1]
        like_global = ChunkBatch(one.expand(self.batch_size, *one.shape[1:]), batch.boxes, batch.weight)
        bank_size = 0 if self.noise_bank is None else len(self.noise_bank)
        draws = draw_augmentation(like_global, self.strength, self.probability, self._generator, bank_size)
        return augment(
            batch,
            rows_of_draws(draws, rows),
            self.strength,
            self.normalisation,
            self.noise_bank,
            self.hidden_boxes,
        )


def rows_of_draws(draws: Draws, rows: Tensor) -> Draws:
    """The draws of some rows of a batch."""
    take = lambda value: None if value is None else value[rows]  # noqa: E731
    mixing = None if draws.mixing is None else type(draws.mixing)(*map(take, draws.mixing))
    others = {name: take(getattr(draws, name)) for name in draws._fields if name != "mixing"}
    return draws._replace(**others, mixing=mixing)


def background_bank(
    prepared: Prepared,
    quiet: Callable[[], ChunkSet],
    source: Literal["labelled", "pool"],
    normalisation: Normalisation,
    tail: Tail,
    device: torch.device,
    seed: int,
) -> Tensor | None:
    """(K, T, F) backgrounds for a run: labelled chunks without a call (`quiet`), or quiet chunks of the pool."""
    if source == "labelled":
        return noise_bank(prepared, quiet(), normalisation, tail, device, seed)
    return pool_bank(prepared, normalisation, tail, device, seed)


def noise_bank(
    prepared: Prepared,
    quiet: ChunkSet,
    normalisation: Normalisation,
    tail: Tail,
    device: torch.device,
    seed: int,
) -> Tensor | None:
    """(K, T, F) normalised chunks, at most 64 of the `quiet` ones; None (said in
    the log) when there are none.
    """
    if not len(quiet):
        log.info("no training chunk is free of calls: background mixing is off")
        return None
    chosen = np.sort(np.random.default_rng(seed).permutation(len(quiet))[:NOISE_BANK_CHUNKS])
    reader = ChunkReader(prepared, quiet.take(chosen), batch_size=NOISE_BANK_CHUNKS, num_threads=2)
    parts = [batch_of(raw.to(device), normalisation, tail).logmel.squeeze(1) for raw in reader.sequential()]
    return torch.cat(parts)


def pool_bank(
    prepared: Prepared, normalisation: Normalisation, tail: Tail, device: torch.device, seed: int
) -> Tensor | None:
    """(K, T, F) normalised quiet chunks in half precision, at most 512, from all sites of the pool alike.

    Quiet is a chunk without a label in which the least stands out of its own background: of the chunks looked
    at, the quietest quarter of every site is kept. None (said in the log) when the pool has no chunk for it.
    """
    candidates = _candidates(prepared, seed)
    if not len(candidates):
        log.info("the pool has no unlabelled chunk: background mixing is off")
        return None
    reader = ChunkReader(prepared, candidates, batch_size=64, num_threads=2, cache_bytes=0)
    loud = torch.cat(
        [
            loudness(batch_of(raw.to(device), normalisation, tail).logmel.squeeze(1), normalisation)
            for raw in reader.sequential()
        ]
    )
    site = sites_of(prepared, reader.chunks)
    chosen = quietest(loud.cpu().numpy(), site)
    kept = ChunkReader(prepared, reader.chunks.take(chosen), batch_size=64, num_threads=2, cache_bytes=0)
    parts = [
        batch_of(raw.to(device), normalisation, tail).logmel.squeeze(1).half() for raw in kept.sequential()
    ]
    log.info("backgrounds: %d quiet chunks of %d sites of the pool", len(chosen), len(np.unique(site)))
    return torch.cat(parts)


def quietest(loud: NDArray[np.floating], site: NDArray[np.integer]) -> NDArray[np.int64]:
    """Rows of the quietest quarter of every site, one at least; of them those that are quiet, if any is."""
    chosen = []
    for name in np.unique(site):
        own = np.flatnonzero(site == name)
        count = max(1, len(own) // CANDIDATES_PER_CHUNK)
        chosen.append(own[np.argsort(loud[own], kind="stable")[:count]])
    rows = np.sort(np.concatenate(chosen))
    is_quiet = loud[rows] <= QUIET
    return rows[is_quiet] if is_quiet.any() else rows


def sites_of(prepared: Prepared, chunks: ChunkSet) -> NDArray[np.int64]:
    """A number for the site of every chunk."""
    names = pc.fill_null(prepared.recordings.column("site"), "").combine_chunks().dictionary_encode()
    return names.indices.to_numpy().astype(np.int64)[chunks.recording]


def _candidates(prepared: Prepared, seed: int) -> ChunkSet:
    """Chunks of the pool without a label, every second of runs of neighbours, as many of every site."""
    pool = chunks_of_split(prepared, "pool")
    num_frames = prepared.num_frames[pool.recording] - pool.chunk.astype(np.int64) * SEGMENT_FRAMES
    pool = pool.take((num_frames >= LEAST_FRAMES) & (pool.chunk % 2 == 0))
    pool = pool.take(box_table(prepared, pool, prepared.labels).counts() == 0)
    if not len(pool):
        return pool
    run = pair_keys(pool.recording, pool.chunk // RUN_CHUNKS)
    rank = np.random.default_rng([seed, 29]).permutation(len(run))
    _, first, of_run = np.unique(run, return_index=True, return_inverse=True)
    order = np.lexsort((pool.chunk, rank[first][of_run]))  # runs at random, whole
    site = sites_of(prepared, pool)[order]
    places, num_sites = np.zeros(len(order), np.int64), len(np.unique(site))
    for name in np.unique(site):
        own = np.flatnonzero(site == name)
        places[own] = np.arange(len(own))
    wanted = max(CANDIDATES_PER_CHUNK, CANDIDATES_PER_CHUNK * POOL_BANK_CHUNKS // num_sites)
    return pool.take(np.sort(order[places < wanted]))
