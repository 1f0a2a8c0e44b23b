"""Templates with choices: `(a|b|)` is one of its alternatives, `{name}` a line of that list, and a
parenthesis without `|` stands for itself.

A file of templates is cut into lists by headers. `[name]` starts a list of words, to be named in
braces. `[localization name options]` and `[aggregation name options]` start a family of requests. `\\(`, `\\)`,
`\\|`, `\\{`, `\\}` and `\\n` stand for the characters themselves; lines that start with `#` are
comments.
"""

import os
import random
import re


class Rng:
    """Draws that are the same in every version of Python: only random() is guaranteed to be."""

    def __init__(self, seed):
        self._random = random.Random(seed).random

    def below(self, n):
        return int(self._random() * n)

    def between(self, low, high):
        return low + self.below(high - low + 1)

    def fraction(self):
        return self._random()

    def chance(self, p):
        return self._random() < p

    def pick(self, items):
        return items[int(self._random() * len(items))]

    def shuffle(self, items):
        for i in range(len(items) - 1, 0, -1):
            j = self.below(i + 1)
            items[i], items[j] = items[j], items[i]


_ESCAPES = {"n": "\n", "t": "\t"}


def _parse(text, position, closers):
    """A sequence up to one of `closers`: a list of strings, ("name", x) and ("one", [sequences])."""
    parts, literal = [], []
    while position < len(text) and text[position] not in closers:
        c = text[position]
        if c == "\\":
            position += 1
            literal.append(_ESCAPES.get(text[position], text[position]))
        elif c in "({":
            if literal:
                parts.append("".join(literal))
                literal = []
            if c == "{":
                end = text.index("}", position)
                parts.append(("name", text[position + 1:end]))
                position = end
            else:
                alternatives = []
                while True:
                    part, position = _parse(text, position + 1, "|)")
                    alternatives.append(part)
                    if position >= len(text):
                        raise ValueError("unclosed choice: " + text)
                    if text[position] == ")":
                        break
                parts.extend([("one", alternatives)] if len(alternatives) > 1 else
                             ["("] + alternatives[0] + [")"])
        else:
            literal.append(c)
        position += 1
    if literal:
        parts.append("".join(literal))
    return parts, position


def parse(text):
    parts, position = _parse(text, 0, ")|")
    if position != len(text):
        raise ValueError("stray ) or | in: " + text)
    return parts


_HEADER = re.compile(r"\[([A-Za-z_]+)(?: ([a-z_]+)((?: [a-z]+=[a-z_0-9]+)*))?\]")


class Family:
    """Requests of one form. Options of its header:

    weight=N   drawn N times as often as a family of weight 1
    pre=LIST   general instructions that may stand elsewhere in the prompt
    cue=LIST   what may follow the request, such as "Answer:"
    code=1     the document is mostly code; code=2: code, and the template its last lines
    """

    def __init__(self, label, name, options):
        self.label = label
        self.name = name
        self.templates = []
        self.weight = int(options.get("weight", "1"))
        self.pre = options.get("pre")
        self.cue = options.get("cue")
        self.code = int(options.get("code", "0"))


class Grammar:
    def __init__(self):
        self.lists = {}
        self.files = {}  # list -> the file it is from
        self.families = []
        self.prose = []  # passages, as lists of sentences

    def load(self, path):
        target = None
        with open(path, encoding="utf-8") as file:
            for line in file:
                line = line.rstrip("\n")
                if not line or line.startswith("#"):
                    continue
                header = _HEADER.fullmatch(line)
                if header is None:
                    target.append(parse(line))
                elif header.group(2) is None:
                    target = self.lists.setdefault(header.group(1), [])
                    self.files[header.group(1)] = os.path.basename(path)
                else:
                    options = dict(o.split("=") for o in header.group(3).split())
                    family = Family(header.group(1), header.group(2), options)
                    self.families.append(family)
                    target = family.templates

    def load_prose(self, path):
        with open(path, encoding="utf-8") as file:
            self.prose = [re.split(r"(?<=[.?!]) ", line.strip()) for line in file
                          if not line.startswith("#")]

    def check(self):
        """Every name in braces is a list."""
        def visit(parts):
            for part in parts:
                if isinstance(part, tuple):
                    if part[0] == "name":
                        if not self.lists.get(part[1]):
                            raise ValueError("no list " + part[1])
                    else:
                        for alternative in part[1]:
                            visit(alternative)
        for family in self.families:
            for name in (family.pre, family.cue):
                if name and not self.lists.get(name):
                    raise ValueError("no list " + name)
        for templates in list(self.lists.values()) + [f.templates for f in self.families]:
            for template in templates:
                visit(template)

    def literals(self, templates):
        """The texts that stand in templates themselves, without what is drawn from lists."""
        for parts in templates:
            for part in parts:
                if isinstance(part, str):
                    yield part
                elif part[0] == "one":
                    yield from self.literals(part[1])

    def expand(self, parts, rng):
        out = []
        for part in parts:
            if isinstance(part, str):
                out.append(part)
            elif part[0] == "name":
                out.append(self.expand(rng.pick(self.lists[part[1]]), rng))
            else:
                out.append(self.expand(rng.pick(part[1]), rng))
        return "".join(out)

    def draw(self, name, rng):
        return self.expand(rng.pick(self.lists[name]), rng)
