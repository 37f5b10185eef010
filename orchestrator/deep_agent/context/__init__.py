"""What a model is shown of a long conversation.

Summaries, shortened arguments, results kept in files.
"""
