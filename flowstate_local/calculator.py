"""`calculate`, the tool that spares a model arithmetic in its head.

Exact: numbers are fractions, so 0.1 + 0.2 is 0.3. Safe: an expression is parsed, never evaluated, and its size, its
exponents and its values are bounded. Results explain themselves: `160 + 80 < 200 is false (240 is more than 200)`.
"""

import ast
import operator
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Annotated, NoReturn

from pydantic import Field

from flowstate_local.errors import ToolError
from flowstate_local.tools import tool

MAX_LENGTH = 200
MAX_DEPTH = 40
MAX_EXPONENT = 1_000
MAX_BITS = 4_096
"""Numerator and denominator of a value; about 1,200 digits."""
SHOWN_DIGITS = 12
"""Significant digits of a result that no short decimal equals."""

_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_CURRENCY = re.compile(r"[$€£¥]\s*(?=[\d.])")
_SPELLINGS = str.maketrans(
    {"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "≤": "<=", "≥": ">=", "≠": "!="}
)

_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Fraction, Fraction], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS = ("abs", "max", "min", "round", "sum")


@tool(idempotent=True, timeout_s=10)
def calculate(expression: Annotated[str, Field(max_length=MAX_LENGTH)]) -> str:
    """Calculate or compare numbers, such as "80 * 2 + 15" or "160 + 80 < 200". Read the numbers first.

    Args:
        expression: Numbers with + - * / // % ** ( ) < <= > >= == != and min, max, round, abs, sum.
    """
    return evaluate(expression)


def evaluate(expression: str) -> str:
    """The line that `calculate` returns.

    Raises:
        ToolError: kind "bad_expression", with advice.
    """
    shown = " ".join(expression.split())
    tree = _parse(shown)
    try:
        if isinstance(tree, ast.Compare):
            return f"{shown} is {_compare(tree)}"
        return f"{shown} = {_show(_value(tree))}"
    except ZeroDivisionError:
        _refuse(f"{shown} divides by zero")
    except OverflowError:
        _refuse(f"{shown} leads to a number that is too large")


def _refuse(problem: str, advice: str = "") -> NoReturn:
    raise ToolError(f"{problem}. {advice}".strip() if advice else problem, kind="bad_expression")


def _parse(shown: str) -> ast.expr:
    if not shown:
        _refuse("the expression is empty", 'Write one such as "160 + 80".')
    if len(shown) > MAX_LENGTH:
        _refuse(f"the expression has {len(shown)} characters, at most {MAX_LENGTH} are read", "Split it.")
    source = _CURRENCY.sub("", shown.translate(_SPELLINGS))
    if re.search(r"[a-z]\s*\(", source) and _THOUSANDS.search(source):
        _refuse(
            "a comma inside a function's parentheses is ambiguous", 'Write 1200, or "1, 200" for two numbers.'
        )
    source = _THOUSANDS.sub(lambda match: match[0].replace(",", ""), source)
    if "^" in source:
        _refuse("^ has no meaning here", "Write ** for a power.")
    if re.search(r"(?<![<>=!])=(?!=)", source):
        _refuse("a single = has no meaning here", "Write == to compare, and nothing to get the result.")
    if re.search(r"%\s*($|[-+*/)<>=,])", source):
        _refuse("% is the remainder of a division", "Write 20 % as 0.20.")
    try:
        return ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        _refuse(f"{shown!r} is not an expression", "Use numbers, + - * / // % ** and parentheses only.")


def _value(node: ast.expr, depth: int = 0) -> Fraction:
    if depth > MAX_DEPTH:
        _refuse(f"parentheses nest deeper than {MAX_DEPTH} levels", "Split the expression.")
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _number(node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
        value = _value(node.operand, depth + 1)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, depth + 1), _value(node.right, depth + 1)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in _BINARY:
            return _bounded(Fraction(_BINARY[type(node.op)](left, right)))
    if isinstance(node, ast.Call):
        return _call(node, depth)
    if isinstance(node, ast.Name):
        _refuse(f"{node.id!r} is not a number", f"Put its value there; functions: {', '.join(_FUNCTIONS)}.")
    _refuse(
        f"{ast.unparse(node)!r} can't be calculated", "Use numbers, + - * / // % ** and parentheses only."
    )


def _number(node: ast.Constant) -> Fraction:
    try:
        return _bounded(Fraction(str(node.value)))
    except ValueError:  # 1e999 is inf
        raise OverflowError from None


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise OverflowError
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if abs(exponent) > MAX_EXPONENT:
        _refuse(f"the exponent {_show(exponent)} is beyond {MAX_EXPONENT}")
    if exponent.denominator == 1:
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if bits * abs(int(exponent)) > 2 * MAX_BITS:
            raise OverflowError
        return _bounded(Fraction(base ** int(exponent)))
    if base < 0:
        _refuse("a root of a negative number is no number here")
    return Fraction(str(float(base) ** float(exponent)))


def _call(node: ast.Call, depth: int) -> Fraction:
    name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
    if name not in _FUNCTIONS:
        _refuse(f"there is no function {name!r}", f"Functions: {', '.join(_FUNCTIONS)}.")
    items: Sequence[ast.expr] = node.args
    if len(items) == 1 and isinstance(items[0], (ast.List, ast.Tuple)):
        items = items[0].elts
    if node.keywords or not items:
        _refuse(f"{name} needs numbers in its parentheses")
    values = [_value(item, depth + 1) for item in items]
    if name == "round":
        return _round(values)
    if name == "abs":
        return abs(values[0]) if len(values) == 1 else _refuse("abs takes one number")
    if name == "sum":
        return _bounded(sum(values, start=Fraction(0)))
    return max(values) if name == "max" else min(values)


def _round(values: Sequence[Fraction]) -> Fraction:
    """Half away from zero, as money is rounded."""
    places = values[1] if len(values) == 2 else Fraction(0)
    if len(values) > 2 or places.denominator != 1 or not 0 <= places <= 20:
        _refuse("round takes a number and at most a count of decimals from 0 to 20")
    scale = 10 ** int(places)
    half_up = (abs(values[0]) * scale + Fraction(1, 2)).__floor__()
    return Fraction(half_up if values[0] >= 0 else -half_up, scale)


def _compare(node: ast.Compare) -> str:
    """Verdict and reason; a chain is judged link by link, and its first false link is the reason."""
    values = [_value(side) for side in (node.left, *node.comparators)]
    reasons = []
    for op, left, right in zip(node.ops, values, values[1:], strict=False):
        if type(op) not in _COMPARISONS:
            _refuse("only < <= > >= == != compare numbers")
        relation = "equals" if left == right else "is less than" if left < right else "is more than"
        reason = f"{_show(left)} {relation} {_show(right)}"
        if not _COMPARISONS[type(op)](left, right):
            return f"false ({reason})"
        reasons.append(reason)
    return f"true ({', '.join(reasons)})"


def _show(value: Fraction) -> str:
    """The value as a decimal, exact if it has a short one, else marked as rounded."""
    if value.denominator == 1:
        return str(value.numerator)
    for places in range(1, SHOWN_DIGITS + 1):
        scaled = value * 10**places
        if scaled.denominator == 1:
            digits = str(abs(scaled.numerator)).rjust(places + 1, "0")
            return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"
    return f"about {float(value):.{SHOWN_DIGITS}g}"
