"""Long conversations: summaries, shortened arguments, and long results stored in files."""
