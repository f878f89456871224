"""Formulas in data files (`seed_data`): Python expressions of numbers or of arrays."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from app.runtime.syntax import syntax_tree

_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.Eq: operator.eq,
    ast.Lt: operator.lt,
    ast.Gt: operator.gt,
    ast.And: np.logical_and.reduce,
    ast.Or: np.logical_or.reduce,
}


@cache
def parsed(formula: str) -> ast.expr:
    """Return the syntax tree of a formula."""
    body: ast.expr = syntax_tree(formula, "eval").body
    return body


def evaluated(formula: str, meaning: Callable[[ast.expr], Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    """Return the value of a formula. Raises ValueError for an expression that formulas do not have.

    `meaning` returns the value of a name, and of each node that the formula's owner reads in its own way; None: the
    node has its usual value. `functions` are those that the formula may call.
    """

    def value(node: ast.expr) -> Any:  # noqa: PLR0911  (a case per kind of node)
        own = meaning(node)
        if own is not None:
            return own
        match node:
            case ast.Constant(value=constant):
                return constant
            case ast.BinOp(left=left, op=kind, right=right) | ast.Compare(left=left, ops=[kind], comparators=[right]):
                return _OPERATORS[type(kind)](value(left), value(right))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return ~value(operand)
            case ast.BoolOp(op=kind, values=values):
                return _OPERATORS[type(kind)]([value(operand) for operand in values])
            case ast.IfExp(test=test, body=body, orelse=other):
                return np.where(value(test), value(body), value(other))
            case ast.Call(func=ast.Name(id=function), args=arguments):
                return functions[function](*map(value, arguments))
        raise ValueError(f"not part of a formula: {ast.unparse(node)}")

    return value(parsed(formula))
