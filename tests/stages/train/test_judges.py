"""Which pieces are one call, learned from boxes."""

import numpy as np
import torch

from mast_ray.boxes.batch import Detections
from mast_ray.boxes.pieces import Pieces, pieces_of
from mast_ray.boxes.standing_out import smoothed
from mast_ray.models.baselines.on_host import DB_PER_LOG
from mast_ray.models.baselines.pieces import PiecesDetector
from mast_ray.stages.train.judges import Marked, taught

SYLLABLES = [(40 * place, 40 * place + 20) for place in range(1, 11)]  # frames; 20 of silence between them


def pieces(count: int = 12) -> list[Pieces]:
    return [pieces_of(smoothed(level)) for level in drawn(count)]


def drawn(count: int = 12, first: int = 0) -> list[np.ndarray]:
    """Chunks with ten syllables of one whistle each."""
    chunks = []
    for seed in range(first, first + count):
        level = np.random.default_rng(seed).normal(0.0, 2.0, (512, 64)).astype(np.float32)
        for begin, end in SYLLABLES:
            level[begin:end, 20:30] += 20.0
        chunks.append(level)
    return chunks


def boxes(spans) -> np.ndarray:
    return np.array([(begin, 20, end, 30) for begin, end in spans], np.float32).reshape(-1, 4)


def marked(spans, ignored=()) -> Marked:
    return Marked(boxes(spans), boxes(ignored))


def found_by(detector: PiecesDetector, level: np.ndarray) -> np.ndarray:
    logmel = torch.from_numpy(level / np.float32(DB_PER_LOG))[None, None]
    found: Detections = detector.detect(logmel)
    return found.corners[0][found.is_valid[0] & (found.score[0] > 0.5)].numpy()


def test_syllables_are_calls_where_experts_box_syllables_and_phrases_where_they_box_phrases():
    (unseen,) = drawn(1, first=100)
    apart = found_by(taught(pieces(), [marked(SYLLABLES)] * 12, seed=0), unseen)
    assert len(apart) == 10
    assert np.abs(apart[np.argsort(apart[:, 0])] - boxes(SYLLABLES)).max() <= 3
    phrase = boxes([(SYLLABLES[0][0], SYLLABLES[-1][1])])
    joined = found_by(taught(pieces(), [Marked(phrase, boxes([]))] * 12, seed=0, num_threads=2), unseen)
    assert np.abs(joined[0] - phrase[0]).max() <= 3, "the best is the phrase"
    assert (joined[:, 2] - joined[:, 0]).min() > 150, "and no syllable is a call"


def test_the_same_seed_teaches_the_same_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again = (taught(pieces(4), [marked(SYLLABLES)] * 4, seed=3).state_dict() for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_silence_teaches_nothing_and_is_no_error():
    silence = np.zeros((128, 64), np.float32)
    detector = taught([pieces_of(silence)] * 4, [marked(SYLLABLES[:2])] * 4, seed=0)
    assert not len(found_by(detector, silence))


def test_what_nobody_was_sure_of_is_no_background():
    (unseen,) = drawn(1, first=100)
    half = marked(SYLLABLES[:5], SYLLABLES[5:])
    found = found_by(taught(pieces(), [half] * 12, seed=0), unseen)
    assert np.abs(found[np.argsort(found[:, 0])] - boxes(SYLLABLES)).max() <= 3, "all ten are calls"
