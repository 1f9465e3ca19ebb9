"""What counts as one sound, learned from boxes."""

import numpy as np
import pytest

from mast_ray.boxes.standing_out import StandOut, standing_out
from mast_ray.stages.train.energy_fit import best_f1, fitted

SYLLABLES = [(40 * place, 40 * place + 20) for place in range(1, 11)]  # frames; 20 of silence between them


def drawn(count: int = 8) -> list[np.ndarray]:
    """Chunks with ten syllables of one whistle each."""
    chunks = []
    for seed in range(count):
        level = np.random.default_rng(seed).normal(0.0, 2.0, (512, 64)).astype(np.float32)
        for begin, end in SYLLABLES:
            level[begin:end, 20:30] += 20.0
        chunks.append(level)
    return chunks


def boxes(spans) -> np.ndarray:
    return np.array([(begin, 20, end, 30) for begin, end in spans], np.float32)


def test_syllables_are_calls_where_experts_box_syllables_and_phrases_where_they_box_phrases():
    chunks = drawn()
    start = StandOut(gap_frames=50)
    apart = fitted(chunks, [boxes(SYLLABLES)] * len(chunks), start)
    assert apart.settings.gap_frames < 20 and apart.f1 > 0.95 and apart.f1_before < 0.1
    assert apart.num_boxes == 10 * len(chunks)
    phrase = boxes([(SYLLABLES[0][0], SYLLABLES[-1][1])])
    joined = fitted([*chunks, *drawn(24)[8:]], [phrase] * 24, StandOut(gap_frames=4), num_threads=2)
    assert joined.settings.gap_frames > 20 and joined.f1 == pytest.approx(1.0)


def test_what_suits_stays_and_too_few_boxes_change_nothing():
    chunks = drawn()
    suits = StandOut(gap_frames=8)
    assert fitted(chunks, [boxes(SYLLABLES)] * len(chunks), suits).settings == suits
    few = fitted(chunks[:1], [boxes(SYLLABLES)], StandOut(gap_frames=50))
    assert few.settings.gap_frames == 50 and few.num_boxes == 10


def test_no_sound_at_all_is_no_error():
    silence = [np.zeros((128, 64), np.float32)] * 4
    truths = [boxes(SYLLABLES[:2])] * 2 + [np.zeros((0, 4), np.float32)] * 2
    assert best_f1([standing_out(chunk) for chunk in silence], truths) == 0.0
    assert fitted(silence, [boxes(SYLLABLES)] * 4, StandOut()).f1 == 0.0
