"""`mast embed MODEL PREPARED --out DIR`: embeddings of chunks or boxes, with
neighbours, retrieval, clusters and maps.
"""

from __future__ import annotations

import argparse

USES_CONFIG = USES_RUNNER = True
READS_MODELS = ("model",)  # folders, or shipped ones by name
OF_BOXES = ("threshold", "min_similarity", "min_margin", "min_members", "background")
HELP = """Embed the chunks or the boxes of a prepared archive with a model, and look at what lies near what.

MODEL is a detector (`mast train`) or a pretrained encoder (`mast pretrain`). Boxes are the annotated ones and, with --boxes TABLE, those of
a table of detections: their labels are looked up in the annotated boxes of the train split, never in their own recording. Writes
embeddings.parquet, neighbours.parquet, map.png and, for boxes, retrieval figures, tentative labels and a queue of novel clusters."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", help="model folder of `mast train` or `mast pretrain`, shipped:tiny or shipped:compact")
    add("prepared", help="folder or s3:// prefix written by `mast prepare`")
    add("--out", required=True, help="folder or s3:// prefix to write")
    add("--what", choices=("chunks", "boxes"), default="boxes", help="what is embedded (default boxes)")
    add(
        "--name",
        choices=("encoder", "neck", "projection"),
        default="encoder",
        help="tokens of the encoder, finest pyramid map, or contrastive projection (default encoder)",
    )
    add(
        "--boxes",
        default="labels",
        metavar="labels|TABLE",
        help="annotated boxes only (default), or also those of a table of detections",
    )
    add(
        "--threshold",
        type=float,
        default=None,
        metavar="Q",
        help="with --boxes TABLE: least score of its detections (default: the model's own threshold)",
    )
    add(
        "--splits",
        default="",
        metavar="LIST",
        help="only these splits, e.g. train,test,pool (default: the whole archive)",
    )
    add(
        "--neighbours",
        type=int,
        default=5,
        metavar="K",
        help="nearest rows written per row (default 5; 0: none)",
    )
    add(
        "--map",
        choices=("tsne", "pca", "umap"),
        default="tsne",
        help="2-D map (default tsne; umap is an extra)",
    )
    add(
        "--min-similarity",
        type=float,
        default=0.5,
        metavar="X",
        help="no label below this cosine similarity (default 0.5)",
    )
    add(
        "--min-margin",
        type=float,
        default=0.02,
        metavar="X",
        help="no label when the next is nearly as similar (default 0.02)",
    )
    add("--min-members", type=int, default=5, metavar="N", help="least members of a cluster (default 5)")
    add("--background", choices=("keep", "subtract"), default="keep",
        help="subtract the mean of its chunk from every box, so that sites weigh less (encoder and neck)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    import logging

    from mast_ray.config.errors import ConfigError
    from mast_ray.stages.score.embed import EmbedKnobs, retrieval_text, run_embed
    from mast_ray.verbs.idle_options import refuse_idle

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    detections = "" if args.boxes == "labels" else args.boxes
    if detections and args.what == "chunks":
        raise ConfigError("--boxes is for --what boxes: leave it out to embed chunks")
    if args.what == "chunks":
        refuse_idle(args, OF_BOXES, "leave it out with --what chunks, which embeds no boxes")
    if not detections:
        refuse_idle(args, ("threshold",), "it is that of detections, so give them with --boxes TABLE")
    if args.neighbours < 0 or args.min_members < 2:
        raise ConfigError("--neighbours must be 0 or more, --min-members 2 or more")
    if args.threshold is not None and not 0.0 <= args.threshold <= 1.0:
        raise ConfigError(f"--threshold {args.threshold} is no score: give a number between 0 and 1")
    if not -1.0 <= args.min_similarity <= 1.0 or not args.min_margin >= 0.0:
        raise ConfigError("--min-similarity is a cosine, from -1 to 1, and --min-margin 0 or more")
    knobs = EmbedKnobs(
        args.what, args.name, detections, tuple(n.strip() for n in args.splits.split(",") if n.strip()), args.threshold,
        args.neighbours, args.map, args.min_similarity, args.min_margin, args.min_members, args.background,
    )  # fmt: skip
    found = run_embed(args.config, args.model, args.prepared, args.out, knobs, runner=args.runner)
    if found["retrieval"]:
        print(retrieval_text(found["retrieval"]))
    if found["novelty"]:
        print(f"{len(found['novelty'])} clusters, the least familiar first: {args.out}/novelty.csv")
    print(f"{found['rows']} {args.what} embedded in {args.out}")
    return 0
