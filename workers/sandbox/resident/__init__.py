"""The worker's end of the stream to a resident."""
