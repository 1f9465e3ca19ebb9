"""The Arrow schemas that stages hand to each other. Times in seconds or UTC, frequencies in hertz.

Their version (`SCHEMA_VERSION`) stands in every manifest: storage/stage_folders.py.
"""

from __future__ import annotations

import pyarrow as pa

from mast_ray.spectrogram.grid import NUM_BINS, SEGMENT_FRAMES

# in the metadata of a file of detections whose folder cannot hold the name of its site
SITE_KEY = b"mast.site"

RECORDINGS = pa.schema(
    [
        (
            "recording_id",
            pa.string(),
        ),  # sha1(relative path, size), 16 hex digits: the same for a copy of the archive
        ("path", pa.string()),  # relative to the archive root, forward slashes
        ("site", pa.string()),  # "" when unknown
        ("start_utc", pa.timestamp("us", tz="UTC")),  # null when unknown
        ("utc_offset_s", pa.int32()),  # local time = start_utc + offset; null when unknown
        ("start_local", pa.timestamp("us")),  # the recorder's own clock; also where its zone is unknown
        ("time_source", pa.string()),  # table, guano, header, filename, none
        ("time_flags", pa.string()),  # comma-separated: clock_reset, dst_ambiguous, ...
        ("latitude", pa.float64()),
        ("longitude", pa.float64()),
        ("duration_s", pa.float64()),  # readable seconds
        ("sample_rate_hz", pa.int32()),  # of the original file
        ("num_channels", pa.int16()),
        ("num_bytes", pa.int64()),
        ("num_frames", pa.int32()),  # valid log-mel frames
        ("num_chunks", pa.int32()),
        ("is_annotated", pa.bool_()),  # an expert has gone through it (it may still hold no event)
        ("is_salvaged", pa.bool_()),  # only a readable part was kept
        ("fingerprint", pa.string()),  # of the audio content: equal for the same audio under two names
        ("group", pa.string()),  # recordings that no split may part, by the user's table; "" for none
    ]
)

LABELS = pa.schema(
    [
        ("recording_id", pa.string()),
        ("begin_s", pa.float64()),
        ("end_s", pa.float64()),
        ("low_hz", pa.float64()),  # null: time-only label
        ("high_hz", pa.float64()),
        ("label", pa.string()),  # sonotype or species; "" when none
        ("score", pa.float32()),  # 1 for expert labels, detector score for pseudo-labels
        ("source", pa.string()),  # file it came from, or model hash, policy and round of a pseudo-label
    ]
)

IGNORED = pa.schema(
    [
        ("recording_id", pa.string()),
        ("begin_s", pa.float64()),
        ("end_s", pa.float64()),
        ("low_hz", pa.float64()),  # null: the whole band
        ("high_hz", pa.float64()),
        ("label", pa.string()),
        ("why", pa.string()),  # uncertain, or not_gone_through
    ]
)

REJECTS = pa.schema(
    [
        ("path", pa.string()),
        ("recording_id", pa.string()),
        ("status", pa.string()),  # rejected | salvaged
        ("reason", pa.string()),  # stable upper-case code, e.g. TRUNCATED
        ("detail", pa.string()),  # one sentence for a person
        ("num_bytes", pa.int64()),
        ("readable_s", pa.float64()),
    ]
)

SPLITS = pa.schema(
    [
        ("recording_id", pa.string()),
        ("begin_s", pa.float64()),  # block of the recording; 0 and duration for a whole one
        ("end_s", pa.float64()),
        ("split", pa.string()),  # train, val, test, temporal_ood, site_ood, ood_dev, or "" (unlabelled)
        ("in_pool", pa.bool_()),  # may be used for pretraining, normalisation and pseudo-labels
    ]
)

DETECTIONS = pa.schema(
    [
        ("recording_id", pa.string()),
        ("path", pa.string()),
        ("site", pa.string()),
        ("chunk", pa.int32()),  # chunk index for per-chunk tables, null for stitched ones
        ("begin_s", pa.float64()),
        ("end_s", pa.float64()),
        ("low_hz", pa.float64()),
        ("high_hz", pa.float64()),
        ("score", pa.float32()),
        ("probability", pa.float32()),  # calibrated; null when the model has no calibration
        ("start_utc", pa.timestamp("us", tz="UTC")),  # absolute time of begin_s; null when unknown
        ("utc_offset_s", pa.int32()),
        ("model_sha", pa.string()),
        ("label", pa.string()),  # by the model's names, "unknown" where not sure; null when it has none
        ("label_score", pa.float32()),  # chance that the likeliest name is right
    ]
)

INDEX = pa.schema(
    [
        ("recording_id", pa.string()),
        ("file", pa.string()),  # key of the frames file below the prepared folder
        ("row_group", pa.int32()),
        ("row", pa.int32()),  # of the first segment within the row group
        ("segment", pa.int32()),  # first segment of this piece
        ("num_segments", pa.int32()),
        ("scale", pa.float32()),
        ("offset", pa.float32()),
        ("value_sum", pa.list_(pa.float64())),  # per segment, over its valid frames, before quantisation
        ("square_sum", pa.list_(pa.float64())),
    ]
)

# Of every stretch of a recording (spectrogram/background.py); the sums are of values less the background.
BACKGROUNDS = pa.schema(
    [
        ("recording_id", pa.string()),
        ("segment", pa.int32()),  # first segment of the stretch
        ("num_segments", pa.int32()),
        ("background", pa.list_(pa.float32(), NUM_BINS)),  # median log-mel of every bin
        ("value_sum", pa.list_(pa.float64())),  # per segment, over its valid frames, before quantisation
        ("square_sum", pa.list_(pa.float64())),
    ]
)


def frames_schema(storage: str) -> pa.Schema:
    """One row per segment of 512 frames; `storage` is "uint8" or "float16"."""
    value = {"uint8": pa.uint8(), "float16": pa.float16()}[storage]
    return pa.schema(
        [
            ("recording_id", pa.string()),
            ("segment", pa.int32()),
            ("valid_frames", pa.int16()),  # frames wholly inside the audio, the rest is padding
            ("scale", pa.float32()),  # value = offset + scale * stored
            ("offset", pa.float32()),
            ("logmel", pa.fixed_shape_tensor(value, [SEGMENT_FRAMES, NUM_BINS])),
        ]
    )
