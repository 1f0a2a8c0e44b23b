"""Training prompts: a request of a family, a document that has nothing to do with it, and a chat template
around both. Everything but the request is drawn without regard to the task."""

LOCALIZATION, AGGREGATION = "localization", "aggregation"

PROSE = "prose"
_PROSE = ("narrative", "news", "science", "legal", "manual", "encyclopedia", "mail", "forum", "filler",
          "free", "free", "short_statement", PROSE, PROSE, PROSE, PROSE)
_LINES = ("meeting", "faq", "table", "log", "json")
_CODE = ("python", "cfamily")
_FOREIGN = {"german": ("german_text",), "french": ("french_text",), "spanish": ("spanish_text",),
            "italian_portuguese_dutch": ("italian_text", "portuguese_text"),
            "chinese_japanese": ("chinese_text", "japanese_text"), "russian": ("russian_text",)}
_ALL_FOREIGN = tuple(g for genres in _FOREIGN.values() for g in genres)

_ASK_PREFIXES = ("Question: ", "Q: ", "Task: ", "Instruction: ", "Instructions: ", "Request: ",
                 "Query: ", "Prompt: ", "User: ", "Command: ", "QUESTION: ", "TASK: ", "## Task\n",
                 "### Question\n", "**Task**\n", "Your task: ", "Now: ", "Problem: ", "Input: ",
                 "Question:\n", "Instruction:\n", "Task:\n", "<question>", "<task>", "Message: ")

_SHOT_LABELS = (
    ("Text", "Sentiment"), ("Input", "Output"), ("Input", "Label"), ("Review", "Sentiment"),
    ("Sentence", "Class"), ("Question", "Type"), ("Tweet", "Label"), ("Email", "Category"),
    ("x", "y"), ("Word", "Category"), ("English", "French"), ("Text", "label"),
    ("Dialogue", "Summary"), ("Article", "Headline"), ("News", "Category"), ("Query", "Intent"),
    ("Sentence", "Corrected"), ("Message", "Topic"), ("Comment", "Class"), ("Item", "Group"),
    ("Headline", "Section"), ("Utterance", "Intent"), ("Ticket", "Priority"), ("Post", "Tag"),
    ("German", "English"), ("Abstract", "Field"), ("Example", "Answer"), ("Phrase", "Emotion"))


_INFORMAL = (("What is", "What's"), ("what is", "what's"), ("Who is", "Who's"), ("Where is", "Where's"),
             ("How is", "How's"), ("I am", "I'm"), ("I would", "I'd"), ("I have", "I've"), ("do not", "don't"),
             ("does not", "doesn't"), ("did not", "didn't"), ("cannot", "can't"), ("Please", "Pls"),
             ("please", "plz"), ("you ", "u "), (" are ", " r "), ("What are", "What're"), ("it is", "it's"))


