"""Tests of :mod:`mindspore_zb.split`: no MindSpore, only abstract graphs."""
