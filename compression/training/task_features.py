"""What the task classifier sees of a prompt: the twin of compression/task_segments.cc.

Both must agree; tests/compression/task_classifier_test.cc compares them through the scores that the
training writes down. docs/task_classifier.md describes the features in prose.
"""
import re

HEAD_BYTES = 1024
TAIL_BYTES = 1536
WORDS_OF_A_SENTENCE = 3  # a shorter piece without a question mark is a cue, such as "Answer:"
WORDS_OF_A_LABEL = 3     # words before a colon that is a boundary, as in "Question: Who..."
MARK_BYTES = 600         # bytes from either edge in which marks of code are counted
LONG_SEGMENT = 64        # tokens; of a longer segment only both ends are looked at
STEM_BYTES = 6

# Zones: where in the prompt a segment stands, counted from its end (tail) or its beginning (head).
ZONES = ("tail cue", "tail 1", "tail 2", "tail 3", "tail near", "tail rest",
         "head cue", "head 1", "head 2", "head 3", "head near", "head rest")
TAIL, HEAD = 0, 6  # first zone of each
NEAR, REST = 4, 5  # of either
NEAR_SENTENCES = 7
NEAR_TOKENS = 150  # tokens from the edge beyond which a segment belongs to the rest

NAME = "\x02"

MASK = 0xFFFFFFFF
KEY_MASK = 0x3FFFFFF


def fnv1a(data):
    h = 0x811C9DC5
    for byte in data:
        h = ((h ^ byte) * 0x01000193) & MASK
    return h


_token_hashes = {}


def token_hash(token):
    """token: str of latin-1 characters, one per byte."""
    h = _token_hashes.get(token)
    if h is None:
        h = _token_hashes[token] = fnv1a(token.encode("latin-1"))
    return h


def mix(kind, a, b=0, c=0):
    """A feature's key. kind: 1, 2, 3 the number of words; 4 a stem; 5 the length; 6 see below."""
    h = (kind * 0x9E3779B1) & MASK
    h = ((h ^ a) * 0x85EBCA6B) & MASK
    h ^= h >> 15
    h = ((h ^ b) * 0xC2B2AE35) & MASK
    h ^= h >> 13
    h = ((h ^ c) * 0x27D4EB2F) & MASK
    h ^= h >> 16
    return h & KEY_MASK


# One pass over latin-1 text (one character per byte), case folded for ASCII. Alternatives in order:
# boundaries; words (ASCII and two-byte UTF-8); three and four-byte characters; marks.
_TOKEN = re.compile(
    r"(?P<bound><\||\|>|[<>\n\x01]|\[/?inst\])"
    r"|(?P<word>(?:[a-z0-9_]|[\xc3-\xdf][\x80-\xbf])+)"
    r"|(?P<wide>[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3})"
    r"|(?P<fence>`{3,})|(?P<arrow>[-=]>)|(?P<mark>[?:|.!])")
_OPTION = re.compile(r"(?:(?<=\n)|\A)[ \t]*\(?[A-H][).][ \t][^\n]*")
_ASCII_LOWER = {c: c + 32 for c in range(ord("A"), ord("Z") + 1)}
_ACCENT = re.compile("\xc3([\x80-\x96\x98-\x9e])")
_MARKS_OF_CODE = frozenset("{}();=[]<>")
_WIDE_MARKS = {"\xe3\x80\x82": ".", "\xef\xbc\x9f": "?", "\xef\xbc\x81": ".", "\xef\xbc\x9a": ":"}
_WIDE_SKIPPED = {"\xef\xbc\x8c", "\xe3\x80\x81"}


def segments_of(text):
    """Cuts latin-1 text into segments: lists of tokens. The line of an option is an empty segment; a word
    with a capital letter that is not the first of its segment has NAME before it."""
    original = _OPTION.sub("\x01", text)
    text = original.translate(_ASCII_LOWER)
    text = _ACCENT.sub(lambda m: "\xc3" + chr(ord(m.group(1)) + 0x20), text)
    segments, current = [], []

    def close():
        nonlocal current
        if current:
            segments.append(current)
            current = []

    size = len(text)
    for m in _TOKEN.finditer(text):
        kind = m.lastgroup
        token = m.group()
        if kind == "word":
            token = _shape(token)
            if current and "A" <= original[m.start()] <= "Z":
                token = NAME + token
            current.append(token)
            continue
        if kind == "bound":
            close()
            if token == "\x01":
                segments.append([])
            elif token == "[/inst]":
                segments.append(["assistant"])
            continue
        if kind == "wide":
            if token in _WIDE_MARKS:
                mark = _WIDE_MARKS[token]
                if mark == ".":
                    close()
                else:
                    current.append(mark)
                    if mark == "?":
                        close()
            elif token[0] != "\xe2" and token not in _WIDE_SKIPPED:
                current.append(token)
            continue
        if kind == "fence":
            current.append("`")
        elif kind == "arrow":
            current.append(">")
        elif token == "?":
            if _is_question_mark(original, m.start()):
                current.append("?")
                close()
        elif token == "!":
            close()
        elif token == ".":
            end = m.end()
            if (end == size or text[end] in " \t\r\n\"') ") and not (
                    current and len(current[-1].removeprefix(NAME)) == 1 and current[-1][-1].isalpha()):
                close()
        else:
            current.append(token)
            if token == ":" and _words_in(current) <= WORDS_OF_A_LABEL:
                close()
    close()
    return segments


