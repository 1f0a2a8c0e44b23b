#!/usr/bin/env python3
"""Trains the task classifier (README.md describes the method).

    train_task_classifier.py                   writes the weights and the test vectors
    train_task_classifier.py --check           trains, and fails if what is in the tree differs
    train_task_classifier.py --cross-validate  accuracy on families of requests left out of the training
    train_task_classifier.py --evaluate F.tsv  the weights in the tree on a file of labelled prompts

Standard library only; the same seeds, so the same bytes.
"""
import argparse
import math
import os
import re
import sys
import time

import decision
import grammar
import prompts
import segment_model
import task_features

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
WEIGHTS = os.path.join(ROOT, "compression", "task_classifier_weights.inc")
VECTORS = os.path.join(ROOT, "tests", "compression", "data", "task_classifier_vectors.tsv")

SEED = 20240607
SEGMENTS = int(os.environ.get("TCS", "160000"))  # for the segment model
PROMPTS = int(os.environ.get("TCP", "15000"))   # for the decision
FOLDS = 3
LABELS = (prompts.LOCALIZATION, prompts.AGGREGATION)


def load_grammar():
    g = grammar.Grammar()
    for name in ("words", "documents", "localization", "aggregation"):
        g.load(os.path.join(HERE, "templates", name + ".txt"))
    g.load_prose(os.path.join(HERE, "templates", "prose.txt"))
    g.check()
    return g


def fold_of(index):
    return index % FOLDS


def train_decision(g, families, seed):
    """The decision is trained on what segment models say that have not seen the prompts' templates."""
    rows = []
    for fold in range(FOLDS):
        def seen(family):
            return [t for i, t in enumerate(family.templates) if fold_of(i) != fold]

        def unseen(family):
            return [t for i, t in enumerate(family.templates) if fold_of(i) == fold] or family.templates
        maker = prompts.PromptMaker(g, grammar.Rng(seed + fold), families, seen)
        model = segment_model.train(maker, SEGMENTS // 2, seed + fold)
        maker = prompts.PromptMaker(g, grammar.Rng(seed + 10 + fold), families, unseen)
        for i in range(PROMPTS // FOLDS):
            text, _ = maker.prompt(LABELS[i % 2])
            rows.append((decision.inputs(model, text.encode("utf-8")), i % 2))
    return decision.train(rows, seed)


def train(g, families, seed):
    started = time.time()
    weights = train_decision(g, families, seed)
    print("decision trained, %.0f s" % (time.time() - started))
    model = segment_model.train(prompts.PromptMaker(g, grammar.Rng(seed + 20), families), SEGMENTS,
                                seed + 20)
    print("segment model trained, %d features, %.0f s" % (len(model.table), time.time() - started))
    return model, weights


def accuracy_by(results):
    """results: (group, label, score). Prints a line for each group; returns the overall accuracy."""
    counts = {}
    for group, label, s in results:
        c = counts.setdefault(group, [0, 0])
        c[0] += (s > 0) == (label == 1)
        c[1] += 1
    for g in sorted(counts):
        print("  %-44s %5d / %5d  %.3f" % (g, *counts[g], counts[g][0] / counts[g][1]))
    right = sum(c[0] for c in counts.values())
    total = sum(c[1] for c in counts.values())
    print("  %-44s %5d / %5d  %.4f" % ("all", right, total, right / total))
    return right / total


def score(model, weights, text):
    return decision.score(weights, decision.inputs(model, text.encode("utf-8")))


def sampled(g, families, model, weights, count, seed):
    """Results on prompts made from all templates of some families."""
    maker = prompts.PromptMaker(g, grammar.Rng(seed), families)
    results = []
    for i in range(count):
        label = i % 2
        text, family = maker.prompt(LABELS[label])
        results.append(("%s: %s" % (LABELS[label], family), label, score(model, weights, text)))
    return results


def cross_validate(g, folds=5):
    results = []
    for fold in range(folds):
        held, kept = [], []
        for label in LABELS:
            of_label = [f for f in g.families if f.label == label]
            held += [f for i, f in enumerate(of_label) if i % folds == fold]
            kept += [f for i, f in enumerate(of_label) if i % folds != fold]
        model, weights = train(g, kept, SEED + 1000 * fold)
        results += [r for r in sampled(g, held, model, weights, 1000, SEED + 5)
                    if not r[0].endswith(": examples")]
    accuracy_by(results)


def unescape(text):
    return re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m.group(1), m.group(1)), text)


