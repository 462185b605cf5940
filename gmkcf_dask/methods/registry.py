"""Every method by the name the command line has for it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from gmkcf_dask.errors import InputError
from gmkcf_dask.methods.base import Method
from gmkcf_dask.methods.coreg import Coreg
from gmkcf_dask.methods.gmkcf import Gmkcf
from gmkcf_dask.methods.kcf import Kcf
from gmkcf_dask.methods.kkm import Kkm
from gmkcf_dask.methods.rmkkm import Rmkkm
from gmkcf_dask.methods.spectral import Sc

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (Gmkcf, Kcf, Kkm, Sc, Coreg, Rmkkm)
}


def make_method(name: str, **parameters: Any) -> Method:
    """A method by name; a parameter it does not have is refused, with the methods that have it."""
    if name not in METHODS:
        near = difflib.get_close_matches(name, METHODS, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(f"there is no method {name!r}{hint}: choose from {', '.join(METHODS)}")
    own = parameters_of(name)
    for parameter in parameters:
        if parameter not in own:
            having = [other for other in METHODS if parameter in parameters_of(other)]
            raise InputError(
                f"{parameter} is not a parameter of {name}"
                + (f", only of {', '.join(having)}" if having else "")
                + f": leave it out; {name} has {', '.join(own)}"
            )
    return METHODS[name](**parameters)


def parameters_of(name: str) -> list[str]:
    """Names of a method's parameters."""
    return [field.name for field in fields(METHODS[name])]  # type: ignore[arg-type]


def make_preset_method(name: str, preset: Mapping[str, Any], **parameters: Any) -> Method:
    """A method with those values of a preset that it has parameters for; others win over them."""
    own = parameters_of(name) if name in METHODS else []
    usual = {parameter: value for parameter, value in preset.items() if parameter in own}
    return make_method(name, **{**usual, **parameters})
