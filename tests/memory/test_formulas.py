"""The formulas of a transformer block against the tensors that it saves, and against numbers worked out by hand."""

import pytest

from mindspore_zb.errors import ArgumentTypeError, ArgumentValueError
from mindspore_zb.memory import formulas, measure_block, transformer_block


@pytest.mark.parametrize("size", [(1, 1, 1, 1), (2, 8, 2, 16), (3, 1, 2, 8), (1, 7, 4, 8)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_measured_is_what_the_formulas_say(size, dtype):
    block = measure_block(*size, dtype)
    assert block.agrees
    assert [one.measured for one in block.items] == [one.item.nbytes for one in block.items]
    assert block.measured_bytes == block.formula_bytes > 0


def test_by_hand():
    """Batch 2, length 3, two heads, width 4, float32: 24 numbers in an activation, 36 in the softmax."""
    items = {item.layer: item.nbytes for item in formulas.block_items(2, 3, 2, 4)}
    assert items == {
        "norm1": 96 + 48, "attention.query": 96, "attention.key": 0, "attention.value": 0, "attention.scores": 192,
        "attention.softmax": 144, "attention.context": 96, "attention.projection": 96, "norm2": 96 + 48, "up": 96,
        "gelu": 768, "down": 0}
    assert formulas.block_bytes(2, 3, 2, 4) == 1776


def test_every_part_of_the_block_is_in_the_table():
    block = transformer_block.TransformerBlock(1, 2, 1, 4)
    names = {name for name, cell in block.cells_and_names() if name and not list(cell.cells())}
    assert {item.layer for item in formulas.block_items(1, 2, 1, 4)} == names


def test_a_wrong_formula_does_not_agree(monkeypatch):
    right = formulas.block_items

    def wrong(*size):
        first, second, *others = right(*size)
        return (formulas.BlockItem(first.layer, "", "", second.nbytes),
                formulas.BlockItem(second.layer, "", "", first.nbytes), *others)  # the same sum

    monkeypatch.setattr(transformer_block, "block_items", wrong)
    assert not measure_block(1, 2, 1, 4).agrees


@pytest.mark.parametrize("arguments, error, message", [
    ((0, 1, 1, 1), ArgumentValueError, "batch must be at least 1, not 0"),
    ((1, 1.0, 1, 1), ArgumentTypeError, "length must be an int, not 1.0"),
    ((1, 1, 3, 4), ArgumentValueError, "heads must divide width, but 3 does not divide 4"),
    ((1, 1, 1, 4, "int8"), ArgumentValueError, "dtype must be one of float32, float16, not 'int8'")])
def test_bad_sizes(arguments, error, message):
    with pytest.raises(error, match=message):
        measure_block(*arguments)
