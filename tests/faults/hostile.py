"""Texts and numbers that no program should be given, and small damage to those that it should."""

from __future__ import annotations

import random

NUMBERS = (
    "0", "1", "2", "-1", "7", "100", "1e3", "0.5", "1e-300", "1e300", "-0.0", "nan", "inf", "-inf",
    "2147483648", "9223372036854775808", "1" + "0" * 400, "٣", "1_000", " 1", "0x10", "1,5",
)  # fmt: skip
MARKUP = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'<b>&"
TEXTS = (
    "", " ", MARKUP, "=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1", "\x1b[31mred",
    "\x1b]0;title\x07", "a\nerror: b", "\x00", "\x7f", "\x9b31m", "a\u202eb", "\u2028", "\ufeff",
    "x" * 5000, "😀" * 40, "é", "\ud800", "|", "[a](javascript:alert(1))", "![a](http://a.invalid)",
    "`", "%s%n", "{0.__class__}", "{{ 7*7 }}", "$(id)", "../../etc/passwd", "__import__('os')",
    "None", "true", "null", "-", "--", "--help", "-1.5", "*", "~", "\\", "'", '"', "[bold]x[/]",
    ":smile:", "\\|", "\u061c", "a" * 300, "NaN",
)  # fmt: skip


def a_text(rng: random.Random) -> str:
    """A text that should not be there; as an argument, of characters that one can hold."""
    if rng.random() < 0.7:
        chosen = rng.choice(TEXTS)
        return "\udcff" if chosen == "\ud800" else chosen
    return "".join(chr(rng.choice((rng.randrange(1, 128), rng.randrange(160, 0x3000))))
                   for _ in range(rng.randint(1, 12)))  # fmt: skip


def damaged_text(rng: random.Random, text: str) -> str:
    """The text with a character lost, doubled, replaced or put in; or cut off."""
    i = rng.randint(0, len(text))
    other = rng.choice((*"0123456789,.:x-=+ e/", "\x1b", "é", "\n", *TEXTS[:6]))
    return rng.choice(
        (text[:i] + text[i + 1 :], text[:i] + text[i : i + 1] + text[i:], text[:i] + other +
         text[i + 1 :], text[:i] + other + text[i:], text[:i], text + text)
    )  # fmt: skip
