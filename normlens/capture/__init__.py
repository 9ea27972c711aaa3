"""One pass over a corpus: batches, forward passes, mergeable statistics, shards."""
