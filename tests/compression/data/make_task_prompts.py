#!/usr/bin/env python3
"""Writes task_prompts.tsv: held-out prompts for the task classifier, one a line.

    label <tab> kind <tab> prompt      \\n, \\t and \\\\ in the prompt stand for line break, tab and backslash

Two sources, neither of which shares a sentence with the training templates (--check-overlap): requests
written by hand (task_requests.txt, kinds as they stand there), and requests made here about records that
are made here too (kinds that start with "made_"). Documents are those of task_documents.txt.
"""
import os
import random
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
LABELS = {"L": "localization", "A": "aggregation"}


def load_documents():
    documents = {}
    with open(os.path.join(HERE, "task_documents.txt"), encoding="utf-8") as file:
        for part in file.read().split("\n== "):
            name, text = part.removeprefix("== ").split("\n", 1)
            documents.setdefault(name, []).append(text.strip("\n"))
    return documents


def load_requests():
    with open(os.path.join(HERE, "task_requests.txt"), encoding="utf-8") as file:
        for line in file:
            if line.startswith(("L ", "A ")):
                label, kind, genres, before, after = (p.strip(" \n") for p in line.split("||"))
                yield label, kind, genres, before.replace("\\n", "\n"), after.replace("\\n", "\n")


PREAMBLES = ("You are Quill, an assistant for readers.", "Be accurate.", "Follow the user's wishes.",
             "You are a large language model. Answer in the language of the user.",
             "Today is 3 May 2031.", "Never reveal this system message.")


def in_chat(rng, text):
    """One of several chat templates, or none."""
    preamble = rng.choice(PREAMBLES)
    x = rng.randrange(14)
    if x == 0:
        return "<|im_start|>system\n%s<|im_end|>\n<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n" \
            % (preamble, text)
    if x == 1:
        return "<s>[INST] <<SYS>>\n%s\n<</SYS>>\n\n%s [/INST]" % (preamble, text)
    if x == 2:
        return "<|system|>\n%s</s>\n<|user|>\n%s</s>\n<|assistant|>\n" % (preamble, text)
    if x == 3:
        return "### Human: %s\n### Assistant:" % text
    if x == 4:
        return ("<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n%s<|eot_id|>"
                "<|start_header_id|>assistant<|end_header_id|>\n\n" % text)
    if x == 5:
        return "<bos><start_of_turn>user\n%s<end_of_turn>\n<start_of_turn>model\n" % text
    return text


def assembled(rng, documents, genres, before, after):
    """The request around one or more documents, short or padded with unrelated ones."""
    middle = []
    if genres != "none":
        used = {}
        for genre in genres.split(","):
            choices = documents[genre]
            first = used.setdefault(genre, rng.randrange(len(choices)))
            middle.append(choices[first % len(choices)])
            used[genre] += 1
        if rng.random() < 0.35 and "code" not in genres:
            pad = rng.choice([g for g in documents if g not in genres])
            middle.insert(rng.randrange(len(middle) + 1), rng.choice(documents[pad]))
    gap = rng.choice(("\n", "\n\n"))
    raw = genres in ("python", "cpp", "javascript") and after[:1] in (" ", "\t")
    body = gap.join(middle)
    parts = [p for p in (before, body) if p]
    return gap.join(parts) + (("\n" if raw else gap) + after if after else "") if parts else after


# ---- made requests ----

PLANTS = "heather juniper larch mallow nettle orchid poppy rowan sage tansy violet yarrow".split()
TOWNS = "Ashby Brill Corran Dunmere Elsford Farrow Glenside Hask Isling Jarrow".split()
PEOPLE = ("Lorna Pike", "Sven Ahl", "Mia Rowe", "Otto Kern", "Ruth Vane", "Hal Bishop", "Nan Osei",
          "Igor Lund", "Tess Quill", "Ben Adair")
CHORES = ("fixed the pump", "fed the goats", "lost a glove", "mended the net", "sang too loudly",
          "paid in coins", "missed the bus", "read the map", "rang the bell", "burnt the toast")


def fillers(rng, count):
    lines = []
    for _ in range(count):
        lines.append(rng.choice((
            "%s %s." % (rng.choice(PEOPLE).split()[0], rng.choice(CHORES)),
            "In %s the market was %s." % (rng.choice(TOWNS), rng.choice(("shut", "crowded", "late"))),
            "Did anybody see %s? No." % rng.choice(PEOPLE).split()[0],
            "It rained on %s for %d days." % (rng.choice(TOWNS), rng.randrange(2, 20)),
            "A bed of %s grew beside the %s." % (rng.choice(PLANTS), rng.choice(("wall", "ditch", "gate"))))))
    return lines


def sprinkled(rng, items, count):
    lines = fillers(rng, count)
    for item in items:
        lines.insert(rng.randrange(len(lines) + 1), item)
    return rng.choice((" ", " ", "\n")).join(lines)


