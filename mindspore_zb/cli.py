"""The command line: ``python -m mindspore_zb COMMAND``, or ``mindspore_zb COMMAND``.

Each module of :mod:`mindspore_zb.commands` is a command of its name. Exit codes: 0 for success, 2 for input that cannot
be used, which one line on stderr explains; else what the command says.
"""

import argparse
import importlib
import os
import pkgutil
import sys
from typing import Any, List, NoReturn, Optional, Sequence

from mindspore_zb import commands
from mindspore_zb._version import __version__
from mindspore_zb.errors import ZeroBubbleError

INTERRUPTED = 130
BAD_INPUT = 2


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run a command.

    Args:
        arguments: what stands after the program's name; default: those of the process.

    Returns:
        The exit code.
    """
    parsed, unknown = build_parser().parse_known_args(arguments)
    if unknown:  # told here, as argparse would not name the command
        parsed.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        code = parsed.run(parsed)
        sys.stdout.flush()
        return code
    except ZeroBubbleError as error:
        message = " ".join(str(error).split())
        print(f"mindspore_zb {parsed.command}: {message}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print(f"mindspore_zb {parsed.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # files are looked after by the commands: it is the output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"mindspore_zb {parsed.command}: the output cannot be written ({error.strerror})", file=sys.stderr)
        return BAD_INPUT
    except MemoryError:
        print(f"mindspore_zb {parsed.command}: not enough memory: choose smaller sizes", file=sys.stderr)
        return BAD_INPUT


def build_parser() -> argparse.ArgumentParser:
    """The parser with a subcommand for each module of :mod:`mindspore_zb.commands`."""
    parser = _Parser(prog="mindspore_zb", description="dx and dw of MindSpore computations, and pipelines of them")
    parser.add_argument("--version", action="version", version=f"mindspore_zb {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in command_names():
        module: Any = importlib.import_module(f"{commands.__name__}.{name}")
        subparser = subparsers.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run, parser=subparser)
    return parser


def command_names() -> List[str]:
    """The commands there are, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(commands.__path__) if not module.name.startswith("_"))
