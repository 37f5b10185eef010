"""When the bakery is open: Tuesday to Saturday, from 7 until 18."""

CLOSED_DAYS = {"Sunday", "Monday"}


def is_open(day, hour):
    """Whether the door is open in the hour that begins at `hour`."""
    return day not in CLOSED_DAYS and 7 < hour <= 18
