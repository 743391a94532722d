"""Stub."""


def why_not_compiled(fn):
    return None
