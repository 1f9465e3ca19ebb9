"""What resembles what: neighbours, retrieval, clusters and maps of embeddings."""
