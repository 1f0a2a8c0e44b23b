"""From what the segments ask to what the prompt asks: logistic regression over a few inputs.

Of each zone the strongest request for localization and for aggregation; how much looks like code; how the
prompt ends; whether it repeats a label as examples do. Positive is aggregation.
"""
import math

import grammar
import task_features

ZONES = len(task_features.ZONES)
CODE_LEVELS, END_KINDS, REPETITIONS = 4, 7, 4
# Offsets of the inputs.
LOCALIZATION = 0
AGGREGATION = ZONES
HEAD_CODE = 2 * ZONES
TAIL_CODE = HEAD_CODE + CODE_LEVELS
UNASKED_CODE = TAIL_CODE + CODE_LEVELS  # of the tail, as far as no request was found near the edges
END_KIND = UNASKED_CODE + CODE_LEVELS
OPTIONS = END_KIND + END_KINDS
REPEATED = OPTIONS + 1
# The zones tail 2 to near as far as nothing was asked behind them, and the near zones of the head as far as
# nothing was asked in the tail.
EXAMPLES = REPEATED + REPETITIONS  # a repeated label, as far as no question stands before it
TURNS = EXAMPLES + 1  # the strongest requests of the head, if they were answered
BEHIND = TURNS + 2
GATED = ("tail 2", "tail 3", "tail near", "head cue", "head 1", "head 2", "head 3", "head near")
BIAS = BEHIND + 2 * len(GATED)
SIZE = BIAS + 1

EPOCHS = 30
RATE = 0.3
L2 = 2e-4


def inputs(model, prompt):
    view = task_features.View(prompt)
    x = [0.0] * SIZE
    for zone, segment in view.zoned:
        l, a = model.probabilities(segment)
        x[LOCALIZATION + zone] = max(x[LOCALIZATION + zone], l)
        x[AGGREGATION + zone] = max(x[AGGREGATION + zone], a)
    rest = (task_features.HEAD - 1, ZONES - 1)
    asked = min(1.0, max(x[LOCALIZATION + zone] + x[AGGREGATION + zone] for zone in range(ZONES)
                         if zone not in rest))
    gate = 1.0
    for i, name in enumerate(("tail cue", "tail 1") + GATED):
        zone = task_features.ZONES.index(name)
        if i >= 2:
            x[BEHIND + i - 2] = gate * x[LOCALIZATION + zone]
            x[BEHIND + len(GATED) + i - 2] = gate * x[AGGREGATION + zone]
        if zone < task_features.HEAD:
            gate = max(0.0, min(gate, 1.0 - x[LOCALIZATION + zone] - x[AGGREGATION + zone]))
    x[HEAD_CODE + view.head_code] = 1.0
    x[TAIL_CODE + view.tail_code] = 1.0
    x[UNASKED_CODE + view.tail_code] = 1.0 - asked
    x[END_KIND + view.end_kind] = 1.0
    x[OPTIONS] = float(view.options)
    x[REPEATED + view.repetitions] = 1.0
    if view.repetitions:
        x[EXAMPLES] = 1.0 - x[LOCALIZATION + task_features.ZONES.index("tail 1")]
    if view.conversation:
        near = slice(task_features.HEAD, task_features.HEAD + task_features.NEAR + 1)
        x[TURNS] = max(x[:ZONES][near])
        x[TURNS + 1] = max(x[ZONES:2 * ZONES][near])
    x[BIAS] = 1.0
    return x


def score(weights, x):
    return sum(w * v for w, v in zip(weights, x) if v)


def train(rows, seed):
    """rows: (inputs, 1 for aggregation). Averaged gradient descent; three decimals are kept."""
    rng = grammar.Rng(seed)
    weights = [0.0] * SIZE
    squares = [1.0] * SIZE
    average = [0.0] * SIZE
    taken = 0
    order = list(range(len(rows)))
    for epoch in range(EPOCHS):
        rng.shuffle(order)
        for index in order:
            x, label = rows[index]
            active = [i for i, v in enumerate(x) if v]
            s = max(-30.0, min(30.0, sum(weights[i] * x[i] for i in active)))
            g = 1.0 / (1.0 + math.exp(-s)) - label
            for i in active:
                gradient = g * x[i] + L2 * weights[i]
                squares[i] += gradient * gradient
                weights[i] -= RATE / math.sqrt(squares[i]) * gradient
        if epoch >= EPOCHS // 2:
            taken += 1
            average = [m + w for m, w in zip(average, weights)]
    return [round(m / taken, 3) for m in average]
