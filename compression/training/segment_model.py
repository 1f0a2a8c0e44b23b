"""Of each segment of a prompt: does it ask for localization, for aggregation, or for nothing?

Softmax regression over the hashed words and word sequences of a segment, trained on requests (by their
family's task) and on sentences of documents, chat templates and politeness (nothing). "Nothing" has the
score 0, so a segment of unknown words is decided by the bias, for nothing.
"""
import collections
import math
import re

import grammar
import prompts
import task_features

_COMMON_LISTS = ("any_cue", "opener", "aside", "short_statement", "np", "verb_past", "prep", "pp", "vp", "link", "free", "system", "greeting", "closing",
                 "label_before", "label_after")

NOTHING, LOCALIZATION, AGGREGATION = 0, 1, 2
MIN_OCCURRENCES = 4     # of a feature among the training segments
MAX_FEATURES = 5000     # besides the vocabulary
EPOCHS = 4
DROPPED = 0.3           # of a request's features in each step, so that no single word decides
DROPPED_AT_MOST = 0.95  # of the features of what asks for nothing, so that this is the default
AVERAGED = 4            # times an epoch, in the second half, that the weights are taken for their mean
RATE = 0.12
L2 = 2e-5
WEIGHT_UNITS = 16.0     # integer weight = round(weight * WEIGHT_UNITS)
MAX_WEIGHT = 45


def make_vocabulary(g):
    """Keys of the words that may be told apart: those of requests and of chat, and the common words of
    sentences, but no topics. All others are classes of words, so no topic can speak for a task."""
    templates = [t for f in g.families for t in f.templates]
    for name, file in g.files.items():
        if file in ("localization.txt", "aggregation.txt") or name in _COMMON_LISTS:
            templates += g.lists[name]
    texts = list(g.literals(templates)) + list(_CHAT)
    words = set()
    for text in texts:
        for segment in _segments(text):
            words.update(t.removeprefix(task_features.NAME) for t in segment)
    return frozenset(task_features.word_key(w) for w in words)


class SegmentModel:
    """table: {key: (localization weight, aggregation weight)}, in units of 1 / WEIGHT_UNITS."""

    def __init__(self, table, bias):
        self.table, self.bias = table, bias

    def probabilities(self, segment):
        """(localization, aggregation)"""
        l, a = self.bias
        for key in task_features.segment_features(segment, self.table):
            w = self.table.get(key)
            if w is not None:
                l += w[0]
                a += w[1]
        return softmax(l / WEIGHT_UNITS, a / WEIGHT_UNITS)


def softmax(l, a):
    top = max(0.0, l, a)
    el, ea = math.exp(l - top), math.exp(a - top)
    total = math.exp(-top) + el + ea
    return el / total, ea / total


def _segments(text):
    return task_features.segments_of(text.encode("utf-8").decode("latin-1"))


_CHAT = ("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", "[INST]", "[/INST]", "<<SYS>>",
         "### Instruction:", "### Response:", "Human:", "Assistant:", "USER:", "ASSISTANT:", "User:",
         "<start_of_turn>model", "<|eot_id|>", "<|start_header_id|>system<|end_header_id|>", "Q:", "A:",
         "Question:", "Task:", "Instruction:", "Input:", "Query:", "Request:", "Prompt:", "AI:", "Bot:",
         "Answer:", "Response:", "Output:", "assistant", "user", "system", "model", "Reply:", "Result:",
         "Options:", "OPTIONS:", "Choices:", "options", "<|user|>", "</s>", "<s>", "<bos>", "<|end|>", "im_start", "<|eot_id|>", "<|begin_of_text|>")


