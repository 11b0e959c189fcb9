import pytest

from flowstate_local.calculator import calculate, evaluate
from flowstate_local.errors import ToolError


@pytest.mark.parametrize(
    ("expression", "line"),
    [
        ("160 + 80", "160 + 80 = 240"),
        ("  160+80  ", "160+80 = 240"),
        ("160 + 80 < 200", "160 + 80 < 200 is false (240 is more than 200)"),
        ("70 + 10 < 90", "70 + 10 < 90 is true (80 is less than 90)"),
        ("5 == 5", "5 == 5 is true (5 equals 5)"),
        ("1 < 3 < 2", "1 < 3 < 2 is false (3 is more than 2)"),
        ("$1,200 * 2", "$1,200 * 2 = 2400"),
        ("€80 × 2 ÷ 4", "€80 × 2 ÷ 4 = 40"),
        ("max(1, 200) - min(3, 4) + sum([1, 2])", "max(1, 200) - min(3, 4) + sum([1, 2]) = 200"),
        ("0.1 + 0.2", "0.1 + 0.2 = 0.3"),
        ("-1/3", "-1/3 = about -0.333333333333"),
        ("-0.05", "-0.05 = -0.05"),
        ("round(2.345, 2)", "round(2.345, 2) = 2.35"),
        ("round(-2.5)", "round(-2.5) = -3"),
        ("abs(-7) // 2 + 7 % 4", "abs(-7) // 2 + 7 % 4 = 6"),
        ("2 ** 10 + 2 ** -1", "2 ** 10 + 2 ** -1 = 1024.5"),
        ("4 ** 0.5", "4 ** 0.5 = 2"),
    ],
)
def test_results_explain_themselves(expression: str, line: str) -> None:
    assert evaluate(expression) == line
    assert calculate(expression) == line


@pytest.mark.parametrize(
    ("expression", "advice"),
    [
        ("", "empty"),
        ("1 +", "not an expression"),
        ("x + 1", "Put its value there"),
        ("max(1,200)", "ambiguous"),
        ("2 ^ 3", "**"),
        ("3 = 4", "=="),
        ("20%", "0.20"),
        ("1 / 0", "zero"),
        ("0 ** -1", "zero"),
        ("9 ** 9 ** 9", "exponent"),
        ("9 ** 999 * 9 ** 999", "too large"),
        ("2 ** 5000", "exponent"),
        ("1e999", "too large"),
        ("(-8) ** 0.5", "root"),
        ("__import__('os')", "no function"),
        ("abs(1, 2)", "one number"),
        ("round(1, 2, 3)", "decimals"),
        ("min()", "needs numbers"),
        ("(1).real", "can't be calculated"),
        ("1 in 2", "compare"),
        ("True + 1", "can't be calculated"),
        ("-" * 60 + "1", "deeper"),
        ("1" * 201, "characters"),
    ],
)
def test_refusals_give_advice(expression: str, advice: str) -> None:
    with pytest.raises(ToolError) as caught:
        evaluate(expression)
    assert caught.value.kind == "bad_expression"
    assert advice in str(caught.value)