class PromptMaker:
    """templates(family): those of its templates that are in use."""

    def __init__(self, grammar, rng, families=None, templates=lambda family: family.templates):
        self.grammar = grammar
        self.rng = rng
        self.templates = templates
        self.all_pre = sorted({f.pre for f in grammar.families if f.pre})
        self.by_label = {label: [f for f in families or grammar.families if f.label == label
                                 for _ in range(f.weight)]
                         for label in (LOCALIZATION, AGGREGATION)}

    def draw(self, name):
        return self.grammar.draw(name, self.rng).replace("~", "")

    # ---- documents ----

    def genre(self, family):
        rng = self.rng
        if family is not None and family.name in _FOREIGN and rng.chance(0.75):
            return rng.pick(_FOREIGN[family.name])
        if family is not None and family.code and rng.chance(0.85):
            return rng.pick(_CODE)
        x = rng.below(100)
        if x < 55:
            return rng.pick(_PROSE)
        if x < 78:
            return rng.pick(_LINES)
        if x < 90:
            return rng.pick(_CODE)
        return rng.pick(_ALL_FOREIGN)

    def sentence_of(self, genre):
        """One line or sentence of a document; of prose, sometimes two or three as they stand."""
        if genre != PROSE:
            return self.draw(genre)
        sentences = self.rng.pick(self.grammar.prose)
        first = self.rng.below(len(sentences))
        return " ".join(sentences[first:first + self.rng.between(1, 4)])

    def decoy(self):
        """A request as a document may contain it, of either task."""
        rng = self.rng
        family = rng.pick(self.by_label[rng.pick((LOCALIZATION, AGGREGATION))])
        text = self.request(family)
        x = rng.below(6)
        if x == 0:
            return '"%s" %s asked.' % (text, self.draw("first"))
        if x == 1:
            return "%s: %s" % (self.draw("first"), text)
        if x == 2:
            return "%s said: %s" % (self.draw("person"), text)
        return text

    def dialogue(self):
        rng = self.rng
        text = self.draw(rng.pick(("question", "question_more", "question_more")))
        x = rng.below(4)
        if x == 0:
            return '"%s" %s %s.' % (text, rng.pick(("asked", "said", "cried", "wondered")), self.draw("person"))
        if x == 1:
            return "%s: %s" % (self.draw("first"), text)
        if x == 2:
            return "%s: %s" % (rng.pick(("A", "B", "Q", "PM", "Chair", "Customer")), text)
        return text

    def document(self, family, size):
        rng = self.rng
        genre = self.genre(family)
        needles = rng.chance(0.3)
        joiner = " " if genre in _PROSE or genre in _ALL_FOREIGN or rng.chance(0.05) else "\n"
        per_paragraph = rng.between(2, 12)
        out, length = [], 0
        decoys = rng.chance(0.3)
        chatty = rng.chance(0.3)  # people ask each other things
        while length < size:
            x = rng.below(100)
            if decoys and x < 8 and length > 0:
                piece = self.decoy()
            elif chatty and x < 35:
                piece = self.dialogue()
            elif needles and x < 18:
                piece = self.draw("needle")
            elif x < 22 and joiner == " ":
                piece = self.sentence_of(rng.pick(_PROSE))
            else:
                piece = self.sentence_of(genre)
            end = joiner
            if joiner == " " and rng.below(per_paragraph) == 0:
                end = rng.pick(("\n", "\n\n"))
            out.append(piece + end)
            length += len(piece) + 1
        return "".join(out).strip()

    def labelled_document(self, family, size):
        rng = self.rng
        text = self.document(family, size)
        if rng.chance(0.4):
            text = self.draw("label_before") + rng.pick(("\n", "\n", " ")) + text
        if rng.chance(0.15):
            text += "\n" + self.draw("label_after")
        return text

    def size(self):
        rng = self.rng
        x = rng.below(10)
        if x < 2:
            return rng.between(40, 300)
        if x < 4:
            return rng.between(300, 1200)
        return rng.between(1200, 3200)

    # ---- requests ----

    def marked_request(self, family):
        """A bare request of the family, from the templates in use, with ~ around what is none by itself."""
        return self.grammar.expand(self.rng.pick(self.templates(family)), self.rng)

    def request(self, family):
        return self.marked_request(family).replace("~", "")

    def informal(self, text):
        """As people type in a hurry."""
        rng = self.rng
        for formal, short in _INFORMAL:
            if formal in text and rng.chance(0.6):
                text = text.replace(formal, short)
        if rng.chance(0.5):
            text = text.replace("'", "")
        if rng.chance(0.5):
            text = text.lower()
        if rng.chance(0.5):
            text = text.rstrip(".:!?")
        return text

    def embellished(self, text):
        rng = self.rng
        if rng.chance(0.08):
            text = self.informal(text)
        if rng.chance(0.15):
            text = self.draw("opener") + " " + (text[0].lower() + text[1:] if rng.chance(0.5) else text)
        if rng.chance(0.06):
            end = text[-1] if text[-1] in ".?:" else ""
            text = text.rstrip(".?:") + self.draw("aside") + end
        return text

    def ask(self, family):
        """A request as people write it, with all that may stand before and after it."""
        rng = self.rng
        text = self.request(family)
        if family.code == 2:
            return text
        text = self.embellished(text)
        if text[:1].islower() and rng.chance(0.6):
            text = text[0].upper() + text[1:]
        x = rng.below(100)
        if x < 6:
            text = text.lower()
        elif x < 8:
            text = text.upper()
        if rng.chance(0.15):
            text = text.rstrip(".:!?")
        if rng.chance(0.06):
            text = self.misspell(text)
        if rng.chance(0.15):
            text = rng.pick(_ASK_PREFIXES) + text
        if rng.chance(0.08):
            text = self.draw("greeting") + rng.pick((" ", "\n")) + text
        if rng.chance(0.07):
            text += rng.pick((" ", "\n")) + self.draw("closing")
        return text

    def misspell(self, text):
        rng = self.rng
        letters = list(text)
        for _ in range(rng.between(1, 2)):
            i = rng.below(max(1, len(letters) - 1))
            if i + 1 < len(letters) and letters[i].isalpha() and letters[i + 1].isalpha():
                if rng.chance(0.5):
                    letters[i], letters[i + 1] = letters[i + 1], letters[i]
                else:
                    del letters[i]
        return "".join(letters)

    def body(self, family):
        """Request, document and cue in one of the orders in which people write them."""
        rng = self.rng
        ask = self.ask(family)
        pre = self.draw(family.pre) if family.pre and rng.chance(0.45) else ""
        if pre and rng.chance(0.3):
            pre += " " + self.draw(family.pre)
        if rng.chance(0.06):  # announced as something else; the request itself counts
            other = rng.pick(self.all_pre)
            pre = self.draw(other)
        cue = self.draw(family.cue) if family.cue and rng.chance(0.4) else ""
        gap = rng.pick(("\n", "\n\n", "\n\n\n", " "))
        x = rng.below(100)
        if family.code == 2:
            head = self.draw("code_pre") if rng.chance(0.35) else ""
            parts = [head, self.document(family, self.size()), ask]
            gap = "\n"
        elif x < 8:
            parts = [pre, ask, cue] if rng.chance(0.5) else [ask, cue]
        elif x < 48:
            parts = [pre, self.labelled_document(family, self.size()), ask, cue]
        elif x < 73:
            parts = [pre, ask, self.labelled_document(family, self.size()), cue]
        elif x < 82:
            again = ask if rng.chance(0.5) else self.ask(family)
            parts = [ask, self.labelled_document(family, self.size()), again, cue]
        elif x < 92 and family.pre:
            parts = [ask, self.labelled_document(family, self.size()), self.draw(family.pre), cue]
        elif x < 96:
            parts = [self.labelled_document(family, self.size()), ask, pre, cue]
        else:
            parts = [self.document(family, self.size()), ask, self.document(family, 120), cue]
        return gap.join(p for p in parts if p)

    # ---- going on from examples ----

    def examples(self, label):
        """Few-shot prompts. Labels, translations and summaries by example are aggregation; questions
        with passages of their own are localization."""
        rng = self.rng
        if label == LOCALIZATION:
            return self._question_shots()
        style = rng.below(5)
        key, value = rng.pick(_SHOT_LABELS)
        labels = rng.pick((
            ("positive", "negative"), ("dax", "wug", "fep"), ("0", "1", "2"), ("A", "B"),
            ("sports", "business", "science"), ("location", "person", "number", "entity"),
            ("spam", "ham"), ("high", "low"), ("joy", "anger", "fear"), ("true", "false"),
            ("17", "42", "63"), ("fruit", "tool", "bird"), ("refund", "delivery", "login")))
        genre = rng.pick(("common", "thing", "forum", "news", "narrative", "question", "filler", "mail",
                          "key", "science"))
        end = rng.pick(("\n", "\n\n", " ", ".\n"))
        between = rng.pick((" ", "\n", "\n", ". "))
        arrow = rng.pick((" -> ", " => ", "\t=> ", ": ", " = ", " | "))
        noisy = rng.chance(0.25)
        shots = []
        for _ in range(rng.between(3, 40)):
            x, y = self.draw(genre), rng.pick(labels)
            shots.append(self._shot(style, key, value, x, y, between, arrow))
            if sum(map(len, shots)) > 3000:
                break
            if noisy and rng.chance(0.5):
                shots.append(self.sentence_of(rng.pick(_PROSE)))
        last = self._shot(style, key, value, self.draw(genre), "", between, arrow).rstrip()
        pre = self.draw("fewshot_pre") + "\n" if rng.chance(0.45) else ""
        return pre + end.join(shots) + end + last

    def label_of_examples(self):
        return self.rng.pick(_SHOT_LABELS)[1] + ":"

    @staticmethod
    def _shot(style, key, value, x, y, between, arrow):
        if style == 0:
            return x + arrow + y
        if style == 1:
            return "%s%s%s: %s" % (x, between, value, y)
        return "%s: %s%s%s: %s" % (key, x, between, value, y)

    def _question_shots(self):
        rng = self.rng
        key = rng.pick(("Passage", "Context", "Text", "Paragraph", "Document", ""))
        question, answer = rng.pick((("Question", "Answer"), ("Q", "A"), ("Question", "Short answer"),
                                     ("question", "answer"), ("Query", "Response"), ("Q", "Answer")))
        between = rng.pick(("\n", "\n", " "))
        shots = []
        for i in range(rng.between(2, 12)):
            parts = []
            if key:
                parts.append("%s: %s" % (key, self.document(None, rng.between(60, 500))))
            parts.append("%s: %s" % (question, self.draw("question")))
            parts.append("%s: %s" % (answer, self.draw(rng.pick(("person", "place", "year", "thing",
                                                                 "code_number")))))
            shots.append(between.join(parts))
            if sum(map(len, shots)) > 3000:
                break
        last = shots.pop()
        last = last[:last.rindex(answer + ":")] + answer + ":"
        pre = self.draw("qa_pre") + "\n" if rng.chance(0.5) else ""
        return pre + "\n\n".join(shots + [last])

    # ---- chat templates ----

    def wrap(self, body):
        rng = self.rng
        system = self.draw("system") if rng.chance(0.5) else ""
        x = rng.below(20)
        if x < 9:
            return (system + "\n" + body) if system and rng.chance(0.2) else body
        if x == 9 or x == 10:
            head = "<|im_start|>system\n%s<|im_end|>\n" % system if system else ""
            return head + "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n" % body
        if x == 11:
            head = "<<SYS>>\n%s\n<</SYS>>\n\n" % system if system else ""
            return "<s>[INST] %s%s [/INST]" % (head, body)
        if x == 12:
            return "[INST] %s [/INST]" % body
        if x == 13 or x == 14:
            head = "<|start_header_id|>system<|end_header_id|>\n\n%s<|eot_id|>" % system if system else ""
            return ("<|begin_of_text|>%s<|start_header_id|>user<|end_header_id|>\n\n%s<|eot_id|>"
                    "<|start_header_id|>assistant<|end_header_id|>\n\n" % (head, body))
        if x == 15:
            return "%s\n\n### Instruction:\n%s\n\n### Response:\n" % (system, body)
        if x == 16:
            return "%s\n\nHuman: %s\n\nAssistant:" % (system, body)
        if x == 17:
            return "%s USER: %s ASSISTANT:" % (system, body)
        if x == 18:
            return "<start_of_turn>user\n%s<end_of_turn>\n<start_of_turn>model\n" % body
        return "<|user|>\n%s<|end|>\n<|assistant|>\n" % body

    def conversation(self, label):
        """Earlier turns of either task and their answers; the last turn is what counts."""
        rng = self.rng
        user, assistant, end = rng.pick((
            ("User: ", "Assistant: ", "\n"), ("Human: ", "AI: ", "\n\n"), ("USER: ", "ASSISTANT: ", " "),
            ("<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>\n"),
            ("<start_of_turn>user\n", "<start_of_turn>model\n", "<end_of_turn>\n"),
            ("<|user|>\n", "<|assistant|>\n", "<|end|>\n"), ("[INST] ", " [/INST] ", " "),
            ("### Human: ", "### Assistant: ", "\n"), ("Q: ", "A: ", "\n")))
        parts = [self.draw("system") + "\n"] if rng.chance(0.3) else []
        for i in range(rng.between(1, 3)):
            earlier = rng.pick(self.by_label[rng.pick((LOCALIZATION, AGGREGATION))])
            text = self.body(earlier) if i == 0 and rng.chance(0.7) else self.ask(earlier)
            parts += [user, text, end, assistant, self.document(None, rng.between(5, 400)), end]
        family = rng.pick(self.by_label[label])
        text = self.ask(family)
        if rng.chance(0.2):
            text = rng.pick(("%s\n\n%s", "%s\n%s")) % (text, self.document(family, self.size()))
        elif rng.chance(0.15):
            text = self.document(family, self.size()) + "\n\n" + text
        return "".join(parts + [user, text, end, assistant.rstrip(" ")]), family.name

    def prompt(self, label):
        rng = self.rng
        x = rng.below(100)
        if x < 10:
            text, name = self.wrap(self.examples(label)), "examples"
        elif x < 20:
            text, name = self.conversation(label)
        else:
            family = rng.pick(self.by_label[label])
            text, name = self.wrap(self.body(family)), family.name
        if rng.chance(0.1):
            text = " " + text
        if rng.chance(0.15):
            text += "\n"
        return text, name
