"""Numbers of things in messages and tables: "1 rank", "2 ranks"."""


def counted(number: int, thing: str) -> str:
    """A number of things; ``thing`` is one of them, and two of them are called the same with an s.

    >>> counted(1, "rank"), counted(0, "micro-batch"), counted(2, "micro-batch")
    ('1 rank', '0 micro-batches', '2 micro-batches')
    """
    if number == 1:
        return f"1 {thing}"
    return f"{number} {thing}{'es' if thing.endswith(('ch', 's', 'sh', 'x')) else 's'}"
