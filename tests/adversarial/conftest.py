from tests.docker.conftest import engine, make_provider, provider, snapshots

__all__ = ["engine", "make_provider", "provider", "snapshots"]
