"""Public names of a package that are imported when they are first used."""

from importlib import import_module
from typing import Any, Callable, Dict, List, Mapping, Tuple


def lazy_names(namespace: Dict[str, Any],
               modules: Mapping[str, str]) -> Tuple[Callable[[str], Any], Callable[[], List[str]]]:
    """``__getattr__`` and ``__dir__`` of a package (PEP 562).

    Args:
        namespace: the ``globals()`` of the package.
        modules: for each public name the module below ``mindspore_zb`` that has it.
    """

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        value = namespace[name] = getattr(import_module(f"mindspore_zb.{modules[name]}"), name)  # found directly now
        return value

    return find, lambda: sorted({*namespace, *modules})
