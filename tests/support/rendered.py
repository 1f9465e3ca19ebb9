"""Synthetic recordings in memory."""

import numpy as np

from mast_ray.soundscapes.calls import Waveform
from mast_ray.soundscapes.plan import RecordingPlan
from mast_ray.soundscapes.render import Event, render_blocks


def render_recording(plan: RecordingPlan) -> tuple[Waveform, list[Event]]:
    """The whole recording: mono float32 in [-1, 1], and its events in order of time."""
    blocks = list(render_blocks(plan))
    events = sorted(event for _, block_events in blocks for event in block_events)
    return np.concatenate([wave for wave, _ in blocks]), events
