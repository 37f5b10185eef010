"""What a model is shown of a long conversation: summaries, shortened arguments, results kept in files."""
