"""A job's files, before and after: snapshots, blobs, changes and their merge."""
