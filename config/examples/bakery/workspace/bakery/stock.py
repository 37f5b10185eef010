"""What lies on the shelf."""


class SoldOut(Exception):
    """There is not enough of it."""


def take(shelf, name, count):
    """Take some of it from the shelf; SoldOut when there is not enough, and then nothing is taken."""
    shelf[name] = shelf.get(name, 0) - count
    if not shelf[name]:
        raise SoldOut(name)
