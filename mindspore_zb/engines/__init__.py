"""Engines: ways to run a forward pass so that its backward can be split. See :mod:`mindspore_zb.engines.base`."""
