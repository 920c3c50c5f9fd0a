from tests.train.tiny import batch

__all__ = ["batch"]
