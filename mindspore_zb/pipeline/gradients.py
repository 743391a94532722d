"""What a rank checks of its optimizer's weights."""

from typing import Any, Iterable

from mindspore_zb.errors import ArgumentValueError


def check_weights_known(weights: Iterable[Any], known: Iterable[Any]) -> None:
    """Raise ArgumentValueError unless all ``weights`` are among ``known``."""
    keys = {id(weight) for weight in known}
    for weight in weights:
        if id(weight) not in keys:
            raise ArgumentValueError(f"the optimizer has the weight {weight.name!r}, which no stage of this rank has")
