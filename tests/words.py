"""The vocabulary: words that this project no longer uses, and what to write instead.

`docs/glossary.md` explains the words to use. `allow` names the phrases in which an old word means something
else, as precisely as a regular expression can: no file is exempt.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class OldWord:
    pattern: str
    instead: str
    allow: str = ""
    """Phrases in which the word means something else."""

    def find(self, text: str) -> list[re.Match[str]]:
        allowed = [match.span() for match in re.finditer(self.allow, text, FLAGS)] if self.allow else []
        found = re.finditer(self.pattern, text, FLAGS)
        return [m for m in found if not any(low <= m.start() and m.end() <= high for low, high in allowed)]


FLAGS = re.IGNORECASE
TTA = "test-time augmentation, transform, transformed copy"
TENSOR = "tensors?|arrays?|numpy(?:'s)?|memory|buffers?|storage|weights|same data|same values"

WORDS = (
    OldWord(
        r"(?<!\.)\bviews?\b",
        TTA,
        rf"views? (of|into|on) (an? |the |its |one )?({TENSOR})|({TENSOR}) views?|point of view|in view of",
    ),
    OldWord(r"\b(an?|closer|other|each|several|these|of) looks?\b|^looks?$|\blooks at an image\b", TTA),
    OldWord(r"\bpictures?\b", "image, transformed copy, figure"),
    OldWord(r"\b(voices?|voters?)\b", "classifier, transformed copy, aggregation weight"),
    OldWord(r"\bvot(e|es|ed|ing)\b", "aggregate, aggregation, aggregated", r"(sources|classifiers) vote\b"),
    OldWord(r"\bask(s|ed|ing)?\b", "predict, use, request, require"),
    OldWord(r"\b(told|said)\b", "report, print, info"),
    OldWord(r"\bcloser by\b|\bfrom closer\b", "centre crop"),
    OldWord(
        r"\bturn(s|ed|ing)?\b",
        "rotation, rotate",
        r"\bin turn\b|\bquarter turns?\b|\bturn(s|ed|ing)? ([^.]{0,60}? )?(into|off|on|out|over|to|gray)\b",
    ),
    OldWord(r"\bpencils?\b", "sketch"),
    OldWord(r"\bhalf[- ]way\b", "Fourier amplitude mixing, mixing weight 0.5"),
    OldWord(
        r"\bmoments?\b",
        "feature statistics, AdaIN",
        r"\b(first|second|two|statistical|sample|central|raw|known|adam's|optimi[sz]er'?s?) moments?\b"
        r"|\bmoments? of (the|a|its) (distribution|density|gradients?|chain)|\b(at|for) (the|a|any) moment\b",
    ),
    OldWord(
        r"\b(styles?|styled)\b",
        "Fourier amplitudes, Fourier amplitude mixing, feature statistics",
        r"\b(code|coding|docstring|line|font|table|border) styles?\b|</?style\b|\bstyle-src\b|\bstyle ?="
        r"|\bstyle transfer\b"
        r"|fourier[ -](based )?style calibration|style normali[sz]ation and restitution"
        r"|test-time style shifting|^style$",
    ),
    OldWord(r"\bpretend\w*", "held-out source"),
    OldWord(r"\bplay(s|ed|ing)? (the|an?) (unseen|target|held)", "is held out"),
    OldWord(r"\bimagin(e|ed|es|ing|ary)\b", "synthetic corruption, held-out source"),
    OldWord(r"\bpromis(e|es|ed|ing)\b", "expected gain, estimate"),
    OldWord(
        r"\bwalk(s|ed|ing)?\b", "Langevin steps, chain", r"\bos\.walk\b|\bast\.walk\b|\brandom[- ]walks?\b"
    ),
    OldWord(
        r"\bmoved\b",
        "adapted",
        r"\bmoved (from \w+ )?to (the |a |its |another )?(device|gpu|cpu|host|cuda|0)|\bmoved from 1\b",
    ),
    OldWord(r"\bleaps?\b", "distilled one-step sampler"),
    OldWord(r"\bsurpris(e|es|ed|ing)\b", "energy z-score"),
    OldWord(
        r"\bdiscriminants?\b", "LDA head", r"\blinear discriminant analysis\b|LinearDiscriminantAnalysis"
    ),
    OldWord(r"^still$|\b(keep|keeps|kept|stay|stays|stand|stands|hold|holds) still\b", "frozen, not adapted"),
    OldWord(r"\bcontestants?\b", "method"),
    OldWord(
        r"\bcells?\b",
        "run",
        r"\b(table|notebook|empty|quote) cells?\b|\bcells?( of (a|the) (text )?(table|row|column|grid)\b"
        r"|, but the header\b)|falls in the cell\b",
    ),
    OldWord(r"\b(each|every|per|this|that|which) place\b|^places?$", "(dataset, target)"),
    OldWord(r"\bpractis(e|es|ed|ing)\b|\bpractice (on|what)\b", "train on"),
    OldWord(r"\bpeers?\b", "baseline"),
    OldWord(r"\bkept_gate\b", "not_adapted"),
    OldWord(
        r"\bwhere there (is|are) (one|some)\b|\bas (it|they) c(ame|omes?)\b|\bfor those who\b",
        "a plain sentence",
    ),
)


def old_words(text: str) -> list[str]:
    """Return a line for every old word in a text, with its context and what to write instead.

    >>> old_words("Turn adaptation off, or walk further.")
    ["'walk' in '...daptation off, or walk further.': write Langevin steps, chain"]
    """
    flat = " ".join(text.split())
    return [
        f"{match.group()!r} in {_around(flat, *match.span())!r}: write {word.instead}"
        for word in WORDS
        for match in word.find(flat)
    ]


def _around(text: str, start: int, end: int, width: int = 20) -> str:
    before = "..." * (start > width) + text[max(start - width, 0) : start]
    return before + text[start : end + width] + "..." * (end + width < len(text))