def _is_question_mark(text, i):
    """Not the operator of C, nor part of an address."""
    after = text[i + 1:i + 2]
    if after and after not in " \t\r\n\"')]*_<?!":
        return False
    spaced = i > 0 and text[i - 1] == " " and after == " "
    return not spaced or "A" <= text[i + 2:i + 3] <= "Z"


def _shape(word):
    if "_" in word:
        return "_" if not word.strip("_") else "_a"
    if any("0" <= c <= "9" for c in word):
        return "0" if word.isdigit() and word.isascii() else "0a"
    return word


_NOT_WORDS = frozenset("?:|`>")


def _words_in(segment):
    return sum(1 for token in segment if token not in _NOT_WORDS)


def _is_sentence(segment):
    return "?" in segment or _words_in(segment) >= WORDS_OF_A_SENTENCE


def zoned(segments, first):
    """Pairs (zone, segment), from the edge inwards. first: TAIL or HEAD."""
    out = []
    sentences = tokens = 0
    for segment in (reversed(segments) if first == TAIL else segments):
        if not segment:
            continue
        sentence = _is_sentence(segment)
        if sentence:
            sentences += 1
        zone = min(sentences, NEAR)
        if sentences > NEAR_SENTENCES or tokens > NEAR_TOKENS:
            zone = REST
        out.append((first + zone, segment))
        tokens += len(segment)
    return out


def word_key(word):
    return mix(1, token_hash(word))


_ENDINGS = ("ed", "ing", "ly", "est", "s")


def canonical(token, vocabulary):
    """The token, or for a word outside the vocabulary (a container of word keys) its class."""
    word = token.removeprefix(NAME)
    if word in _NOT_WORDS or word_key(word) in vocabulary:
        return word
    if token != word:
        return "N"
    if len(word) > 3 and "a" <= word[0] <= "z":
        for ending in _ENDINGS:
            if word.endswith(ending):
                return "X" + ending
    return "X"


def segment_features(segment, vocabulary):
    """The keys of one segment's features, without repetition."""
    if len(segment) > LONG_SEGMENT:
        segment = segment[:LONG_SEGMENT // 2] + segment[-LONG_SEGMENT // 2:]
    tokens = ["^"] + [canonical(t, vocabulary) for t in segment] + ["$"]
    hashes = [token_hash(t) for t in tokens]
    words = len(segment)
    out = {mix(5, 1 if words < 3 else 2 if words < 6 else 3 if words < 12 else 4 if words < 24 else 5)}
    if segment[-1] == "?":
        out.add(mix(6, hashes[1]))
    for i, h in enumerate(hashes):
        if 0 < i <= words:
            out.add(mix(1, h))
            word = segment[i - 1].removeprefix(NAME)
            if len(word) > STEM_BYTES:
                out.add(mix(4, token_hash(word[:STEM_BYTES])))
        if i <= words:
            out.add(mix(2, h, hashes[i + 1]))
            if i < words:
                out.add(mix(3, h, hashes[i + 1], hashes[i + 2]))
    return out


def _code_level(text):
    marks = sum(1 for c in text if c in _MARKS_OF_CODE)
    return 0 if marks < 3 else 1 if marks < 8 else 2 if marks < 24 else 3


def _end_kind(tail):
    """0 nothing, 1 "?", 2 ":", 3 ".", 4 another mark, 5 a letter or digit, 6 beyond ASCII."""
    text = tail.rstrip(" \t\r\n")
    if not text:
        return 0
    c = text[-1]
    if c in "?:.":
        return "?:.".index(c) + 1
    return 6 if ord(c) >= 0x80 else 5 if c.isalnum() else 4


_ROLES = frozenset(("assistant", "ai", "bot", "chatbot", "model", "gpt"))


def _repetitions(segments):
    """Of a label ("Sentiment:") or arrow at the end, how often it stood there before, at most 3. A prompt
    that ends so goes on from examples."""
    stream = [t.removeprefix(NAME) for s in segments for t in s]
    counts = {}
    for i, token in enumerate(stream):
        if token == ">" or (token == ":" and i > 0 and stream[i - 1] not in _ROLES):
            label = ">" if token == ">" else stream[i - 1]
            counts[label] = counts.get(label, 0) + 1
    best = 0
    for segment in reversed(segments):
        end = segment[-1] if segment else ""
        label = ">" if end == ">" else segment[-2].removeprefix(NAME) if end == ":" and len(segment) > 1 \
            else None
        best = max(best, counts.get(label, 1) - 1)
        if _is_sentence(segment):
            break
    return min(best, 3)


def _answers(segments):
    """Whether somebody has answered before the end: the request is the last of a conversation."""
    return any(s and s[0] in _ROLES and (len(s) == 1 or (len(s) == 2 and s[1] == ":")) for s in segments[:-1])


class View:
    """A prompt as the classifier sees it."""

    def __init__(self, prompt):
        """prompt: bytes"""
        head = prompt[:HEAD_BYTES].decode("latin-1")
        tail = prompt[-TAIL_BYTES:].decode("latin-1")
        tail_segments = segments_of(tail)
        head_segments = segments_of(head)
        self.zoned = zoned(tail_segments, TAIL) + zoned(head_segments, HEAD)
        self.conversation = _answers(tail_segments) or _answers(head_segments)
        self.head_code = _code_level(head[:MARK_BYTES])
        self.tail_code = _code_level(tail[-MARK_BYTES:])
        self.end_kind = _end_kind(tail)
        self.options = int([] in tail_segments)
        self.repetitions = _repetitions(tail_segments)