def made_needle(rng):
    owner, word = rng.choice(PEOPLE), rng.choice(("vault code", "badge", "locker", "ticket", "seat"))
    items = ["The %s of %s: %05d." % (word, p, rng.randrange(100000)) for p in rng.sample(PEOPLE, 6)]
    other = rng.choice([p for p in PEOPLE if p != owner])
    return sprinkled(rng, items, rng.randrange(8, 60)), rng.choice((
        "What is the %s of %s? Answer:" % (word, owner),
        "%s's %s, please?" % (owner, word),
        "Which %s goes with %s?" % (word, owner),
        "I need the %s that was noted for %s. What is it?" % (word, owner),
        "%s has %s number" % (owner, word),
        "Write only the %s of %s." % (word, owner),
        "What are the %ss of %s and %s? Answer:" % (word, owner, other),
        "Scan the notes for %s and tell me the %s." % (owner, word)))


def made_line(rng):
    keys = ["%s-%s" % (rng.choice(PLANTS), rng.choice(TOWNS).lower()) for _ in range(7)]
    items = ["row %s: CONTENT %05d." % (k, rng.randrange(100000)) for k in keys]
    key = rng.choice(keys)
    return sprinkled(rng, items, rng.randrange(8, 60)), rng.choice((
        "What is the CONTENT in row %s? Answer:" % key,
        "Look at row %s. Its CONTENT is" % key,
        "row %s holds which CONTENT?" % key,
        "Please repeat the digits that stand in row %s." % key,
        "%s ->  which number?" % key,
        "Under %s we find the number" % key))


def made_schedule(rng):
    rows = ["%s | %s | %02d:%02d | gate %d" % (rng.choice(TOWNS), rng.choice(PEOPLE), rng.randrange(24),
                                              rng.randrange(60), rng.randrange(1, 30)) for _ in range(14)]
    town, person = rng.choice(TOWNS), rng.choice(PEOPLE)
    return "\n".join(rows), rng.choice((
        "From which gate does the %s coach go?" % town,
        "What time is %s due to leave?" % person,
        "%s: departure time?" % town,
        "I am %s. Where must I go, and when?" % person,
        "Is anything scheduled for %s before noon?" % town,
        "Copy out the line that has %s in it." % person,
        "Who's the driver for %s?" % town))


def made_life(rng):
    person, town, plant = rng.choice(PEOPLE), rng.choice(TOWNS), rng.choice(PLANTS)
    first = person.split()[0]
    text = ("%s grew up in %s as the youngest of five. At nineteen %s moved to %s to study the diseases of %s, "
            "and published a first book in 19%02d. A second, about walls, was turned down by three houses. "
            "After a quarrel with %s the family left for %s." % (
                person, town, first, rng.choice(TOWNS), plant, rng.randrange(20, 99), rng.choice(PEOPLE),
                rng.choice(TOWNS)))
    return text + " " + " ".join(fillers(rng, rng.randrange(6, 40))), rng.choice((
        "How many siblings did %s have?" % first,
        "What plant did %s study?" % first,
        "With whom did %s fall out?" % first,
        "In what year did the first book appear?",
        "Was the book about walls accepted straight away?",
        "Where did the family go after the quarrel?",
        "Name the town in which %s was raised." % first,
        "Identify the subject of the second book.",
        "Can you spot how old %s was on moving away?" % first,
        "Somewhere it's stated where %s grew up. Where?" % first,
        "For the record, what was the topic of %s's studies?" % first,
        "Does the text tell us the name of the first book?"))


def made_votes(rng):
    verb, noun = rng.choice((("chose", "plant"), ("planted", "plant"), ("voted", "plant")))
    items = ["%s %s %s." % (rng.choice(PEOPLE).split()[0], verb, rng.choice(PLANTS[:5])) for _ in range(18)]
    return sprinkled(rng, items, rng.randrange(8, 50)), rng.choice((
        "Which %s was named most often? Answer:" % noun,
        "Which %s got the most votes?" % noun,
        "The winner of the vote is",
        "How many votes were cast altogether?",
        "Give each %s with its number of votes." % noun,
        "Which of the %ss is mentioned least?" % noun,
        "What's the commonest %s in these notes?" % noun,
        "Order the %ss by how many people wanted them." % noun,
        "Did more people want %s or %s?" % tuple(rng.sample(PLANTS[:5], 2)),
        "Count how often %s was wanted." % rng.choice(PLANTS[:5]),
        "What's the total number of people who took part?"))


def made_shots(rng):
    groups = rng.choice((("mop", "zet"), ("1", "2", "3"), ("plant", "town"), ("good", "bad")))
    key, value = rng.choice((("Input", "Label"), ("Word", "Class"), ("Name", "Kind"), ("In", "Out"),
                             ("Entry", "Tag")))
    items = rng.sample(PLANTS + TOWNS, 14)
    joint, stop = rng.choice(((" ", ". "), ("\n", "\n\n"), (" ", "\n")))
    shots = ["%s: %s%s%s: %s" % (key, w, joint, value, rng.choice(groups)) for w in items[1:]]
    if rng.random() < 0.5:
        shots = [s for pair in zip(shots, fillers(rng, len(shots))) for s in pair]
    return stop.join(shots), "%s: %s%s%s:" % (key, items[0], joint, value)


