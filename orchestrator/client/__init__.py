"""The connection of a program to jobs: `JobClient`, and its part that only reads, `JobReader`.

Each name is loaded when it is first used: a program that only reads needs neither Celery nor a blob
store.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
