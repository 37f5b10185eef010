"""A job's files, before and after: snapshots, blobs, and the merge of changes."""