def _samples(maker, count):
    """Pairs (segment, class)."""
    rng = maker.rng
    for i in range(count):
        if i % 2 == 0:
            yield from _of_documents(maker, rng)
            continue
        label = (prompts.LOCALIZATION, prompts.AGGREGATION)[i // 2 % 2]
        kind = LOCALIZATION if label == prompts.LOCALIZATION else AGGREGATION
        family = rng.pick(maker.by_label[label])
        x = rng.below(100)
        if x < 8 and family.pre:
            text = maker.draw(family.pre)
        elif x < 20 and family.cue:
            text = re.sub("~[^~]*~", "", maker.grammar.draw(family.cue, rng))
            if family.code and any(c in text for c in "`(/#"):
                continue
        elif x < 23 and kind == AGGREGATION:
            text = maker.label_of_examples()
        elif family.code == 2:
            continue
        else:
            text = maker.embellished(re.sub("~[^~]*~", "\n", maker.marked_request(family)).strip() or "?")
            if rng.chance(0.2):
                text = text.rstrip(".:!?")
            if rng.chance(0.05):
                text = maker.misspell(text)
        for segment in _segments(text):
            if segment:
                yield segment, kind


def _of_documents(maker, rng):
    x = rng.below(100)
    if x < 12:
        text = maker.draw(rng.pick(("label_before", "label_after", "system", "greeting", "closing", "opener",
                                   "any_cue")))
    elif x < 20:
        text = rng.pick(_CHAT)
    else:
        genre = "free" if x < 36 else "short_statement" if x < 44 else "needle" if x < 47 else \
            prompts.PROSE if x < 65 else maker.genre(None)
        text = maker.sentence_of(genre)
    for segment in _segments(text):
        # What a character or a FAQ asks is a question too; where it stands is for the decision.
        if not segment or "?" in segment:
            continue
        if len(segment) > 4 and rng.chance(0.15):  # cut by the end of what is looked at
            cut = rng.between(1, len(segment) - 1)
            segment = segment[cut:] if rng.chance(0.5) else segment[:cut]
        yield segment, NOTHING


class _Fit:
    """AdaGrad on the log loss of both request classes. Samples are ([index of feature], class); the last
    index is the bias, which is in every sample."""

    def __init__(self, size, rate, l2):
        self.rate, self.l2 = rate, l2
        self.weights = [[0.0] * size, [0.0] * size]
        self.mean = [[0.0] * size, [0.0] * size]
        self.squares = [[1.0] * size, [1.0] * size]

    def run(self, samples, seed):
        rng = grammar.Rng(seed)
        order = list(range(len(samples)))
        since = taken = 0
        for epoch in range(EPOCHS):
            rng.shuffle(order)
            for index in order:
                features, kind = samples[index]
                dropped = DROPPED
                if kind == NOTHING and rng.chance(0.5):
                    dropped += (DROPPED_AT_MOST - DROPPED) * rng.fraction()
                self._step(features, kind, dropped, rng.fraction)
                since += 1
                if epoch >= EPOCHS // 2 and since >= len(samples) // AVERAGED:
                    since = 0
                    taken += 1
                    for mean, w in zip(self.mean, self.weights):
                        for i, value in enumerate(w):
                            mean[i] += value
        self.weights = [[value / taken for value in mean] for mean in self.mean]

    def _step(self, features, kind, dropped, fraction):
        active = [i for i in features if fraction() >= dropped]
        active.append(len(self.weights[0]) - 1)
        wl, wa = self.weights
        l = a = 0.0
        for i in active:
            l += wl[i]
            a += wa[i]
        pl, pa = softmax(l, a)
        self._update(0, active, pl - (kind == LOCALIZATION))
        self._update(1, active, pa - (kind == AGGREGATION))

    def _update(self, which, active, gradient):
        if -1e-3 < gradient < 1e-3:
            return
        w, n, rate, l2, sqrt = self.weights[which], self.squares[which], self.rate, self.l2, math.sqrt
        square = gradient * gradient
        for i in active:
            n[i] += square
            w[i] -= rate * (gradient + l2 * w[i]) / sqrt(n[i])


def train(maker, count, seed):
    vocabulary = make_vocabulary(maker.grammar)
    samples = []
    occurrences = collections.Counter()
    for segment, kind in _samples(maker, count):
        keys = sorted(task_features.segment_features(segment, vocabulary))
        occurrences.update(keys)
        samples.append((keys, kind))
    common = sorted(k for k, n in occurrences.items() if n >= MIN_OCCURRENCES)
    selecting = _fit(samples, common, seed)

    def worth(i):
        return (abs(selecting.weights[0][i]) + abs(selecting.weights[1][i])) * math.sqrt(
            occurrences[common[i]])
    ranked = sorted((i for i, k in enumerate(common) if k not in vocabulary), key=lambda i: (-worth(i), i))
    chosen = sorted({common[i] for i in ranked[:MAX_FEATURES]} | (vocabulary & set(common)))
    fitted = _fit(samples, chosen, seed + 1)

    def integers(i):
        return tuple(max(-MAX_WEIGHT, min(MAX_WEIGHT, round(w[i] * WEIGHT_UNITS)))
                     for w in fitted.weights)
    table = {key: integers(i) for i, key in enumerate(chosen)}
    table = {key: w for key, w in table.items() if any(w) or key in vocabulary}
    for key in vocabulary:
        table.setdefault(key, (0, 0))
    return SegmentModel(table, integers(len(chosen)))


def _fit(samples, keys, seed):
    index = {key: i for i, key in enumerate(keys)}
    fit = _Fit(len(keys) + 1, RATE, L2)
    fit.run([([index[k] for k in features if k in index], kind) for features, kind in samples], seed)
    return fit