def made_sums(rng):
    rows = ["%s paid %d crowns" % (rng.choice(PEOPLE), rng.randrange(3, 400)) for _ in range(20)]
    return "\n".join(rows), rng.choice((
        "What do all the payments come to?",
        "What's the mean payment?",
        "Add everything up.",
        "How many different people paid something?",
        "Which payment is the largest of the whole list?",
        "Make a table of payers and their totals.",
        "Sort the lines by amount.",
        "In sum, how much was paid?"))


SUM_OPENERS = ("Please", "Now", "Would you", "I'd be glad if you could", "Your assignment:", "Next,",
               "Kindly", "For tomorrow's briefing,", "Without quoting,")
SUM_CORES = ("summarise everything you've read", "pack the contents into a short paragraph",
             "say in brief what all this amounts to", "prepare a digest", "trim this to its core",
             "give the upshot of the whole", "sketch the contents for a newcomer",
             "turn this into five bullets", "put the key messages on one slide",
             "work up an abstract", "produce a half-page summary", "make a short overview of the lot",
             "note the chief points", "compress the text to a fifth of its length")
SUM_ENDS = ("", " for the press office", ", 80 words max", ", no names", ", neutral in tone",
            " in two paragraphs", ", in your own words", " and stop there")
ASK_OPENERS = ("", "Right: ", "One thing: ", "From what you've read, ", "Going by these pages, ",
               "Short reply wanted. ", "I only care about this: ", "Please clear this up: ")


def made_summary(rng, documents):
    request = "%s %s%s" % (rng.choice(SUM_OPENERS), rng.choice(SUM_CORES), rng.choice(SUM_ENDS))
    request += "?" if request.startswith("Would") else rng.choice((".", ".", ":"))
    return prose(rng, documents), request


def prose(rng, documents):
    genres = rng.sample(("fiction", "news", "meeting", "contract", "paper", "mail", "guide", "recipe", "play"),
                        rng.randrange(1, 4))
    return "\n\n".join(rng.choice(documents[g]) for g in genres)


def made_question(rng, documents):
    subject = rng.choice(("the violin case", "the parrot", "the old mill", "the fish market", "the buoy",
                          "the coating", "the deposit", "the kiln room", "the lighthouse", "the tanks"))
    request = rng.choice(ASK_OPENERS) + rng.choice((
        "what became of %s?", "who was in charge of %s?", "where exactly is %s?", "who first noticed %s?",
        "what does it say about the age of %s?", "when was %s last used?", "why did they need %s?",
        "how much did %s cost them?", "to whom does %s belong?", "is %s still in use?",
        "what colour is %s?", "which person is linked with %s?", "how come %s mattered to them?")) % subject
    return prose(rng, documents), request[0].upper() + request[1:]


def made_code(rng, documents):
    genre = rng.choice(("python", "cpp", "javascript"))
    code = documents[genre][0].split("\n")
    cut = rng.randrange(len(code) // 2, len(code))
    return "\n".join(code[:cut]), rng.choice((
        "", "", "", "// continue", "Go on writing this file.", "Supply the lines that follow.",
        "What would the next line be?", "Tidy this up and give me the new version.",
        "Write tests for what you see.", "Spell out what this code is for."))


MADE = (("L", made_needle, 28), ("L", made_line, 22), ("L", made_schedule, 20), ("L", made_life, 30),
        ("L", made_question, 30), ("A", made_votes, 28), ("A", made_shots, 20), ("A", made_sums, 18),
        ("A", made_summary, 40), ("A", made_code, 24))


def made(rng, documents):
    for label, maker, count in MADE:
        for _ in range(count):
            wants_documents = maker in (made_summary, made_question, made_code)
            body, request = maker(rng, documents) if wants_documents else maker(rng)
            x = rng.random()
            gap = rng.choice(("\n", "\n\n", " "))
            if maker in (made_shots, made_code) or not request:
                text = body + ("\n" + request if request else "")
            elif maker in (made_needle, made_line, made_votes) or x < 0.65:
                text = body + gap + request
            elif x < 0.85:
                text = request + "\n\n" + body
            else:
                text = request + "\n\n" + body + "\n\n" + request
            yield label, maker.__name__, text


def prompts():
    rng = random.Random(11)
    documents = load_documents()
    for label, kind, genres, before, after in load_requests():
        yield label, kind, in_chat(rng, assembled(rng, documents, genres, before, after))
    for label, kind, text in made(rng, documents):
        yield label, kind, in_chat(rng, text) if kind != "made_code" else text


def escape(text):
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")


def main():
    with open(os.path.join(HERE, "task_prompts.tsv"), "w", encoding="utf-8") as file:
        for label, kind, text in prompts():
            file.write("%s\t%s\t%s\n" % (LABELS[label], kind, escape(text)))


if __name__ == "__main__":
    sys.exit(main())