def escape(text):
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")


def read_tsv(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            label, kind, text = line.rstrip("\n").split("\t", 2)
            yield LABELS.index(label), kind, unescape(text)


# 91 characters that need no escape in a string of C++. An entry of the table is six of them: four for
# the key, one for either weight.
ALPHABET = "".join(chr(c) for c in range(33, 127) if chr(c) not in "\"\\?")
BASE = len(ALPHABET)


def encoded(model):
    entries = []
    for key in sorted(model.table):
        digits = [key // BASE ** power % BASE for power in (3, 2, 1, 0)]
        digits += [w + segment_model.MAX_WEIGHT for w in model.table[key]]
        entries.append("".join(ALPHABET[d] for d in digits))
    return entries


def read_weights():
    with open(WEIGHTS, encoding="utf-8") as file:
        text = file.read()
    table = {}
    entries = "".join(re.findall(r'^    "(.*?)"', text, re.M))
    for i in range(0, len(entries), 6):
        digits = [ALPHABET.index(c) for c in entries[i:i + 6]]
        key = ((digits[0] * BASE + digits[1]) * BASE + digits[2]) * BASE + digits[3]
        table[key] = tuple(d - segment_model.MAX_WEIGHT for d in digits[4:])
    bias = [int(x) for x in re.search(r"kSegmentBias\[\] = \{(-?\d+), (-?\d+)\}", text).groups()]
    decision_weights = re.search(r"kDecisionWeights\[\] = \{(.*?)\}", text, re.S).group(1)
    return (segment_model.SegmentModel(table, bias),
            [float(x) for x in re.findall(r"-?\d+\.\d+", decision_weights)])


def evaluate(path, verbose):
    model, weights = read_weights()
    rows = [(kind, label, score(model, weights, text), text) for label, kind, text in read_tsv(path)]
    accuracy_by([r[:3] for r in rows])
    for kind, label, s, text in rows:
        if (s > 0) != (label == 1) and verbose:
            print("%s: %s taken for %s (%.2f): ...%r" % (kind, LABELS[label], LABELS[1 - label], s,
                                                         text[-130:]))


def wrapped(items, width=100):
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > width:
            lines.append(line)
            line = "   "
        line += " " + item + ","
    return "\n".join(lines + [line])


def weights_text(model, weights):
    entries = encoded(model)
    lines = ["    \"%s\"" % "".join(entries[i:i + 15]) for i in range(0, len(entries), 15)]
    return (
        "// Generated by training/train_task_classifier.py; not to be edited.\n"
        "inline constexpr double kWeightUnits = %.1f;\n"
        "inline constexpr int kMaxWeight = %d;\n"
        "inline constexpr int kSegmentBias[] = {%d, %d};\n"
        "// Entries of six characters, ascending: a feature's key, its weight for localization, and that for\n"
        "// aggregation.\n"
        "inline constexpr int kTableEntries = %d;\n"
        "inline constexpr char kTable[] =\n%s;\n"
        "// Of the decision's inputs, in the order of decision.py.\n"
        "inline constexpr double kDecisionWeights[] = {\n%s\n};\n"
        % (segment_model.WEIGHT_UNITS, segment_model.MAX_WEIGHT, *model.bias, len(entries),
           "\n".join(lines), wrapped(["%.3f" % w for w in weights])))


def vectors_text(g, model, weights):
    """Prompts with their scores, for the test that C++ computes the same."""
    maker = prompts.PromptMaker(g, grammar.Rng(SEED + 99))
    lines = []
    for i in range(60):
        text, _ = maker.prompt(LABELS[i % 2])
        lines.append("%.4f\t%s\n" % (score(model, weights, text), escape(text)))
    return "".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--cross-validate", action="store_true")
    parser.add_argument("--evaluate", metavar="TSV")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    if arguments.evaluate:
        return evaluate(arguments.evaluate, arguments.verbose)
    g = load_grammar()
    if arguments.cross_validate:
        return cross_validate(g)
    model, weights = train(g, g.families, SEED)
    accuracy_by(sampled(g, g.families, model, weights, 2000, SEED + 50))
    outputs = {WEIGHTS: weights_text(model, weights), VECTORS: vectors_text(g, model, weights)}
    if arguments.check:
        for path, text in outputs.items():
            with open(path, encoding="utf-8") as file:
                if file.read() != text:
                    sys.exit(path + " differs from what the training gives")
        print("the files in the tree are what the training gives")
        return
    for path, text in outputs.items():
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
