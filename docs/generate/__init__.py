"""What makes the parts of the documentation that are not written by hand."""
