"""The commands of ``python -m mindspore_zb``: one module each, found by its name.

A command has ``HELP``, a line of text; ``add_arguments(parser)``; and ``run(arguments)``, which returns the exit code
and raises :class:`~mindspore_zb.errors.ZeroBubbleError` for input that cannot be used. All modules are imported to
print the help, so what takes long to import, such as MindSpore, is imported in ``run``.
"""
