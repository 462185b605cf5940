"""Cases of which the plain run takes the first, and `scripts/test --all` every one."""

import pytest


def mostly_slow(names, cases, *, plain=1, ids=None):
    """As pytest.mark.parametrize; all cases but the first `plain` are marked `slow`.

    Of several such decorators on one test, the plain run takes the first case of each together.
    """
    several = not isinstance(names, str) or "," in names
    marked = [
        pytest.param(
            *(case if several else (case,)), marks=() if number < plain else pytest.mark.slow
        )
        for number, case in enumerate(cases)
    ]
    return pytest.mark.parametrize(names, marked, ids=ids)
