"""A model over chunks and over windows of recordings: decoding, batching, rows, embeddings."""
