"""The arithmetic of the language of evolve-latency in sympy: division by 0 is 0, roots of negative numbers are 0.

Divide, Power and Choose have a value everywhere. In a condition they stay as they are, because sympy evaluates all
cases of a condition, divisions by 0 included; elsewhere `plain` makes them Piecewise. This text is also the head of the
files that `evolve export --to sympy` writes, so it needs sympy alone.
"""

import sympy


class Divide(sympy.Function):  # type: ignore[misc]
    """x/y, and 0 where y is 0."""

    is_extended_real = True

    @classmethod
    def eval(cls, x, y):  # type: ignore[no-untyped-def]
        if y.is_zero:
            return sympy.S.Zero
        return x / y if y.is_zero is False else None


class Power(sympy.Function):  # type: ignore[misc]
    """max(x, 0)**c, with c clipped to [-4, 4]; infinite for 0 to a negative power."""

    is_extended_real = True

    @classmethod
    def eval(cls, x, c):  # type: ignore[no-untyped-def]
        if c.is_negative and x.is_nonpositive:
            return sympy.oo
        if c.is_nonnegative or (c.is_negative and x.is_positive):
            return _power(x, c)
        return None


class Choose(sympy.Function):  # type: ignore[misc]
    """`then` where the condition holds, else `other`."""

    is_extended_real = True

    @classmethod
    def eval(cls, condition, then, other):  # type: ignore[no-untyped-def]
        return {sympy.true: then, sympy.false: other}.get(condition)


def sqrt(x):  # type: ignore[no-untyped-def]
    """The square root; 0 for a negative x."""
    return sympy.sqrt(sympy.Max(x, 0))


def log(x):  # type: ignore[no-untyped-def]
    """The natural logarithm; that of 1e-12 for x <= 0."""
    return sympy.log(Choose(x > 0, x, sympy.Rational(1, 10**12)))


def log1p(x):  # type: ignore[no-untyped-def]
    """log(1 + x); 0 for a negative x."""
    return sympy.log(1 + sympy.Max(x, 0))


def exp(x):  # type: ignore[no-untyped-def]
    """e**x, with x clipped to 50."""
    return sympy.exp(sympy.Min(x, 50))


def softplus(x):  # type: ignore[no-untyped-def]
    """log(1 + e**x); e**x for x below -37, where 1 + e**x would be rounded to 1."""
    return Choose(x < -37, sympy.exp(x), sympy.log(1 + sympy.exp(x)))


def plain(e):  # type: ignore[no-untyped-def]
    """The expression with Piecewise for Divide, Power and Choose, but for those in conditions."""
    e = sympy.sympify(e)
    if isinstance(e, Divide):
        x, y = e.args
        return sympy.Piecewise((plain(x) / plain(y), sympy.Ne(y, 0)), (0, True))
    if isinstance(e, Power):
        x, c = e.args
        return sympy.Piecewise((_power(plain(x), plain(c)), (c >= 0) | (x > 0)), (sympy.oo, True))
    if isinstance(e, Choose):
        condition, then, other = e.args
        return sympy.Piecewise((plain(then), _settled(condition)), (plain(other), True))
    return e.func(*map(plain, e.args)) if e.args else e


def _settled(relation):  # type: ignore[no-untyped-def]
    """The relation with 0 on its right: sympy 1.14 swaps the sides of some others for ever in a Piecewise."""
    if relation.has(Power):  # which may be infinite, and the difference of two infinite numbers is none
        return relation
    return relation.func(relation.lhs - relation.rhs, 0)


def _power(x, c):  # type: ignore[no-untyped-def]
    return sympy.Max(x, 0) ** sympy.Max(-4, sympy.Min(c, 4))
